"""Columns of a split by their names: those of the data contract, validated, and any others, in plain values.

A split is a Parquet file or a folder of part files. Errors name the file, the column and the first offending rows.
Vectors are read by ``vectors``.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.schema import footers, open_checked, read_checked, reading
from ray_backfill.core.store_path import regular_file
from ray_backfill.data.words import called, words_of
from ray_backfill.engine.systems import IntArray

# The columns of vectors that every folder has: the models that are compared.
MODELS = ("old", "new")
# Columns that reports show of single queries and items.
TEXT, IMAGE = "text", "image"
# Rows that are decoded at a time: when single rows are picked, and of a column of texts.
_PICKED_ROWS, _TEXT_ROWS = 1024, 1 << 16

# A column: of each file of a split, its values.
Parts = list[tuple[Path, pa.ChunkedArray]]


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return categories (dictionaries) and extension types, such as tensors, as the values that they stand for."""
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``plain`` columns."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def in_words(kind: pa.DataType) -> str:
    """Return a type of a column in words, for a message."""
    kind = plain_type(kind)
    if is_list(kind):
        return f"lists of {in_words(kind.value_type)}"
    is_of: dict[str, Callable[[pa.DataType], bool]] = {
        "true/false values": pa.types.is_boolean,
        "integers": pa.types.is_integer,
        "fractions": pa.types.is_floating,
        "decimal numbers": pa.types.is_decimal,
        "text": is_text,
        "dates or times": pa.types.is_temporal,
        "structures": pa.types.is_struct,
        "no values at all": pa.types.is_null,
    }
    return next((words for words, is_this in is_of.items() if is_this(kind)), "bytes")


def kind_of(values: NDArray[Any]) -> str:
    """Return what an array of ids or labels holds, for a message."""
    return "text" if values.dtype.kind == "U" else "numbers"


