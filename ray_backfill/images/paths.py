"""Image files at known places, local or in an object store: nothing is listed.

A place is a local path or a URI: ``file:///folder/a%20b.jpg`` (percent signs as in any URI), ``s3://bucket/key`` or
``gs://bucket/key``, where keys are written as they are, with spaces and percent signs. Options follow a "?":
``anonymous=true`` for public buckets, and what pyarrow takes there, such as ``region=eu-west-1`` (else the bucket is
asked for it) and ``endpoint_override=host:port``. Credentials are found as pyarrow finds them: environment,
configuration files, the machine's role.
"""

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from ray_backfill.errors import InputError
from ray_backfill.images.folders import CHUNK, digest_of, file_stamp

SCHEMES = ("file", "s3", "gs", "gcs")
_SCHEME = r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://"
# Opening may ask the store where the bucket is: one thread asks, the others wait.
_OPENING = threading.Lock()


@dataclass
class Paths:
    """Files by their paths below ``root``, a local folder or a URI. Can be pickled.

    root: "" if all paths stand for themselves, as absolute paths and URIs always do, whatever the root. paths: N, in
    any order, also the same one twice. remote: whether any file is reached over a network.

    Raises:
        InputError: a URI of a kind that cannot be read.
    """

    root: str
    paths: pa.StringArray | pa.LargeStringArray
    _systems: dict[tuple[int, str], tuple[fs.FileSystem, str]] = field(default_factory=dict, repr=False, compare=False)
    _digest: str = field(default="", repr=False, compare=False)
    remote: bool = field(init=False, repr=False, compare=False)
    _root: tuple[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        uris = self.paths.filter(pc.match_substring(self.paths, "://"))
        schemes = pc.struct_field(pc.extract_regex(uris, _SCHEME), "scheme").unique().to_pylist()
        found = {_scheme(self.root)} | {(scheme or "").lower() for scheme in schemes}
        unknown = sorted(found - {"", *SCHEMES})
        if unknown:
            raise InputError(
                f"cannot read images at {unknown[0]}://: copy them to a local folder, or to one of "
                + ", ".join(f"{scheme}://" for scheme in SCHEMES)
            )
        self.remote = bool(found - {"", "file"})
        self._root = _split(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, position: int) -> str:
        """The path as it was given, without passwords."""
        return _public(self.paths[position].as_py())

    def where(self, position: int) -> str:
        """The whole path or URI of one file, without passwords."""
        store, path = self._find(self.paths[position].as_py())
        return f"{_public(store)}/{path}" if store else path

    def read(self, position: int) -> bytes:
        """The bytes of one file. Raises what the system or pyarrow raises when it cannot be read.

        Raises:
            InputError: the object store cannot be opened at all.
        """
        store, path = self._find(self.paths[position].as_py())
        if not store:
            return Path(path).read_bytes()
        system, bucket = self._system(store)
        with system.open_input_stream(f"{bucket}/{path}", compression=None) as stream:
            return stream.readall()

    def digest(self) -> str:
        """Changes with any path; with the size or the time of a local file, but not of a remote one.

        A remote file that is overwritten in place goes unnoticed: to ask for each one's size would take hours.
        Cost: one disk access a local file, the first time.
        """
        if not self._digest:
            self._digest = digest_of(self._stamped(), len(self))
        return self._digest

    def _stamped(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            for given in self.paths[start : start + CHUNK].to_pylist():
                store, path = self._find(given)
                yield f"{_public(given)}\0{'remote' if store else file_stamp(path)}\n"

    def _find(self, path: str) -> tuple[str, str]:
        """The store of a file, ``scheme://bucket?options`` ("" if local), and its path there."""
        if "://" in path and _scheme(path):
            return _split(path)
        store, folder = self._root
        if not store:  # an absolute path stays itself
            return "", os.path.join(folder, path)  # noqa: PTH118 - a Path object for each file is dear
        if path.startswith("/"):
            return "", path
        return store, f"{folder}/{path.removeprefix('./')}".lstrip("/")

    def _system(self, store: str) -> tuple[fs.FileSystem, str]:
        """The opened file system of a store, and the bucket's path in it."""
        # Connections do not survive a fork, so each process opens its own.
        key = (os.getpid(), store)
        with _OPENING:
            if key not in self._systems:
                try:
                    self._systems[key] = open_system(store)
                except (OSError, ValueError, NotImplementedError) as error:
                    reason = " ".join(str(error).split())
                    raise InputError(
                        f"cannot open {_public(store)} ({reason}): check its name, its options and your credentials"
                    ) from error
        return self._systems[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_systems": {}}


def open_system(store: str) -> tuple[fs.FileSystem, str]:
    """The file system of ``scheme://bucket?options``, and the bucket's path in it."""
    base, _, query = store.partition("?")
    scheme, _, bucket = base.partition("://")
    options = dict(parse_qsl(query))
    anonymous = options.pop("anonymous", "false").lower() == "true"
    if anonymous and scheme == "s3":  # pyarrow's URIs cannot say so
        region = options.pop("region", None) or fs.resolve_s3_region(bucket)
        return fs.S3FileSystem(anonymous=True, region=region, **options), bucket
    if anonymous:
        bucket = f"anonymous@{bucket}"
    system, path = fs.FileSystem.from_uri(f"{scheme}://{bucket}" + (f"?{urlencode(options)}" if options else ""))
    return system, path.rstrip("/")


def _scheme(place: str) -> str:
    match = re.match(_SCHEME, place)
    return match[1].lower() if match else ""


def _split(place: str) -> tuple[str, str]:
    """The store of a place, ``scheme://bucket?options`` ("" if local), and the path there."""
    scheme = _scheme(place)
    if scheme == "file":
        return "", unquote("/" + place[len("file://") :].partition("/")[2])
    if not scheme:
        return "", place
    base, mark, options = place[len(scheme) + len("://") :].partition("?")
    bucket, _, path = base.partition("/")
    return f"{scheme}://{bucket}{mark}{options}", path.rstrip("/")


def _public(place: str) -> str:
    """A URI without its options, nor the key and secret that may stand before the bucket (s3://KEY:SECRET@bucket)."""
    return re.sub(r"://[^/@]*@", "://", place.partition("?")[0], count=1) if _scheme(place) else place
