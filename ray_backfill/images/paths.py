"""Image files at known paths, local or in an object store: nothing is listed.

A path is a local path or a URI: ``file:///folder/a%20b.jpg`` (percent-encoded), ``s3://bucket/key`` or
``gs://bucket/key``, where keys are literal, with spaces and percent signs. Options follow a "?": ``anonymous=true`` for
public buckets, and pyarrow's options, such as ``region=eu-west-1`` (otherwise looked up) and
``endpoint_override=host:port``; such addresses are read by pyarrow, all others as folders in a store are. Both find
credentials in the environment, in configuration files and in the machine's role.
"""

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from ray_backfill.core.errors import InputError
from ray_backfill.core.stores import Bucket, open_system
from ray_backfill.images.listing import CHUNK, file_stamp
from ray_backfill.images.source import Files

SCHEMES = ("file", "s3", "gs", "gcs")
_SCHEME = r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://"
# Opening may look up the bucket's region: one thread does so, the others wait.
_OPENING = threading.Lock()


@dataclass
class Paths(Files):
    """Files by their paths below ``root``, a local folder or a URI.

    root: not applied to absolute paths and URIs; may be "" if all paths are such. paths: N, in any order, duplicates
    allowed.

    Raises:
        InputError: a URI has an unsupported scheme.
    """

    root: str
    paths: pa.StringArray | pa.LargeStringArray
    _systems: dict[tuple[int, str], tuple[fs.FileSystem, str]] = field(default_factory=dict, repr=False, compare=False)
    _root: tuple[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        uris = self.paths.filter(pc.match_substring(self.paths, "://"))
        schemes = pc.struct_field(pc.extract_regex(uris, _SCHEME), "scheme").unique().to_pylist()
        schemes_there = {_scheme(self.root)} | {(scheme or "").lower() for scheme in schemes}
        unknown = sorted(schemes_there - {"", *SCHEMES})
        if unknown:
            raise InputError(
                f"cannot read images at {unknown[0]}://: copy them to a local folder, or to one of "
                + ", ".join(f"{scheme}://" for scheme in SCHEMES)
            )
        self.remote = bool(schemes_there - {"", "file"})
        self._root = _split(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, position: int) -> str:
        """The path as given, without credentials."""
        return _public(self.paths[position].as_py())

    def where(self, position: int) -> str:
        store, path = self._find(self.paths[position].as_py())
        return f"{_public(store)}/{path}" if store else path

    def read(self, position: int) -> bytes:
        store, path = self._find(self.paths[position].as_py())
        if not store:
            return Path(path).read_bytes()
        if re.fullmatch(r"(s3|gs)://[^?@]+", store):  # the others have options of pyarrow's own
            scheme, name = store.split("://")
            return Bucket(scheme, name).read(path)[0]
        system, bucket = self._system(store)
        with system.open_input_stream(f"{bucket}/{path}", compression=None) as stream:
            return stream.readall()

    def stamped(self) -> Iterator[str]:
        """Paths, with size and modification time of local files only.

        A remote file overwritten in place goes unnoticed, as requesting every size would take hours.
        """
        for start in range(0, len(self), CHUNK):
            for given in self.paths[start : start + CHUNK].to_pylist():
                store, path = self._find(given)
                yield f"{_public(given)}\0{'remote' if store else file_stamp(path)}\n"

    def _find(self, path: str) -> tuple[str, str]:
        """The store of a file, ``scheme://bucket?options`` ("" if local), and its path in the store."""
        if "://" in path and _scheme(path):
            return _split(path)
        store, folder = self._root
        if not store:  # an absolute path is kept as it is
            return "", os.path.join(folder, path)  # noqa: PTH118 - a Path object per file is expensive
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


def _scheme(place: str) -> str:
    match = re.match(_SCHEME, place)
    return match[1].lower() if match else ""


def _split(place: str) -> tuple[str, str]:
    """The store of a path, ``scheme://bucket?options`` ("" if local), and the path in the store."""
    scheme = _scheme(place)
    if scheme == "file":
        return "", unquote("/" + place[len("file://") :].partition("/")[2])
    if not scheme:
        return "", place
    base, mark, options = place[len(scheme) + len("://") :].partition("?")
    bucket, _, path = base.partition("/")
    return f"{scheme}://{bucket}{mark}{options}", path.rstrip("/")


def _public(place: str) -> str:
    """A URI without options and without a key and secret in front of the bucket (s3://KEY:SECRET@bucket)."""
    return re.sub(r"://[^/@]*@", "://", place.partition("?")[0], count=1) if _scheme(place) else place
