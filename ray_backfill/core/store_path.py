"""Folders and files in object storage as paths, so that all code that takes a Path takes s3:// and gs://."""

import os
import re
import stat
from collections.abc import Generator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from time import time
from typing import IO, Any, TypeGuard
from urllib.parse import unquote

from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.stores import PUBLIC, SCHEMES, Bucket, Entry, is_copy


def path_of(given: str | Path, or_source: bool = False) -> Path:
    """The path that a user gave: a StorePath for s3://bucket/folder and gs://bucket/folder, a local one otherwise.

    Keys of a store are taken as they are: %20 is not a space. In file:///folder it is.

    A Path has made s3:/bucket of s3://bucket. or_source: take any other URI, too, as a path that does not exist.

    Raises:
        InputError: A URI of another kind, or one that has options or names no bucket; or its libraries are missing.
    """
    if isinstance(given, StorePath):
        return given
    uri = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", str(given), re.DOTALL)
    if uri is not None and uri[1] == "file":
        return Path("/" + unquote(uri[2]))
    if uri is None or (or_source and (uri[1] not in SCHEMES or "?" in uri[2])):
        return Path(given)
    if uri[1] not in SCHEMES:
        raise InputError(f"{uri[1]}://{uri[2]} is neither on a disk nor in object storage; give a path, s3:// or gs://")
    bucket = uri[2].partition("/")[0]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]+", bucket):
        remedy = "credentials come from the environment, never from an address" if "@" in bucket else "name a bucket"
        raise InputError(f"{uri[1]}:// needs a bucket, such as {uri[1]}://bucket/folder; {remedy}")
    if "?" in uri[2] or ".." in uri[2].split("/"):
        how = f"set AWS_ENDPOINT_URL or AWS_REGION instead, or name a public bucket in {PUBLIC}"
        raise InputError(f"{given}: an address has no options and no ..; {how}")
    if lacking := why_not_installed("obstore", "boto3"):
        raise InputError(f"{uri[1]}:// {lacking}")
    return StorePath(f"{uri[1]}://{uri[2]}")


def in_store(path: Path) -> "TypeGuard[StorePath]":
    """Whether a path is in object storage."""
    return isinstance(path, StorePath)


def regular_file(path: Path) -> Path:
    """The path, if a regular file or nothing is there. Raises InputError for pipes and devices, which may not end."""
    if not in_store(path) and path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device; write its content to a file, and give that")
    return path


class StorePath(PosixPath):
    """A folder or file in a bucket: ``s3://bucket/folder/file``.

    Names and sizes come from the store at each question. Whoever opens it, or hands it to a library that opens files
    (``os.fspath``), gets a local copy as new as the object; of a folder, copies of all that is below. Whole files are
    written by ``stages.write_whole``. A folder is there if something is below it. It is plain data: another node
    makes copies of its own. A path that a listing gave is what was listed: its size, and a copy that is there already.
    """

    listed: Entry | None = None

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.parts[0].rstrip(":"), self.parts[1] if len(self.parts) > 1 else "")

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])

    def __str__(self) -> str:
        return f"{self.parts[0]}//{'/'.join(self.parts[1:])}" if self.parts else "."

    def __fspath__(self) -> str:
        if self.listed and is_copy(self.listed, copy := self.bucket.copy_of(self.key)):
            with suppress(FileNotFoundError):  # another process has just made room
                os.utime(copy, (time(), copy.stat().st_mtime))
                return str(copy)
        entry = self.bucket.head(self.key)
        if entry is not None:
            return str(self.bucket.fetch([entry])[0])
        if not (entries := self.bucket.below(self.key)):
            raise FileNotFoundError(2, os.strerror(2), str(self))
        self.bucket.fetch(entries)
        return str(self.bucket.copy_of(self.key))

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> "StorePath":
        return self

    def resolve(self, strict: bool = False) -> "StorePath":
        return self

    def expanduser(self) -> "StorePath":
        return self

    def relative_to(self, *other: Any) -> Path:  # type: ignore[override]
        """A plain path: only a whole address is one of a store."""
        return Path(*super().relative_to(*other).parts)

    def entry(self) -> Entry | None:
        """What the store says of the object; None if there is none, as of a folder."""
        return self.bucket.head(self.key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Of an object, the nanoseconds of its last change stand for its content: stores tell whole seconds only."""
        if (entry := self.listed or self.entry()) is not None:
            facts = (stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, entry.size, *(3 * [int(entry.modified)]))
            return os.stat_result(facts, {"st_mtime_ns": int(entry.modified) * 10**9 + entry.stamp % 10**9})
        if self.is_dir():
            return os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        raise FileNotFoundError(2, os.strerror(2), str(self))

    # Later versions of Python ask the operating system here.
    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.entry() is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return not self.key or any(self.bucket.children(self.key))

    def iterdir(self) -> Generator["StorePath", None, None]:
        folders, entries = self.bucket.children(self.key)
        listed = dict.fromkeys(folder.rstrip("/") for folder in folders) | {entry.key: entry for entry in entries}
        return (self._of(key, listed[key]) for key in sorted(listed))

    def glob(self, pattern: str, **_: Any) -> Generator["StorePath", None, None]:
        """Files below that match, as on a disk; of folders, only those named by a pattern of one part."""
        if "/" not in pattern and "**" not in pattern:
            return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))
        parts = pattern.split("/")
        below = [(path, path.parts[len(self.parts) :]) for path in self.sizes()]
        return (
            path for path, names in below
            if len(names) == len(parts) and all(map(fnmatchcase, names, parts))
        )  # fmt: skip

    def rglob(self, pattern: str, **_: Any) -> Generator["StorePath", None, None]:
        return (path for path in self.sizes() if fnmatchcase(path.name, pattern))

    def sizes(self) -> dict["StorePath", int]:
        """All files below and their bytes, by one listing."""
        return {self._of(entry.key, entry): entry.size for entry in self.bucket.below(self.key)}

    def _of(self, key: str, listed: Entry | None = None) -> "StorePath":
        path = StorePath(f"{self.parts[0]}//{self.parts[1]}/{key}")
        path.listed = listed
        return path

    def read_bytes(self) -> bytes:
        return self.bucket.read(self.key)[0]

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        self.bucket.put(self.key, bytes(data))
        return len(data)

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def open(self, mode: str = "r", *arguments: Any, **named: Any) -> IO[Any]:  # type: ignore[override]
        if not set(mode) <= set("rbt"):
            raise NotImplementedError(f"{self} is written as a whole, by write_whole")
        return Path(self.__fspath__()).open(mode, *arguments, **named)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """A store has no empty folders."""

    def rmdir(self) -> None:
        """A store has no empty folders."""

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and self.entry() is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        self.bucket.delete(self.key)

    def replace(self, target: Any) -> "StorePath":
        """Copy by the store, then delete: a process that dies in between leaves both."""
        self.bucket.copy(self.key, target.key)
        self.bucket.delete(self.key)
        return self._of(target.key)

    rename = replace
