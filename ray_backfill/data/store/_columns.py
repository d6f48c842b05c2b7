"""Validated columns of Parquet files as arrays; errors name the file, the column and the first offending rows.

Vector columns are read one row group at a time, into memory or, if they are large, into a mapped temporary file.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core import memory
from ray_backfill.core.errors import InputError
from ray_backfill.core.memory import no_room
from ray_backfill.core.parquet import open_checked, reading
from ray_backfill.core.progress import step, track
from ray_backfill.engine.systems import FloatArray

_BATCH_ROWS = 65_536
_PIECE_BYTES = 64 << 20


def part_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"{path} is missing; it must be a Parquet file or a folder of Parquet parts")
    return files


def as_id_lists(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[Any]]:
    """Return a column of lists of ids as one array per row; a missing list counts as empty."""
    ids, row_of = _flattened(column, file, name, "ids", "id")
    values = as_ids(ids, file, name) if len(ids) else np.empty(0, np.int64)
    return _by_row(values, row_of, len(column))


def as_grades(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[np.float64]]:
    """Return a column of lists of finite numbers above 0 as one array per row; a missing list counts as empty."""
    numbers, row_of = _flattened(column, file, name, "numbers", "number")
    values = as_numbers(numbers, file, name)
    _check_above_zero(values, row_of, file, name)
    return _by_row(values, row_of, len(column))


def _flattened(
    column: pa.ChunkedArray, file: Path, name: str, things: str, thing: str
) -> tuple[pa.ChunkedArray, NDArray[np.int64]]:
    """All values of a column of lists, and the row of each."""
    if not is_list(plain_type(column.type)):
        raise InputError(f"{file}, column {name!r} must hold lists of {things}, not {in_words(column.type)}")
    column = plain(column)
    row_of = np.repeat(np.arange(len(column)), pc.fill_null(pc.list_value_length(column), 0).to_numpy())
    values = pc.list_flatten(column)
    holes = np.unique(row_of[values.is_null().to_numpy()])
    if len(holes):
        raise InputError(f"{file}, column {name!r}: missing {thing} in row {some(holes)}")
    return values, row_of


def _by_row(values: NDArray[Any], row_of: NDArray[np.int64], rows: int) -> list[NDArray[Any]]:
    return np.split(values, np.searchsorted(row_of, np.arange(1, rows))) if rows else []


def as_ids(column: pa.ChunkedArray, file: Path, name: str) -> NDArray[Any]:
    """Return a column of integers (whole numbers of any type) as int64, or a column of strings."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)  # pandas' sign for a missing integer
    no_nulls(column, file, name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return np.asarray(column.to_pylist(), dtype=str)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"{file}, column {name!r} must hold integers or text, not {in_words(kind)}; convert it")
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        if pa.types.is_integer(kind):
            raise InputError(f"{file}, column {name!r}: an integer needs more than 64 bits; use text") from error
        raise InputError(f"{file}, column {name!r} must hold integers or text, not fractions; convert it") from error


def as_numbers(column: pa.ChunkedArray, file: Path, name: str, dtype: type = np.float64) -> NDArray[Any]:
    column = plain(column)
    no_nulls(column, file, name)
    try:
        values: NDArray[Any] = column.cast(pa.from_numpy_dtype(dtype)).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{file}, column {name!r} must hold numbers, not {in_words(column.type)}") from error
    return values


def as_weights(column: pa.ChunkedArray, file: Path, name: str) -> NDArray[np.float64]:
    """Return a column of finite numbers above 0."""
    values = as_numbers(column, file, name)
    _check_above_zero(values, np.arange(len(values)), file, name)
    return values


def _check_above_zero(values: NDArray[np.float64], row_of: NDArray[np.int64], file: Path, name: str) -> None:
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise InputError(
            f"{file}, column {name!r}: {values[bad[0]]:g} in row {some(np.unique(row_of[bad]))}; it must hold finite "
            "numbers above 0"
        )


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return categories (dictionaries) and extension types, such as tensors, as the values that they stand for."""
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``plain`` columns."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


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
        "text": lambda of: pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of),
        "dates or times": pa.types.is_temporal,
        "structures": pa.types.is_struct,
        "no values at all": pa.types.is_null,
    }
    return next((words for words, is_this in is_of.items() if is_this(kind)), "bytes")


def kind_of(values: NDArray[Any]) -> str:
    """Return what an array of ids or labels holds, for a message."""
    return "text" if values.dtype.kind == "U" else "numbers"


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def no_nulls(column: pa.ChunkedArray | pa.Array, file: Path, name: str, first_row: int = 0) -> None:
    if column.null_count:
        rows = np.flatnonzero(np.asarray(column.is_null()))
        raise InputError(f"{file}, column {name!r}: missing value in row {some(first_row + rows)}; fill or drop them")


def some(rows: NDArray[Any]) -> str:
    """List the first three offending rows or ids, for a message."""
    return ", ".join(str(row) for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def read_rows(files: Sequence[Path], first: int, last: int, names: Sequence[str]) -> dict[str, FloatArray]:
    """Read the vectors of rows first .. last - 1, counted over all files, one row group at a time."""
    opened = [open_checked(file) for file in files]
    columns = {name: _Vectors(name, last - first, float_type(name, opened, files)) for name in names}
    with step("read", last - first, "vectors") as bar:
        for file, row, batch in _batches_between(files, opened, first, last, names):
            for name, column in columns.items():
                column.add(batch.column(name), file, row)
            bar.advance(len(batch))
    return {name: column.array() for name, column in columns.items()}


def _batches_between(
    files: Sequence[Path], opened: Sequence[pq.ParquetFile], first: int, last: int, names: Sequence[str]
) -> Iterator[tuple[Path, int, pa.RecordBatch]]:
    """Rows first .. last - 1 of all files: the file, the number in it of the batch's first row, and the batch."""
    before = 0  # rows of the files and row groups so far
    for file, parquet in zip(files, opened, strict=True):
        start_of_file = before
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if before < last and before + rows > first:
                at = before
                for batch in _batches(file, parquet, group, names):
                    begin, end = max(first - at, 0), min(last - at, len(batch))
                    if begin < end:
                        yield file, at + begin - start_of_file, batch.slice(begin, end - begin)
                    at += len(batch)
            before += rows


