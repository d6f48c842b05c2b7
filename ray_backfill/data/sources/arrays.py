"""Arrays in files: ``.npy``, ``.npz`` and FAISS indexes, one for each column, row by row.

id=ids.npy,old=old.npy,new=new.faiss      columns from files
vectors.npz                               its arrays are the columns
index.faiss                               the columns id (its own ids, or row numbers) and vector
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.copies import with_addresses
from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of, regular_file
from ray_backfill.data.columns import native
from ray_backfill.data.sources import BATCH_ROWS, Source, SourceKind

_FAISS = (".faiss", ".index")
_SUFFIXES = (".npy", ".npz", *_FAISS)


class _Column(NamedTuple):
    """rows: their number. of: returns rows first .. last - 1. width: numbers in a row; 0 for single values."""

    rows: int
    of: Callable[[int, int], NDArray[Any]]
    width: int


def _open(text: str) -> Source:
    notes: list[str] = []
    columns: dict[str, _Column] = {}
    files = []
    for part in text.split(","):
        name, _, file = part.rpartition("=")
        path = path_of(file)
        if not path.exists():
            raise InputError(f"{file} does not exist")
        if path.resolve() in files:
            raise InputError(f"{text} names {file} twice")
        files.append(path.resolve())
        for own, column in _columns_of(path, notes).items():
            # A named file with one column of values has that name; an index's ids count if no other ids are given.
            key = name if name and own in ("array", "vector") else own
            if name and own == "id" and "id" in columns:
                continue
            columns[key] = column
    if not columns:
        raise InputError(f"{text} holds no array")
    rows = {name: column.rows for name, column in columns.items()}
    total, *others = set(rows.values())
    if others:
        raise InputError(f"{text}: columns of different lengths ({rows}); give one value for each item")
    mark = blake2b("\n".join(f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files).encode(), digest_size=12)

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        for first in range(skip, total, BATCH_ROWS):
            last = min(first + BATCH_ROWS, total)
            yield pa.record_batch([_arrow(columns[name], first, last) for name in names], names=list(names))

    types = {name: _arrow(column, 0, min(1, total)).type for name, column in columns.items()}
    return Source(text, types, total, read, mark.hexdigest(), tuple(notes))


def _columns_of(path: Path, notes: list[str]) -> dict[str, _Column]:
    regular_file(path)
    if path.suffix in _FAISS:
        from ray_backfill.engine.index.stored import read_stored_vectors

        stored = read_stored_vectors(Path(os.fspath(path)))
        notes.extend([with_addresses(stored.note)] if stored.note else [])
        return {
            "id": _Column(stored.rows, lambda first, last: stored.ids[first:last], 0),
            "vector": _Column(stored.rows, stored.vectors, stored.dim),
        }
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                if twice := [name for name, times in Counter(arrays.files).items() if times > 1]:
                    raise InputError(f"{path} holds two arrays {twice[0]!r}; write it again with numpy.savez")
                return {name: _of_array(arrays[name], f"{path}, array {name!r}") for name in arrays.files}
        return {"array": _of_array(np.load(path, mmap_mode="r", allow_pickle=False), str(path))}
    except InputError:
        raise
    except Exception as error:  # a header that lies ends in any of a dozen types, MemoryError among them
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as numbers or text: {why}; write it again with numpy.save") from error


def _of_array(array: NDArray[Any], where: str) -> _Column:
    if array.ndim not in (1, 2) or array.dtype.kind not in "iufU" or array.shape[1:] == (0,):
        raise InputError(f"{where}: shape {array.shape} of {array.dtype}; give (N,) or (N, d) numbers, or (N,) text")
    width = array.shape[1] if array.ndim == 2 else 0
    return _Column(len(array), lambda first, last: np.asarray(array[first:last]), width)


def _arrow(column: _Column, first: int, last: int) -> pa.Array:
    values = native(np.ascontiguousarray(column.of(first, last)))
    if not column.width:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), column.width)


def _is_arrays(text: str) -> bool:
    of_a_disk = re.sub(r"(?<![^,=])(s3|gs)://", "", text)
    return "://" not in of_a_disk and all(part.endswith(_SUFFIXES) for part in text.split(","))


SOURCES = (SourceKind("arrays", "id=ids.npy,old=old.npy,new=new.npy, vectors.npz, index.faiss", _is_arrays, _open),)
