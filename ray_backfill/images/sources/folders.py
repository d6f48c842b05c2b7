"""Image files in a folder tree, as sorted columns that are read by position.

Hidden files and ``__MACOSX`` folders are left out. A file takes its name and about ten bytes, not a Python object.

Shapes: N files; F folders that hold files themselves.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step, track

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# Number of names held as Python objects at a time.
CHUNK = 65_536


@dataclass(eq=False)
class Listing:
    """All images below ``root``, sorted by folder, then name. Picklable.

    folders: F sorted paths below the root, separated by "/"; the root itself is "". folder_N: (N,) int32, index of each
    file's folder, ascending. names: N file names.
    """

    root: str
    folders: list[str]
    folder_N: NDArray[np.int32]
    names: pa.LargeStringArray
    remote: bool = field(default=False, init=False)
    _digest: str = field(default="", init=False, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def folder(self, position: int) -> str:
        """The folder of a file, below the root."""
        return self.folders[self.folder_N[position]]

    def name(self, position: int) -> str:
        """The path of a file, below the root."""
        return _joined(self.folder(position), self.names[position].as_py())

    def where(self, position: int) -> str:
        """The full path of a file, for messages."""
        return f"{self.root}/{self.name(position)}"

    def read(self, position: int) -> bytes:
        """The bytes of a file. Raises the system's error if it cannot be read."""
        return Path(self.where(position)).read_bytes()

    def digest(self) -> str:
        """Hash of the name, size and modification time of every file.

        Cost: one disk access per file on the first call.
        """
        if not self._digest:
            self._digest = digest_of(self._stamped(), len(self))
        return self._digest

    def stamp(self, position: int, name: str) -> str:
        """A text that changes with a file's content. name: the path below the root."""
        return file_stamp(f"{self.root}/{name}")

    def _stamped(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            for position, name in enumerate(self.names[start : start + CHUNK].to_pylist(), start):
                folder = self.folder(position)
                yield f"{folder}/{name}\0{self.stamp(position, _joined(folder, name))}\n"


def list_folders(root: str, below: Sequence[str] | None = None) -> Listing:
    """List the images of a folder tree.

    below: the folders below the root to list, if they exist; others are not walked. None: all.

    Raises:
        InputError: no images, a folder without images, an unreadable folder, or a name that is not UTF-8.
    """
    path = Path(root).expanduser()
    tops = [""] if below is None else [top for top in below if (path / top).is_dir()]
    found: dict[str, list[pa.Array]] = {}
    with step(f"list {path}", unit="files") as bar:
        for folder, names in walk(path, tops):
            found.setdefault(folder, []).append(pa.array(sorted(names), pa.large_string()))
            bar.advance(len(names))
    filled: dict[str, pa.Array] = {}
    for folder, batches in sorted(found.items()):
        # Arrow sorts by UTF-8 bytes, which is also the order of characters.
        names = batches[0] if len(batches) == 1 else pa.concat_arrays(batches).sort()
        if len(names):
            filled[folder] = names
    folder_N = np.repeat(np.arange(len(filled), dtype=np.int32), list(map(len, filled.values())))
    all_names = pa.chunked_array(filled.values(), pa.large_string()).combine_chunks()
    listing = Listing(str(path), list(filled), folder_N, all_names)
    require_images(root, listing, set(found), "" if below is None else f" (in {', '.join(below)})")
    return listing


def digest_of(lines: Iterable[str], total: int) -> str:
    """SHA-256 of the lines, with progress if it takes long."""
    hasher = hashlib.sha256()
    for line in track(lines, "fingerprint", "files", total):
        hasher.update(line.encode())
    return hasher.hexdigest()


def file_stamp(path: str) -> str:
    """Size and modification time of a file, or "missing"."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path object would cost as much as the stat
    except OSError:
        return "missing"
    return f"{status.st_size}:{status.st_mtime_ns}"


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def is_hidden(part: str) -> bool:
    """Whether files and folders of this name are left out."""
    return (part.startswith(".") and part != ".") or part == "__MACOSX"


def walk(root: Path, tops: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with its images, at most ``CHUNK`` at a time. Follows links to folders."""
    ahead = list(tops)
    while ahead:
        folder = ahead.pop()
        names: list[str] = []
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    is_folder = _is_folder(entry)
                    if is_hidden(entry.name) or not (is_folder or entry.name.lower().endswith(SUFFIXES)):
                        continue
                    if not entry.name.isascii():
                        _require_utf8(entry)
                    if is_folder:
                        _refuse_loop(entry)
                        ahead.append(_joined(folder, entry.name))
                    else:
                        names.append(entry.name)
                    if len(names) == CHUNK:
                        yield folder, names
                        names = []
        except OSError as error:
            raise InputError(f"cannot read folder {error.filename}: {error.strerror}") from error
        yield folder, names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a broken link
        return False


def _refuse_loop(entry: os.DirEntry[str]) -> None:
    if entry.is_symlink() and Path(entry.path).parent.resolve().is_relative_to(Path(entry.path).resolve()):
        raise InputError(f"the link {entry.path} leads to a folder above it, which is an endless loop: remove the link")


def _require_utf8(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError as error:
        folder = os.path.dirname(entry.path)  # noqa: PTH120 - the same without a second object
        raise InputError(
            f"the name {os.fsencode(entry.name)!r} in {folder} is not UTF-8: rename it (convmv renames many files)"
        ) from error


def require_images(root: str, listing: Listing, seen: set[str], places: str = "") -> None:
    """Raises InputError if there are no images, or if a ``seen`` folder has none, not even in subfolders."""
    if not len(listing):
        expected = ", ".join(SUFFIXES[:3])
        raise InputError(f"no images in {root}{places}: expected files such as {expected} in a folder per class")
    filled = {above for folder in listing.folders for above in _ancestors(folder)}
    parents = {above for folder in seen for above in _ancestors(folder)[1:]}
    if empty := sorted(seen - filled - parents):
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        named = ", ".join(map(repr, empty[:3]))
        raise InputError(f"empty class in {root}: no images in {named}{more}; add images or remove the folder")


def _ancestors(folder: str) -> list[str]:
    """The folder itself, its parent, and so on to the root, ""."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
