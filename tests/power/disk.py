"""What a disk may hold after a power cut, from the system calls of a command.

``trace`` runs a command under strace and returns what it, its threads and all its processes did below a folder, whoever
wrote the code: Python, Arrow, safetensors or Ray. A ``Disk`` applies these operations one by one and says after each
what would be left:

- ``bytes_lost``: every name is there at once, as on ext4 and XFS, but of a file only the bytes that were synced;
- ``names_lost``: moreover only the names of folders that were synced since, as POSIX promises.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Contents by path relative to the folder; None: a folder.
Image = dict[str, bytes | None]

_CALLS = (
    "open,openat,creat,close,write,writev,pwrite64,pwritev,lseek,ftruncate,truncate,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,fsync,fdatasync,sync,syncfs,fallocate,mmap,sendfile,copy_file_range"
)
_BY_NAME = (
    b"truncate", b"rename", b"renameat", b"renameat2", b"unlink", b"unlinkat", b"mkdir", b"mkdirat", b"rmdir", b"link",
    b"linkat", b"symlink", b"symlinkat",
)  # fmt: skip
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_OPENED = re.compile(rb"(\d+)<((?:[^<>\\]|\\.)*)>")
_FOLDER = re.compile(rb"(?:AT_FDCWD|\d+)<((?:[^<>\\]|\\.)*)>, $")
_LINE = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\d+)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Operation:
    """One change below the folder. kind: create, truncate, write, sync, sync all, mkdir, remove or rename.

    path, target: relative to the folder. at: where bytes are written, or the new size.
    """

    kind: str
    path: str = ""
    target: str = ""
    at: int = 0
    data: bytes = b""


def trace(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> list[Operation]:
    """What the command changes below the folder, in order. log: for the trace.

    Raises:
        AssertionError: The command fails, or writes in a way that a trace of calls does not show.
    """
    strace = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-s", str(1 << 26), "-e", f"trace={_CALLS}", "-o", str(log)]
    done = subprocess.run([*strace, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(_operations(log, str(folder).encode()))


def _operations(log: Path, folder: bytes) -> Iterator[Operation]:
    offsets: dict[tuple[bytes, bytes], int] = {}  # (descriptor, path) of files that are open for writing
    for call, arguments, result, told in _calls(log):
        if call in (b"sync", b"syncfs"):
            yield Operation("sync all")
            continue
        if result < 0 or (folder not in arguments and folder not in told):
            continue
        named = _paths(arguments) if call in _BY_NAME else ()
        paths = [relative for path in named if (relative := _below(folder, path)) is not None]
        opened = _OPENED.search(arguments)
        descriptor = (opened[1], opened[2]) if opened else (b"", b"")
        if call in (b"open", b"openat", b"creat"):
            path = _below(folder, told_path[1]) if (told_path := re.search(rb"<(.*)>", told)) else None
            if path is None or not re.search(rb"O_WRONLY|O_RDWR", arguments):
                continue
            assert b"O_TMPFILE" not in arguments
            yield Operation("create", path)
            if b"O_TRUNC" in arguments:
                yield Operation("truncate", path)
            assert told_path is not None
            offsets[(str(result).encode(), told_path[1])] = -1 if b"O_APPEND" in arguments else 0
        elif call in (b"write", b"writev", b"pwrite64", b"pwritev"):
            path = _below(folder, descriptor[1])
            if path is None or descriptor not in offsets:
                continue
            data = b"".join(_decoded(text) for text in _STRING.findall(arguments))[:result]
            assert len(data) == result, "the trace lacks bytes"
            if call in (b"pwrite64", b"pwritev"):
                yield Operation("write", path, at=int(arguments.rpartition(b", ")[2]), data=data)
            else:
                yield Operation("write", path, at=offsets[descriptor], data=data)
                offsets[descriptor] += result if offsets[descriptor] >= 0 else 0
        elif call == b"lseek" and descriptor in offsets and offsets[descriptor] >= 0:
            offsets[descriptor] = result
        elif call in (b"sendfile", b"copy_file_range"):
            ends = [path for _, path in _OPENED.findall(arguments)]
            target, source = (ends[0], ends[1]) if call == b"sendfile" else (ends[1], ends[0])
            if (path := _below(folder, target)) is not None and result:
                data = Path(source.decode()).read_bytes()
                assert len(data) == result, "a copy in several calls"
                yield Operation("write", path, data=data)
        elif call == b"mmap":
            assert not (b"MAP_SHARED" in arguments and b"PROT_WRITE" in arguments), (
                f"written through memory: {arguments!r}"
            )
        elif call in (b"ftruncate", b"truncate"):
            yield Operation("truncate", _one(folder, descriptor, paths), at=int(arguments.rpartition(b", ")[2]))
        elif call in (b"fsync", b"fdatasync"):
            if (path := _below(folder, descriptor[1])) is not None:
                yield Operation("sync", path)
        elif call in (b"mkdir", b"mkdirat"):
            yield Operation("mkdir", paths[0])
        elif call in (b"unlink", b"unlinkat", b"rmdir"):
            yield Operation("remove", paths[-1])
        elif call in (b"rename", b"renameat", b"renameat2"):
            assert len(paths) == 2, f"renamed across the folder's border: {arguments!r}"
            yield Operation("rename", paths[0], paths[1])
        else:
            assert call in (b"close", b"lseek"), f"no model of {call!r}"
            if call == b"close":
                offsets.pop(descriptor, None)


def _one(folder: bytes, descriptor: tuple[bytes, bytes], paths: Sequence[str]) -> str:
    path = _below(folder, descriptor[1])
    return paths[0] if path is None else path


def _calls(log: Path) -> Iterator[tuple[bytes, bytes, int, bytes]]:
    """Name, arguments, result and what is told of it, in the order in which the calls returned."""
    begun: dict[bytes, bytes] = {}
    for line in log.read_bytes().split(b"\n"):
        pid = line.partition(b" ")[0]
        if line.endswith(b" <unfinished ...>"):
            begun[pid] = line.removesuffix(b" <unfinished ...>")
            continue
        if resumed := re.match(rb"\d+ +<\.\.\. \w+ resumed>", line):
            line = begun.pop(pid, b"") + line[resumed.end() :]
        if call := _LINE.fullmatch(line):
            yield call[2], call[3], int(call[4]), call[5]


def _paths(arguments: bytes) -> Iterator[bytes]:
    """The paths that arguments name; those that are relative to an open folder as a whole path."""
    for text in _STRING.finditer(arguments):
        path = _decoded(text[1])
        folder = _FOLDER.search(arguments[: text.start()])
        yield path if path.startswith(b"/") or not folder else (folder[1] + b"/" + path).rstrip(b"/")


def _below(folder: bytes, path: bytes) -> str | None:
    return path[len(folder) + 1 :].decode() if path == folder or path.startswith(folder + b"/") else None


def _decoded(text: bytes) -> bytes:
    return text.decode("unicode_escape").encode("latin1") if b"\\" in text else text


@dataclass
class _Node:
    """A file or a folder: what it holds now, and what of it would survive."""

    names: dict[str, "_Node"] | None = None
    kept_names: dict[str, "_Node"] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    kept_data: bytes = b""


class Disk:
    """A folder of a disk, on which everything that it holds at first is safe."""

    def __init__(self, image: Mapping[str, bytes | None]) -> None:
        self._root = _Node(names={})
        for path, data in sorted(image.items()):
            folder, name = self._parent(path)
            node = _Node(names={}) if data is None else _Node(data=bytearray(data), kept_data=data)
            assert folder.names is not None
            folder.names[name] = folder.kept_names[name] = node

    def apply(self, operation: Operation) -> None:
        """Do one operation."""
        if operation.kind == "sync all":
            self._sync_all(self._root)
            return
        folder, name = self._parent(operation.path)
        node = folder.names[name] if folder.names and name in folder.names else self._root
        assert folder.names is not None
        if operation.kind == "create":
            folder.names.setdefault(name, _Node())
        elif operation.kind == "mkdir":
            folder.names.setdefault(name, _Node(names={}))
        elif operation.kind == "truncate":
            del node.data[operation.at :]
        elif operation.kind == "write":
            at = len(node.data) if operation.at < 0 else operation.at
            node.data[len(node.data) : at] = bytes(max(0, at - len(node.data)))
            node.data[at : at + len(operation.data)] = operation.data
        elif operation.kind == "sync":
            self._sync(node)
        elif operation.kind == "remove":
            folder.names.pop(name, None)
        else:
            target, new_name = self._parent(operation.target)
            assert target.names is not None
            target.names[new_name] = folder.names.pop(name)

    def now(self) -> Image:
        """What programs see, and what is left if only processes die."""
        return self._image(self._root, "", is_kept_name=False, is_kept_data=False)

    def bytes_lost(self) -> Image:
        """What a power cut leaves if names are written at once."""
        return self._image(self._root, "", is_kept_name=False, is_kept_data=True)

    def names_lost(self) -> Image:
        """What a power cut leaves if nothing is written before it must be."""
        return self._image(self._root, "", is_kept_name=True, is_kept_data=True)

    def _image(self, node: _Node, path: str, is_kept_name: bool, is_kept_data: bool) -> Image:
        image: Image = {}
        names = node.kept_names if is_kept_name else node.names or {}
        for name, inner in names.items():
            place = f"{path}{name}"
            if inner.names is None:
                image[place] = inner.kept_data if is_kept_data else bytes(inner.data)
            else:
                image[place] = None
                image |= self._image(inner, f"{place}/", is_kept_name, is_kept_data)
        return image

    def _sync(self, node: _Node) -> None:
        if node.names is None:
            node.kept_data = bytes(node.data)
        else:
            node.kept_names = dict(node.names)

    def _sync_all(self, node: _Node) -> None:
        self._sync(node)
        for inner in (node.names or {}).values():
            self._sync_all(inner)

    def _parent(self, path: str) -> tuple[_Node, str]:
        *folders, name = path.split("/")
        node = self._root
        for folder in folders:
            assert node.names is not None
            node = node.names[folder]
        return node, name


def read_image(folder: Path) -> Image:
    """What a folder holds."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_dir() or path.is_file()
    }  # fmt: skip


def write_image(folder: Path, image: Image) -> None:
    """Make an empty folder hold an image."""
    for path, data in sorted(image.items()):
        if data is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(data)


def cuts(before: Image, operations: Sequence[Operation]) -> list[tuple[int, str, Image]]:
    """All different images that a power cut may leave: after how many operations, in which way, and the image."""
    disk, seen, found = Disk(before), set(), []
    for number in range(len(operations) + 1):
        if number:
            disk.apply(operations[number - 1])
            if operations[number - 1].kind == "write":  # nothing of it is safe yet
                continue
        for way in ("bytes lost", "names lost"):
            image = disk.bytes_lost() if way == "bytes lost" else disk.names_lost()
            mark = hash(tuple(sorted((path, hash(data)) for path, data in image.items())))
            if mark not in seen:
                seen.add(mark)
                found.append((number, way, image))
    return found
