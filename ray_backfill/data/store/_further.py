"""Columns beyond the data contract, read when they are asked for: whole ones, or single rows of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.parquet import open_checked, read_checked, reading
from ray_backfill.core.runkey import fingerprint
from ray_backfill.data.store._columns import in_words, part_files, plain, plain_type
from ray_backfill.engine.systems import IntArray

# Columns that reports show of single queries and items.
TEXT, IMAGE = "text", "image"
# Rows that are decoded at a time when single rows are picked.
_ROWS = 1024
# Rows of a column of texts that are read at a time.
_BATCH = 1 << 16

# A column: of each file of a split, its values.
Parts = list[tuple[Path, pa.ChunkedArray]]


def has_column(path: Path, name: str) -> bool:
    """Whether all files of a split have this column."""
    return all(name in open_checked(file).schema_arrow.names for file in part_files(path))


def read_parts(path: Path, name: str) -> Parts:
    """Read a column of a split, in plain values; missing ones stay missing.

    Raises:
        InputError: A file does not have it.
    """
    files = part_files(path)
    for file in files:
        there = open_checked(file).schema_arrow.names
        if name not in there:
            raise InputError(f"{file} has no column {name!r}; it has: {', '.join(there)}")
    return [(file, plain(read_checked(file, [name])[name])) for file in files]


def joined(read: Parts, path: Path, name: str) -> pa.ChunkedArray:
    """A column of all files of a split, without a copy. Raises InputError if the files have different types."""
    parts = [part for _, part in read]
    kinds = {part.type: None for part in parts if len(part)}
    if len(kinds) > 1:
        words = " and ".join(in_words(kind) for kind in kinds)
        raise InputError(f"column {name!r} of {path} holds {words} in different files; use one type")
    chunks = [chunk for part in parts if len(part) for chunk in part.chunks]
    return pa.chunked_array(chunks, type=next(iter(kinds), pa.null()))


def shown_fingerprint(paths: Sequence[Path]) -> str:
    """A hash of the texts and the paths of images in these splits; "" if there are none. Not of stored images."""
    found = [mark for path in paths for name in (TEXT, IMAGE) if (mark := _fingerprint_of_texts(path, name))]
    return fingerprint(*found) if found else ""


def _fingerprint_of_texts(path: Path, name: str) -> str:
    """A hash of a column of texts; "" if a file does not have it, or it holds something else."""
    marks = []
    for file in part_files(path):
        opened = open_checked(file)
        if name not in opened.schema_arrow.names or plain_type(opened.schema_arrow.field(name).type) != pa.string():
            return ""
        with reading(file):
            for batch in opened.iter_batches(_BATCH, columns=[name]):
                marks.append(fingerprint(plain(pa.chunked_array(batch.columns)).to_pylist()))
    return fingerprint(*marks)


def read_picked(path: Path, name: str, rows: IntArray) -> list[Any]:
    """Read single rows of a column of a split, as Python values; None for all if a file does not have the column.

    Decodes only the row groups that hold these rows, in bounded pieces. rows: (K,) places in the split.
    """
    found: dict[int, Any] = {}
    wanted, first = np.unique(rows), 0
    for file in part_files(path):
        opened = open_checked(file)
        if name not in opened.schema_arrow.names:
            return [None] * len(rows)
        for group in range(opened.num_row_groups):
            last = first + opened.metadata.row_group(group).num_rows
            own = wanted[(wanted >= first) & (wanted < last)]
            if len(own):
                with reading(file):
                    batches = opened.iter_batches(_ROWS, [group], [name])
                    found |= _picked((batch.column(0) for batch in batches), own, first)
            first = last
    return [found.get(int(row)) for row in rows]


def _picked(pieces: Iterable[pa.Array], rows: IntArray, first: int) -> dict[int, Any]:
    """Row -> value, for these rows of the pieces, which start at row ``first``."""
    found = dict[int, Any]()
    for piece in pieces:
        own: Sequence[int] = rows[(rows >= first) & (rows < first + len(piece))].tolist()
        if own:
            values = piece.take(pa.array([row - first for row in own]))
            plain_values = values if values.type == plain_type(values.type) else values.cast(plain_type(values.type))
            found |= dict(zip(own, plain_values.to_pylist(), strict=True))
        first += len(piece)
    return found