def unknown(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether a label is -1, which means unknown."""
    return labels == -1 if labels.dtype.kind == "i" else np.zeros(len(labels), bool)


def native(values: NDArray[Any]) -> NDArray[Any]:
    """The values as Arrow can have them: in the machine's order of bytes, and numbers of at most 64 bits."""
    return values.astype(np.float64 if values.dtype == np.longdouble else values.dtype.newbyteorder("="), copy=False)


def some(rows: NDArray[Any]) -> str:
    """List the first three offending rows or ids, for a message."""
    return ", ".join(str(row) for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def as_ids(column: pa.ChunkedArray, file: Path | str, name: str) -> NDArray[Any]:
    """Return a column of integers (whole numbers of any type) as int64, or a column of strings."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)  # pandas' sign for a missing integer
    _no_nulls(column, file, name)
    if is_text(kind):
        return np.asarray(column.to_pylist(), dtype=str)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"{called(file, name)} must hold integers or text, not {in_words(kind)}; convert it")
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        if pa.types.is_integer(kind):
            raise InputError(f"{called(file, name)}: an integer needs more than 64 bits; use text") from error
        raise InputError(f"{called(file, name)} must hold integers or text, not fractions; convert it") from error


def as_numbers(column: pa.ChunkedArray, file: Path | str, name: str, dtype: type = np.float64) -> NDArray[Any]:
    """Return a column of numbers without gaps."""
    column = plain(column)
    _no_nulls(column, file, name)
    try:
        values: NDArray[Any] = column.cast(pa.from_numpy_dtype(dtype)).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{called(file, name)} must hold numbers, not {in_words(column.type)}") from error
    return values


def as_weights(column: pa.ChunkedArray, file: Path | str, name: str) -> NDArray[np.float64]:
    """Return a column of finite numbers above 0."""
    values = as_numbers(column, file, name)
    _check_above_zero(values, np.arange(len(values)), file, name)
    return values


def as_id_lists(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[Any]]:
    """Return a column of lists of ids as one array per row; a missing list counts as empty."""
    ids, row_of = _flattened(column, file, name, "id")
    values = as_ids(ids, file, name) if len(ids) else np.empty(0, np.int64)
    return _by_row(values, row_of, len(column))


def as_grades(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[np.float64]]:
    """Return a column of lists of finite numbers above 0 as one array per row; a missing list counts as empty."""
    numbers, row_of = _flattened(column, file, name, "number")
    values = as_numbers(numbers, file, name)
    _check_above_zero(values, row_of, file, name)
    return _by_row(values, row_of, len(column))


def _flattened(column: pa.ChunkedArray, file: Path, name: str, thing: str) -> tuple[pa.ChunkedArray, NDArray[np.int64]]:
    """All values of a column of lists, and the row of each."""
    if not is_list(plain_type(column.type)):
        raise InputError(f"{called(file, name)} must hold lists of {thing}s, not {in_words(column.type)}")
    column = plain(column)
    row_of = np.repeat(np.arange(len(column)), pc.fill_null(pc.list_value_length(column), 0).to_numpy())
    values = pc.list_flatten(column)
    holes = np.unique(row_of[values.is_null().to_numpy()])
    if len(holes):
        raise InputError(f"{called(file, name)}: missing {thing} in row {some(holes)}")
    return values, row_of


def _by_row(values: NDArray[Any], row_of: NDArray[np.int64], rows: int) -> list[NDArray[Any]]:
    return np.split(values, np.searchsorted(row_of, np.arange(1, rows))) if rows else []


def _check_above_zero(values: NDArray[np.float64], row_of: NDArray[np.int64], file: Path | str, name: str) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise InputError(
            f"{called(file, name)}: {values[bad[0]]:g} in row {some(np.unique(row_of[bad]))}; it must hold finite "
            "numbers above 0"
        )


def _no_nulls(column: pa.ChunkedArray, file: Path | str, name: str) -> None:
    if column.null_count:
        rows = np.flatnonzero(np.asarray(column.is_null()))
        raise InputError(f"{called(file, name)}: missing value in row {some(rows)}; fill or drop them")


# Column -> the function that reads and validates it. Fingerprints follow this order.
COLUMNS: Mapping[str, Callable[[pa.ChunkedArray, Path, str], Any]] = {
    "id": as_ids,
    "label": as_ids,
    "group": as_ids,
    "camera": as_ids,
    "old_score": as_numbers,
    "old_entropy": as_numbers,
    "old_margin": as_numbers,
    "old_class": as_ids,
    "sigma": as_numbers,
    "popularity": as_numbers,
    "order_score": as_numbers,
    "positives": as_id_lists,
    "ignored": as_id_lists,
    "grades": as_grades,
    "weight": as_weights,
}
# Read of the split whose items are the queries. Without them, a folder has the fingerprint that it always had.
OF_QUERIES = ("grades", "weight")
NUMBERS = tuple(name for name, read in COLUMNS.items() if read is as_numbers)


def part_files(path: Path) -> list[Path]:
    """The files of a split, in the order of their names. Raises InputError if there are none."""
    files = sorted(regular_file(path).glob("*.parquet")) or [path] * path.is_file()
    if not files:
        raise InputError(f"{path} is missing; it must be a Parquet file or a folder of Parquet parts")
    return files


def names_in(file: Path) -> list[str]:
    """The names of a file's columns."""
    (footer,) = footers([file])
    return footer.schema.to_arrow_schema().names


def read_known(file: Path, needed: Sequence[str], are_queries: bool) -> dict[str, Any]:
    """Read and validate the known columns of one file except the vectors, as arrays or lists of id arrays.

    needed: columns of vectors that must be there.
    """
    opened = open_checked(file)
    there = opened.schema_arrow.names
    for column in ("id", *needed):
        if column not in there:
            lacking = f"{file} has no column {column!r}; it has: {', '.join(there)}"
            is_before = column == "new" and "old" in there and "gallery.parquet" in file.parts
            raise InputError(f"{lacking}; ray-backfill sample and forecast need few of them" if is_before else lacking)
    present = [name for name in there if name in COLUMNS and (are_queries or name not in OF_QUERIES)]
    for name in (*present, *needed):
        if there.count(name) > 1:
            raise InputError(f"{file} has two columns {name!r}; remove one")
    with reading(file):
        table = opened.read(columns=present)
        return {name: COLUMNS[name](table[name], file, name) for name in present}


def join_known(files: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The known columns of all part files. Raises InputError if they differ in columns or in the types of ids."""
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(
                f"{file} has the columns {', '.join(sorted(part))}, but {files[0]} has {', '.join(sorted(parts[0]))}; "
                "all parts need the same columns"
            )
        for name in (name for name in part if COLUMNS[name] is as_ids):
            kinds = [kind_of(columns[name]) for columns in (part, parts[0])]
            if kinds[0] != kinds[1]:
                raise InputError(
                    f"column {name!r} holds {kinds[0]} in {file}, but {kinds[1]} in {files[0]}; use one type"
                )
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(values, np.ndarray)
        else [row for part in parts for row in part[name]]
        for name, values in parts[0].items()
    }


def read_parts(path: Path, name: str) -> Parts:
    """Read a column of a split, in plain values; missing ones stay missing.

    Raises:
        InputError: A file does not have it.
    """
    files = part_files(path)
    for file in files:
        there = names_in(file)
        if name not in there:
            more = words_of(file)["more columns"]
            raise InputError(f"{called(file)} has no column {name!r}; it has: {', '.join(there)}{more}")
    return [(file, plain(read_checked(file, [name])[name])) for file in files]


def joined(read: Parts, path: Path, name: str) -> pa.ChunkedArray:
    """A column of all files of a split, without a copy. Raises InputError if the files have different types."""
    parts = [part for _, part in read if len(part)]
    kinds = {part.type: None for part in parts}
    if len(kinds) > 1:
        words = " and ".join(in_words(kind) for kind in kinds)
        raise InputError(f"column {name!r} of {path} holds {words} in different files; use one type")
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=next(iter(kinds), pa.null()))


def read_picked(path: Path, name: str, rows: IntArray) -> list[Any]:
    """Read single rows of a column of a split, as Python values; None for all if a file does not have the column.

    Decodes only the row groups that hold these rows, in bounded pieces. rows: (K,) places in the split.
    """
    value_of: dict[int, Any] = {}
    wanted, first = np.unique(rows), 0
    for file in part_files(path):
        opened = open_checked(file)
        if name not in opened.schema_arrow.names:
            return [None] * len(rows)
        for group in range(opened.num_row_groups):
            last = first + opened.metadata.row_group(group).num_rows
            if not ((wanted >= first) & (wanted < last)).any():
                first = last
                continue
            with reading(file):
                for batch in opened.iter_batches(_PICKED_ROWS, [group], [name]):
                    own = wanted[(wanted >= first) & (wanted < first + len(batch))]
                    values = plain(pa.chunked_array([batch.column(0).take(pa.array(own - first))]))
                    value_of |= dict(zip(own.tolist(), values.to_pylist(), strict=True))
                    first += len(batch)
    return [value_of.get(int(row)) for row in rows]


def texts_fingerprint(paths: Sequence[Path]) -> str:
    """A hash of the texts and the paths of images in these splits; "" if there are none. Not of stored images."""
    marks = [mark for path in paths for name in (TEXT, IMAGE) if (mark := _fingerprint_of_texts(path, name))]
    return fingerprint(*marks) if marks else ""


def _fingerprint_of_texts(path: Path, name: str) -> str:
    """A hash of a column of texts; "" if a file does not have it, or it holds something else."""
    marks = []
    for file in part_files(path):
        opened = open_checked(file)
        if name not in opened.schema_arrow.names or plain_type(opened.schema_arrow.field(name).type) != pa.string():
            return ""
        with reading(file):
            for batch in opened.iter_batches(_TEXT_ROWS, columns=[name]):
                marks.append(fingerprint(plain(pa.chunked_array(batch.columns)).to_pylist()))
    return fingerprint(*marks)