def _batches(file: Path, parquet: pq.ParquetFile, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with reading(file):
        yield from parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(names))


def is_vectors(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return is_list(kind) and pa.types.is_floating(kind.value_type)


def float_type(name: str, opened: Sequence[pq.ParquetFile], files: Sequence[Path]) -> type[np.floating]:
    """Return float16 if all files hold float16, else float32."""
    types = [plain_type(parquet.schema_arrow.field(name).type) for parquet in opened]
    for file, kind in zip(files, types, strict=True):
        if not is_vectors(kind):
            raise InputError(
                f"{file}, column {name!r} must hold lists of numbers (float16 or float32), not {in_words(kind)}"
            )
    return np.float16 if all(pa.types.is_float16(kind.value_type) for kind in types) else np.float32


class _Vectors:
    """A vector column that is filled in pieces: in memory, or in an unnamed temporary file if it is large."""

    def __init__(self, name: str, rows: int, dtype: type[np.floating]) -> None:
        self.name, self.rows, self.dtype, self.filled = name, rows, dtype, 0
        self.width: int | None = None
        self.first_file = Path()

    def add(self, column: pa.Array, file: Path, first_row: int) -> None:
        """Append the next rows, which start at row first_row of ``file``."""
        vectors = as_vectors(column, file, self.name, first_row, self.dtype)
        if self.width is None:
            self.width, self.first_file = vectors.shape[1], file
            if self.rows * self.width * np.dtype(self.dtype).itemsize > memory.MAPPED_BYTES:
                # The file exists as long as its map.
                self.file: IO[bytes] | None = TemporaryFile()  # noqa: SIM115
            else:
                self.file, self.memory = None, np.empty((self.rows, self.width), self.dtype)
        if vectors.shape[1] != self.width:
            raise InputError(
                f"{file}, column {self.name!r}: {vectors.shape[1]} dimensions in row {first_row}, but {self.width} in "
                f"{self.first_file}; all rows need the same number"
            )
        if self.file is None:
            self.memory[self.filled : self.filled + len(vectors)] = vectors
        else:
            _write_temporary(self.file, vectors)
        self.filled += len(vectors)

    def array(self) -> FloatArray:
        assert self.width is not None
        assert self.filled == self.rows
        if self.file is None:
            return self.memory
        return np.memmap(self.file, self.dtype, mode="r", shape=(self.rows, self.width))


def vector_column(vectors_ND: NDArray[Any]) -> pa.FixedSizeListArray:
    """Convert embeddings to an Arrow column of lists, which every Parquet reader understands.

    Args:
        vectors_ND: (N, d) numbers; their type is kept.
    """
    flat = np.ascontiguousarray(vectors_ND).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors_ND.shape[1])


def vectors_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return the (N, d) numbers of a column that ``vector_column`` made."""
    lists = column.combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, lists.type.list_size)


def _write_temporary(file: IO[bytes], vectors: NDArray[np.floating]) -> None:
    try:
        file.write(np.ascontiguousarray(vectors).data)
        file.flush()  # so that a full disk is noticed here rather than when the map is created
    except OSError as error:
        raise no_room(error) from error


def as_vectors(array: pa.Array, file: Path, name: str, first_row: int, dtype: type[np.floating]) -> NDArray[Any]:
    """Return some rows of a vector column as a validated (n, d) array of ``dtype``."""
    no_nulls(array, file, name, first_row)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if not pa.types.is_fixed_size_list(array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        ragged = np.flatnonzero(lengths != lengths[0])
        if len(ragged):
            raise InputError(
                f"{file}, column {name!r}: lists of different lengths, {lengths[0]} in row {first_row} but "
                f"{lengths[ragged[0]]} in row {some(first_row + ragged)}; all rows need the same number of dimensions"
            )
    values = array.flatten()
    if not len(values):
        raise InputError(f"{file}, column {name!r}: the lists are empty; each needs at least one number")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        vectors: NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(len(array), -1)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise InputError(
            f"{file}, column {name!r}: NaN or infinite values in row {some(first_row + bad)}; drop them (simulate "
            "--drop-broken leaves such rows out)"
        )
    return vectors


def add_to_digest(digest: Any, array: NDArray[Any]) -> None:
    """Feed type, shape and values of an array to a hash, in pieces."""
    digest.update(f"{array.dtype}{array.shape}".encode())
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pieces = range(0, len(numbers), _PIECE_BYTES)
    for i in track(pieces, "fingerprint", "x 64 MB"):
        digest.update(numbers[i : i + _PIECE_BYTES].data)
