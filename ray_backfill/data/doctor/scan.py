"""Looks at every row of a split once, whatever is wrong with it. Shapes: N rows, d dimensions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.parquet import open_checked, reading
from ray_backfill.core.progress import step
from ray_backfill.data.store import COLUMNS, hash_rows, part_files
from ray_backfill.data.store.loose import MISSING, holds_vectors, read_vectors_loosely

_BATCH_ROWS = 16_384
# Rows of which a mean is kept, to find where a column changes its model.
BLOCK_ROWS = 1_024
# Vectors that are kept for a closer look.
_SAMPLE = 8_192


@dataclass(frozen=True)
class VectorColumn:
    """What a column of vectors holds.

    problems: (N,) a key of ``store.loose.PROBLEMS`` for each row, or FINE. norms: (N,) lengths, 0 where there is no
    vector. hashes: (N,) equal for equal vectors. block_means: (B, d) means of ``BLOCK_ROWS`` rows that follow each
    other. sample: (n, d) vectors from all over the column; sample_rows: (n,) their rows.
    """

    dim: int
    dtype: str
    problems: NDArray[np.uint8]
    norms: NDArray[np.float32]
    hashes: NDArray[np.uint64]
    block_means: NDArray[np.float64]
    sample: NDArray[np.float32]
    sample_rows: NDArray[np.int64]


@dataclass(frozen=True)
class SplitScan:
    """What a split holds.

    rows: N. ids: (N,) ids, None if the column cannot be read. others: the further columns of the data contract that
    can be read. unreadable: column -> why it cannot be read.
    """

    path: Path
    rows: int
    ids: NDArray[Any] | None
    vectors: Mapping[str, VectorColumn]
    others: Mapping[str, Any] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def scan_split(path: Path) -> SplitScan:
    """Read a split: a Parquet file or a folder of them. Cost: one pass, and some 20 bytes a row and column of vectors.

    Raises:
        InputError: It is missing or cannot be read as Parquet.
    """
    files = part_files(path)
    opened = [open_checked(file) for file in files]
    rows = sum(file.metadata.num_rows for file in opened)
    schema = opened[0].schema_arrow
    others: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, read in COLUMNS.items():
        if name not in schema.names:
            continue
        try:
            with reading(path):
                column = pa.chunked_array([chunk for file in opened for chunk in file.read([name]).column(0).chunks])
            others[name] = read(column, path, name)
        except InputError as problem:
            unreadable[name] = str(problem)
    vectors = {
        name: _scan_vectors(path, opened, name, rows)
        for name in schema.names
        if name not in COLUMNS and holds_vectors(schema.field(name).type) and _is_list(schema.field(name).type)
    }
    return SplitScan(path, rows, others.pop("id", None), vectors, others, unreadable)


def _is_list(kind: pa.DataType) -> bool:
    return not (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _scan_vectors(path: Path, opened: list[pq.ParquetFile], name: str, rows: int) -> VectorColumn:
    problems, norms = np.full(rows, MISSING, np.uint8), np.zeros(rows, np.float32)
    hashes = np.zeros(rows, np.uint64)
    sums: list[NDArray[np.float64]] = []
    every = max(1, rows // _SAMPLE)
    sample, sample_rows, dim, at, dtype = [], [], 0, 0, ""
    with step(f"look at {path.name}, {name}", rows, "rows") as bar:
        for array in _arrays(path, opened, name):
            found, wrong = read_vectors_loosely(array, dim)
            dim = dim or found.shape[1]
            here = slice(at, at + len(array))
            problems[here], dtype = wrong, str(found.dtype)
            if dim:
                values = np.nan_to_num(found.astype(np.float32), posinf=0, neginf=0)
                norms[here] = np.linalg.norm(values, axis=1)
                hashes[here] = hash_rows(values)
                sums += [values[i : i + BLOCK_ROWS].mean(axis=0, dtype=np.float64)
                         for i in range(0, len(values), BLOCK_ROWS)]  # fmt: skip
                kept = np.arange(-at % every, len(values), every)
                sample.append(values[kept])
                sample_rows.append(at + kept)
            at += len(array)
            bar.advance(len(array))
    if not sample:
        none = np.empty((0, 0))
        return VectorColumn(0, dtype, problems, norms, hashes, none, none.astype(np.float32), np.empty(0, np.int64))
    return VectorColumn(
        dim, dtype, problems, norms, hashes, np.stack(sums), np.concatenate(sample), np.concatenate(sample_rows)
    )


def _arrays(path: Path, opened: list[pq.ParquetFile], name: str) -> Iterator[pa.Array]:
    with reading(path):
        for file in opened:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
                yield batch.column(0)
