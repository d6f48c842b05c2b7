"""Columns of Parquet files as arrays, checked; errors name file, column and the first offending rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.errors import InputError


def part_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"{path} is missing; it must be a Parquet file or a folder of Parquet parts")
    return files


def open_parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from error


def as_id_lists(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[Any]]:
    """A column of lists of ids, one array a row; a missing list is an empty one."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise InputError(f"{file}, column {name!r} must hold lists of ids, not {column.type}")
    rows = [row or [] for row in column.to_pylist()]
    holes = np.flatnonzero([None in row for row in rows])
    if len(holes):
        raise InputError(f"{file}, column {name!r}: missing id in row {some(holes)}")
    return [np.asarray(row, dtype=None if row else np.int64) for row in rows]


def as_ids(column: pa.ChunkedArray, file: Path, name: str) -> NDArray[Any]:
    """Integers as int64, anything else as strings."""
    no_nulls(column, file, name)
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise InputError(f"{file}, column {name!r}: integers above int64; write them as strings") from error
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_pylist(), dtype=str)
    raise InputError(f"{file}, column {name!r} must be integers or strings, not {column.type}")


def as_integers(column: pa.ChunkedArray, file: Path, name: str) -> NDArray[Any]:
    return as_numbers(column, file, name, np.int64)


def as_numbers(column: pa.ChunkedArray, file: Path, name: str, dtype: type = np.float64) -> NDArray[Any]:
    no_nulls(column, file, name)
    try:
        values: NDArray[Any] = column.cast(pa.from_numpy_dtype(dtype)).to_numpy()
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}, column {name!r} must hold numbers ({np.dtype(dtype)}), not {column.type}") from error
    return values


def no_nulls(column: pa.ChunkedArray | pa.Array, file: Path, name: str, first_row: int = 0) -> None:
    if column.null_count:
        rows = np.flatnonzero(np.asarray(column.is_null()))
        raise InputError(f"{file}, column {name!r}: missing value in row {some(first_row + rows)}")


def some(rows: NDArray[Any]) -> str:
    """The first three of the offending rows or ids, for a message."""
    return ", ".join(str(row) for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
