"""Vectors from columns of Parquet files and other stores: one reader, which says of each row what is wrong with it.

``decode`` reads whatever it can. ``strict_vectors`` raises the first problem, and names file, column and rows. Columns
of files are read one row group at a time, into memory or, if they are large, into a mapped temporary file.

Shapes: n rows of a piece, N rows of a column, d dimensions.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core import memory
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.schema import open_checked, reading
from ray_backfill.core.store_path import path_of
from ray_backfill.data.columns import in_words, is_list, is_text, part_files, plain_type, some
from ray_backfill.data.words import called, words_of
from ray_backfill.engine.systems import FloatArray, IntArray

_BATCH_ROWS = 65_536
_PART_BYTES = 128 << 20

FINE, MISSING, LENGTH, NOT_FINITE, ZERO = range(5)
# What is wrong with a row, in words.
PROBLEMS: Mapping[int, str] = {
    MISSING: "no vector",
    LENGTH: "another number of dimensions",
    NOT_FINITE: "NaN or infinite values",
    ZERO: "a zero vector",
}


def is_vectors(kind: pa.DataType) -> bool:
    """Whether a column of this type holds vectors in the data contract: lists of float16, float32 or float64."""
    kind = plain_type(kind)
    return is_list(kind) and pa.types.is_floating(kind.value_type)


def may_be_vectors(kind: pa.DataType, or_text: bool = True) -> bool:
    """Whether ``decode`` reads a column of this type: lists of numbers, or text such as ``[0.1, 0.2]``."""
    kind = plain_type(kind)
    if is_list(kind):
        return bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))
    return or_text and is_text(kind)


class Decoded(NamedTuple):
    """vectors: (n, d) float16 or float32, zero where a row has none; d is 0 if no row has one.

    problems: (n,) what is wrong with each row: a key of PROBLEMS, or FINE.
    """

    vectors: NDArray[Any]
    problems: NDArray[np.uint8]


def decode(array: pa.Array, dim: int = 0, dtype: type[np.floating[Any]] | None = None) -> Decoded:
    """Read n rows of a column of vectors, whatever is wrong with some of them.

    Args:
        array: n rows; see ``may_be_vectors``.
        dim: The number of dimensions; 0: that of the first row that has any.
        dtype: By default float16 for lists of float16, float32 for everything else.
    """
    kind = plain_type(array.type)
    if dtype is None:
        dtype = np.float16 if is_list(kind) and pa.types.is_float16(kind.value_type) else np.float32
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    array = array if is_list(array.type) else _parsed(array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    dim = dim or int(next(iter(lengths[lengths > 0]), 0))
    problems = np.where(lengths == dim, FINE, LENGTH).astype(np.uint8)
    problems[np.asarray(array.is_null()) | (lengths == 0)] = MISSING
    fits = problems == FINE
    values = (array if fits.all() else array.filter(pa.array(fits))).flatten()
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond the type become infinite, missing ones NaN
        vectors = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(-1, dim or 1)
    if not fits.all():
        fitting, vectors = vectors, np.zeros((len(array), dim), dtype)
        vectors[fits] = fitting[: int(fits.sum())]
    if not np.isfinite(vectors).all():
        problems[~np.isfinite(vectors).all(axis=1)] = NOT_FINITE
    starts = np.flatnonzero((problems == FINE) & (vectors[:, :1] == 0).any(axis=1))
    problems[starts[~vectors[starts].any(axis=1)]] = ZERO
    return Decoded(vectors, problems)


def _parsed(texts: pa.Array) -> pa.Array:
    """Lists of numbers from texts such as ``[0.1, 0.2]``, ``{0.1,0.2}`` or ``0.1 0.2``; no list for anything else."""

    def numbers(text: str | None) -> list[float] | None:
        if text is None:
            return None
        try:
            return [float(word) for word in text.strip().strip("[]{}()").replace(",", " ").split()]
        except ValueError:
            return None

    return pa.array([numbers(text) for text in texts.to_pylist()], pa.list_(pa.float32()))


def strict_vectors(
    array: pa.Array, file: Path, name: str, first_row: int, dtype: type[np.floating[Any]]
) -> NDArray[Any]:
    """Return n rows of a column, (n, d); zero vectors are allowed. first_row: the number of the first in ``file``.

    Raises:
        InputError: Rows have no vector, different lengths, or values that are not finite.
    """
    vectors, problems = decode(array, dtype=dtype)
    if ((problems != FINE) & (problems != ZERO)).any():
        raise InputError(f"{called(file, name)}: {_first_problem(array, problems, first_row, words_of(file)['drop'])}")
    return vectors


def _first_problem(array: pa.Array, problems: NDArray[np.uint8], first_row: int, drop: str) -> str:
    missing = np.flatnonzero(np.asarray(array.is_null()))
    if len(missing):
        return f"missing value in row {some(first_row + missing)}; fill or drop them"
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    ragged = np.flatnonzero(lengths != lengths[0])
    if len(ragged):
        return (
            f"lists of different lengths, {lengths[0]} in row {first_row} but {lengths[ragged[0]]} in row "
            f"{some(first_row + ragged)}; all rows need the same number of dimensions"
        )
    if not lengths[0]:
        return "the lists are empty; each needs at least one number"
    rows = some(first_row + np.flatnonzero(problems == NOT_FINITE))
    return f"NaN or infinite values in row {rows}; {drop}"


def float_type(name: str, opened: Sequence[pq.ParquetFile], files: Sequence[Path]) -> type[np.floating[Any]]:
    """Return float16 if all files hold float16, else float32. Raises InputError if one holds no vectors."""
    types = [plain_type(parquet.schema_arrow.field(name).type) for parquet in opened]
    for file, kind in zip(files, types, strict=True):
        if not is_vectors(kind):
            raise InputError(
                f"{called(file, name)} must hold lists of numbers (float16 or float32), not {in_words(kind)}"
            )
    return np.float16 if all(pa.types.is_float16(kind.value_type) for kind in types) else np.float32


def read_rows(files: Sequence[Path], first: int, last: int, names: Sequence[str]) -> dict[str, FloatArray]:
    """Read the vectors of rows first .. last - 1, counted over all files, one row group at a time.

    Raises:
        InputError: A column holds no vectors, or a row has a problem; see ``strict_vectors``.
    """
    opened = [open_checked(file) for file in files]
    dtypes = {name: float_type(name, opened, files) for name in names}
    gathered: dict[str, _Gathered] = {}
    with step("read", last - first, "vectors") as bar:
        for file, row, batch in _batches_between(files, opened, first, last, names):
            for name, dtype in dtypes.items():
                vectors = strict_vectors(batch.column(name), file, name, row, dtype)
                if name not in gathered:
                    gathered[name] = _Gathered(last - first, vectors.shape[1], dtype, file)
                column = gathered[name]
                if vectors.shape[1] != column.width:
                    raise InputError(
                        f"{called(file, name)}: {vectors.shape[1]} dimensions in row {row}, but {column.width} in "
                        f"{column.first_file}; all rows need the same number"
                    )
                column.add(vectors)
            bar.advance(len(batch))
    return {name: column.vectors() for name, column in gathered.items()}


def stream_vectors(path: str | Path, *names: str, rows: int | None = None) -> Iterator[list[FloatArray]]:
    """Read vectors in parts, for ``replay_streamed``: of each column (n, d), float16 as it is, all else as float32.

    Args:
        path: Parquet file, or folder of Parquet files in the order of their names.
        names: Columns of vectors, such as "old" and "new".
        rows: Of a part, at least 1; by default as many as have 128 MB of vectors.

    Raises:
        InputError: A column is missing or holds no vectors, or a row has none, or another length, or values that are
            not finite.
    """
    if not names or len(set(names)) < len(names):
        raise InputError(f"name one or more columns of vectors, each once; got {', '.join(names) or 'none'}")
    if rows is not None and rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    files = part_files(path_of(path))
    opened = [open_checked(file) for file in files]
    for file, parquet in zip(files, opened, strict=True):
        known = parquet.schema_arrow.names
        if missing := [name for name in names if name not in known]:
            raise InputError(f"{file} has no column {missing[0]!r}; its columns are {', '.join(known)}")
    dtypes = {name: float_type(name, opened, files) for name in names}
    pieces: list[list[NDArray[Any]]] = []
    size, last = 0, sum(parquet.metadata.num_rows for parquet in opened)
    for file, row, batch in _batches_between(files, opened, 0, last, names):
        piece = [strict_vectors(batch.column(name), file, name, row, dtype) for name, dtype in dtypes.items()]
        for name, first, vectors in zip(names, pieces[0] if pieces else piece, piece, strict=True):
            if vectors.shape[1] != first.shape[1]:
                raise InputError(f"{called(file, name)}: {vectors.shape[1]} dimensions, but {first.shape[1]} before")
        rows = rows or max(1, _PART_BYTES // sum(vectors[0].nbytes for vectors in piece))
        pieces.append(piece)
        size += len(batch)
        while size >= rows:
            whole = [np.concatenate(vectors) for vectors in zip(*pieces, strict=True)]
            yield [vectors[:rows] for vectors in whole]
            pieces, size = [[vectors[rows:] for vectors in whole]], size - rows
    if size:
        yield [np.concatenate(vectors) for vectors in zip(*pieces, strict=True)]


class _Gathered:
    """Vectors that come in pieces: in memory, or, if they are large, in an unnamed temporary file that is mapped.

    Writing the file takes two thirds of the time of filling a map.
    """

    def __init__(self, rows: int, width: int, dtype: type[np.floating[Any]], first_file: Path) -> None:
        self.rows, self.width, self.dtype, self.first_file, self.filled = rows, width, dtype, first_file, 0
        self.file: IO[bytes] | None = None
        if rows * width * np.dtype(dtype).itemsize > memory.MAPPED_BYTES:
            self.file = TemporaryFile()  # noqa: SIM115 - it exists as long as its map
        else:
            self.memory = np.empty((rows, width), dtype)

    def add(self, vectors: NDArray[Any]) -> None:
        if self.file is None:
            self.memory[self.filled : self.filled + len(vectors)] = vectors
        else:
            try:
                self.file.write(np.ascontiguousarray(vectors).data)
                self.file.flush()  # so that a full disk is noticed here rather than when the map is created
            except OSError as error:
                raise memory.no_room(error) from error
        self.filled += len(vectors)

    def vectors(self) -> FloatArray:
        assert self.filled == self.rows
        if self.file is None:
            return self.memory
        return np.memmap(self.file, self.dtype, mode="r", shape=(self.rows, self.width))


def _batches_between(
    files: Sequence[Path], opened: Sequence[pq.ParquetFile], first: int, last: int, names: Sequence[str]
) -> Iterator[tuple[Path, int, pa.RecordBatch]]:
    """Rows first .. last - 1 of all files: the file, the number in it of the batch's first row, and the batch."""
    before = 0  # rows of the files and row groups so far
    for file, parquet in zip(files, opened, strict=True):
        start_of_file = before
        for group in range(parquet.num_row_groups):
            at = before
            before += parquet.metadata.row_group(group).num_rows
            if at >= last or before <= first:
                continue
            with reading(file):
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(names)):
                    begin, end = max(first - at, 0), min(last - at, len(batch))
                    if begin < end:
                        yield file, at + begin - start_of_file, batch.slice(begin, end - begin)
                    at += len(batch)


def take_rows(values: NDArray[Any], rows: IntArray) -> NDArray[Any]:
    """Return some rows of an array. Vectors (N, d) that are large are copied to a mapped temporary file."""
    if values.ndim == 1:
        return values[rows]
    taken = memory.room_for(len(rows), values.shape[1], values.dtype.type)
    for first in range(0, len(rows), _BATCH_ROWS):
        taken[first : first + _BATCH_ROWS] = values[rows[first : first + _BATCH_ROWS]]
    return taken


def hash_rows(vectors: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """(N,) a hash of each row: a sum of its float32 words with random weights.

    Source: multilinear hashing, Carter and Wegman 1979. Two different rows have the same hash once in 2^33 times at
    most, and once in 2^64 times if they differ in the last bit of any number.
    """
    weights = np.random.default_rng(seed).integers(0, 1 << 64, vectors.shape[1], np.uint64)
    same_zeros = vectors.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    return same_zeros.view(np.uint32).astype(np.uint64) @ weights
