"""Image files at known paths, local or in an object store: nothing is listed.

A path is a local path or a URI: ``file:///folder/a%20b.jpg`` (percent-encoded), ``s3://bucket/key`` or
``gs://bucket/key``, where keys are literal, with spaces and percent signs.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ray_backfill.core.store_path import StorePath, in_store, path_of
from ray_backfill.images.listing import CHUNK, file_stamp
from ray_backfill.images.source import Files

_URI = r"^(?P<bucket>[A-Za-z][A-Za-z0-9+.-]*://[^/]*)"


@dataclass
class Paths(Files):
    """Files by their paths below ``root``, a local folder or a URI.

    root: not applied to absolute paths and URIs; may be "" if all paths are such. paths: N, in any order, duplicates
    allowed.

    Raises:
        InputError: a URI of another kind, or one with options or credentials.
    """

    root: str
    paths: pa.StringArray | pa.LargeStringArray
    _root: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        uris = self.paths.filter(pc.match_substring_regex(self.paths, _URI))
        buckets = pc.struct_field(pc.extract_regex(uris, _URI), "bucket").unique().to_pylist()
        with_options = uris.filter(pc.match_substring(uris, "?")).slice(0, 1).to_pylist()
        checked = [path_of(uri) for uri in (self.root, *buckets, *with_options)]
        self._root, self.remote = checked[0], any(map(in_store, checked))

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, position: int) -> str:
        return str(self.paths[position].as_py())

    def where(self, position: int) -> str:
        return str(self._find(self.name(position)))

    def read(self, position: int) -> bytes:
        place = self._find(self.name(position))
        return (Path(place) if isinstance(place, str) else place).read_bytes()

    def stamped(self) -> Iterator[str]:
        """Paths, with size and modification time of local files only.

        A remote file overwritten in place goes unnoticed, as requesting every size would take hours.
        """
        for start in range(0, len(self), CHUNK):
            for given in self.paths[start : start + CHUNK].to_pylist():
                place = self._find(given)
                yield f"{given}\0{file_stamp(place) if isinstance(place, str) else 'remote'}\n"

    def _find(self, given: str) -> str | StorePath:
        """Where a file is: a text if that is local, as a Path object per file is expensive."""
        if "://" in given and re.match(_URI, given):
            return str(path_of(given)) if given.startswith("file:") else StorePath(given)
        if in_store(self._root) and not given.startswith("/"):
            return self._root / given
        return os.path.join(str(self._root) if self.root else "", given)  # noqa: PTH118
