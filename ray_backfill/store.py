"""Embeddings in Parquet: reading, checking, writing. No computation.

The data contract: a folder with ``gallery.parquet`` and, if there are any, ``queries.parquet`` and ``train.parquet``,
each a file or a folder of parts that are read in the order of their names. Columns: ``id`` (int64 or string), ``old``
and ``new`` (lists of float16 or float32, one length per column); optional ``label`` and ``group`` (of queries, for
subgroups; integers or strings), ``camera``, ``old_score`` (the old classifier's top probability), ``order_score`` (the
user's own, low first); queries may carry ``positives`` and ``ignored`` (lists of gallery ids) instead of labels.
Without a queries file the gallery queries itself, each item excluded from its own answer.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill.errors import InputError
from ray_backfill.files import write_whole
from ray_backfill.systems import FloatArray

# Columns of vectors above this size are mapped from a temporary file.
MAPPED_BYTES = 1 << 30
_BATCH_ROWS = 65_536
_PIECE_BYTES = 64 << 20
_NAME_COLUMNS = ("label", "group")
_INTEGER_COLUMNS = ("camera",)
_FLOAT_COLUMNS = ("old_score", "order_score")
_ID_LIST_COLUMNS = ("positives", "ignored")


@dataclass(frozen=True)
class EmbeddingTable:
    """One split, read and checked; N rows. Columns that the files lack are None. Lists of ids stay lists of ids.

    old, new: (N, d) float16 or float32, as stored; large ones are mapped from a temporary file.
    """

    path: Path
    id: NDArray[Any]
    old: FloatArray
    new: FloatArray
    label: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    camera: NDArray[np.int64] | None = None
    old_score: NDArray[np.float64] | None = None
    order_score: NDArray[np.float64] | None = None
    positives: list[NDArray[Any]] | None = None
    ignored: list[NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class EmbeddingFolder:
    """A folder of the data contract, read and checked. queries is None where the gallery queries itself."""

    path: Path
    gallery: EmbeddingTable
    queries: EmbeddingTable | None
    train: EmbeddingTable | None

    def fingerprint(self) -> str:
        """Changes with any value of any column of any split. Cost: one pass over the bytes."""
        digest = hashlib.blake2b(digest_size=12)
        for table in (self.gallery, self.queries, self.train):
            for column in fields(EmbeddingTable):
                values = getattr(table, column.name, None)
                if column.name == "path" or values is None:
                    continue
                for array in [values] if isinstance(values, np.ndarray) else values:
                    digest.update(f"{column.name}{array.dtype}{array.shape}".encode())
                    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                    pieces = range(0, len(numbers), _PIECE_BYTES)
                    for i in tqdm(pieces, desc="fingerprint", unit=" x 64 MB", delay=2, leave=False):
                        digest.update(numbers[i : i + _PIECE_BYTES].data)
        return digest.hexdigest()


def read_folder(path: Path) -> EmbeddingFolder:
    """Read and check a folder of the data contract (see the module).

    Raises:
        InputError: missing file or column, missing or duplicate ids, NaN, ragged lists, unknown positives; the message
            names file, column and first offending rows.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a folder that holds gallery.parquet")
    gallery = read_table(path / "gallery.parquet")
    queries, train = (
        read_table(path / f"{name}.parquet") if (path / f"{name}.parquet").exists() else None
        for name in ("queries", "train")
    )
    for other in (queries, train):
        for column in ("old", "new"):
            mine, theirs = getattr(gallery, column).shape[1], getattr(other or gallery, column).shape[1]
            if other is not None and mine != theirs:
                raise InputError(
                    f"column {column!r} has {theirs} dimensions in {other.path} and {mine} in {gallery.path}"
                )
    return EmbeddingFolder(path, gallery, queries, train)


def read_table(path: Path) -> EmbeddingTable:
    """Read one split: a Parquet file, or a folder of part files in the order of their names.

    Vectors are read piece by piece and keep their type; above MAPPED_BYTES a column goes to a temporary file (in
    TMPDIR) that is mapped into memory and vanishes with the process.
    """
    files = _part_files(path)
    read = {file: _read_columns(file) for file in files}
    files = [file for file in files if len(read[file]["id"])]
    if not files:
        raise InputError(f"{path} has no rows")
    parts = [read[file] for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(f"{file} has columns {sorted(part)}, but {files[0]} has {sorted(parts[0])}")
        for name in {"id", *_NAME_COLUMNS} & part.keys():
            kinds = part[name].dtype, parts[0][name].dtype
            if kinds[0].kind != kinds[1].kind:
                raise InputError(f"column {name!r} holds {kinds[0]} in {file}, but {kinds[1]} in {files[0]}")
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(parts[0][name], np.ndarray)
        else [row for part in parts for row in part[name]]
        for name in parts[0]
    }
    ids, counts = np.unique(columns["id"], return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}, column 'id': duplicates, first {_some(ids[counts > 1])}; ids must be unique")
    old, new = _read_vectors(files, 0, len(columns["id"]))
    return EmbeddingTable(path, old=old, new=new, **columns)


def read_vectors(path: Path, first: int, last: int) -> tuple[FloatArray, FloatArray]:
    """Columns ``old`` and ``new`` of the rows first .. last - 1 of a split, and no other rows."""
    return _read_vectors(_part_files(path), first, last)


def _part_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"{path} is missing; it must be a Parquet file or a folder of Parquet parts")
    return files


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from error


def _read_columns(file: Path) -> dict[str, Any]:
    """The known columns of one Parquet file but the vectors, as arrays (lists for lists of ids), checked."""
    opened = _open(file)
    there = opened.schema_arrow.names
    for column in ("id", "old", "new"):
        if column not in there:
            raise InputError(f"{file} has no column {column!r}; it has: {', '.join(there)}")
    present = [
        name for name in there if name in EmbeddingTable.__dataclass_fields__ and name not in ("old", "new", "path")
    ]
    table = opened.read(columns=present)
    columns: dict[str, Any] = {}
    for name in present:
        if name == "id" or name in _NAME_COLUMNS:
            columns[name] = _ids(table[name], file, name)
        elif name in _INTEGER_COLUMNS:
            columns[name] = _numbers(table[name], file, name, np.int64)
        elif name in _FLOAT_COLUMNS:
            columns[name] = _numbers(table[name], file, name, np.float64)
        elif name in _ID_LIST_COLUMNS:
            columns[name] = _id_lists(table[name], file, name)
    return columns


def _read_vectors(files: Sequence[Path], first: int, last: int) -> tuple[FloatArray, FloatArray]:
    """Rows first .. last - 1 of all files one after the other, row group by row group."""
    opened = [_open(file) for file in files]
    columns = {name: _Vectors(name, last - first, _float_type(name, opened, files)) for name in ("old", "new")}
    before = 0  # rows of the files and row groups so far
    bar = tqdm(total=last - first, desc="read", unit=" vectors", delay=2, leave=False, dynamic_ncols=True)
    for file, parquet in zip(files, opened, strict=True):
        start_of_file = before
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if before < last and before + rows > first:
                at = before
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=["old", "new"]):
                    begin, end = max(first - at, 0), min(last - at, len(batch))
                    if begin < end:
                        for name, column in columns.items():
                            column.add(batch.column(name).slice(begin, end - begin), file, at + begin - start_of_file)
                        bar.update(end - begin)
                    at += len(batch)
            before += rows
    bar.close()
    return columns["old"].array(), columns["new"].array()


def _float_type(name: str, opened: Sequence[pq.ParquetFile], files: Sequence[Path]) -> type[np.floating]:
    """float16 if all files hold that, else float32."""
    types = [parquet.schema_arrow.field(name).type for parquet in opened]
    for file, kind in zip(files, types, strict=True):
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_floating(kind.value_type):
            raise InputError(f"{file}, column {name!r} must hold lists of float16 or float32, not {kind}")
    return np.float16 if all(pa.types.is_float16(kind.value_type) for kind in types) else np.float32


class _Vectors:
    """One column of vectors, filled piece by piece: in memory, or in an unnamed temporary file if it is large."""

    def __init__(self, name: str, rows: int, dtype: type[np.floating]) -> None:
        self.name, self.rows, self.dtype, self.filled = name, rows, dtype, 0
        self.width: int | None = None
        self.first_file = Path()

    def add(self, column: pa.Array, file: Path, first_row: int) -> None:
        """The next rows, which are first_row and following of ``file``."""
        vectors = _vectors(column, file, self.name, first_row, self.dtype)
        if self.width is None:
            self.width, self.first_file = vectors.shape[1], file
            if self.rows * self.width * np.dtype(self.dtype).itemsize > MAPPED_BYTES:
                # It lives as long as its map.
                self.file: IO[bytes] | None = TemporaryFile()  # noqa: SIM115
            else:
                self.file, self.memory = None, np.empty((self.rows, self.width), self.dtype)
        if vectors.shape[1] != self.width:
            raise InputError(
                f"{file}, column {self.name!r}: {vectors.shape[1]} dimensions in row {first_row}, but {self.width} in "
                f"{self.first_file}"
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
        self.file.flush()
        return np.memmap(self.file, self.dtype, mode="r", shape=(self.rows, self.width))


def _write_temporary(file: IO[bytes], vectors: NDArray[np.floating]) -> None:
    try:
        file.write(np.ascontiguousarray(vectors).data)
    except OSError as error:
        raise InputError(
            f"no room for large embeddings in {gettempdir()} ({error}); set TMPDIR to a larger disk"
        ) from error


def _id_lists(column: pa.ChunkedArray, file: Path, name: str) -> list[NDArray[Any]]:
    """A column of lists of ids, one array a row; a missing list is an empty one."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise InputError(f"{file}, column {name!r} must hold lists of ids, not {column.type}")
    rows = [row or [] for row in column.to_pylist()]
    holes = np.flatnonzero([None in row for row in rows])
    if len(holes):
        raise InputError(f"{file}, column {name!r}: missing id in row {_some(holes)}")
    return [np.asarray(row, dtype=None if row else np.int64) for row in rows]


def _ids(column: pa.ChunkedArray, file: Path, name: str) -> NDArray[Any]:
    """Integers as int64, anything else as strings."""
    _no_nulls(column, file, name)
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise InputError(f"{file}, column {name!r}: integers above int64; write them as strings") from error
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_pylist(), dtype=str)
    raise InputError(f"{file}, column {name!r} must be integers or strings, not {column.type}")


def _numbers(column: pa.ChunkedArray, file: Path, name: str, dtype: type) -> NDArray[Any]:
    _no_nulls(column, file, name)
    try:
        values: NDArray[Any] = column.cast(pa.from_numpy_dtype(dtype)).to_numpy()
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}, column {name!r} must hold numbers ({np.dtype(dtype)}), not {column.type}") from error
    return values


def _vectors(array: pa.Array, file: Path, name: str, first_row: int, dtype: type[np.floating]) -> NDArray[Any]:
    """Some rows of a column of lists as (n, d) of ``dtype``, checked."""
    _no_nulls(array, file, name, first_row)
    if not pa.types.is_fixed_size_list(array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        ragged = np.flatnonzero(lengths != lengths[0])
        if len(ragged):
            raise InputError(
                f"{file}, column {name!r}: lists of different length, {lengths[0]} in row {first_row} but "
                f"{lengths[ragged[0]]} in row {_some(first_row + ragged)}"
            )
    values = array.flatten()
    if not len(values):
        raise InputError(f"{file}, column {name!r}: the lists are empty")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        vectors: NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(len(array), -1)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise InputError(f"{file}, column {name!r}: NaN or infinite values in row {_some(first_row + bad)}")
    return vectors


def _no_nulls(column: pa.ChunkedArray | pa.Array, file: Path, name: str, first_row: int = 0) -> None:
    if column.null_count:
        rows = np.flatnonzero(np.asarray(column.is_null()))
        raise InputError(f"{file}, column {name!r}: missing value in row {_some(first_row + rows)}")


def _some(rows: NDArray[Any]) -> str:
    """The first three of the offending rows or ids, for a message."""
    return ", ".join(str(row) for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def vector_column(vectors_ND: FloatArray) -> pa.FixedSizeListArray:
    """(N, d) float16 or float32 as an Arrow column that every Parquet reader understands."""
    flat = np.ascontiguousarray(vectors_ND).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors_ND.shape[1])


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file so that it is there whole or not at all."""
    write_whole(path, lambda temporary: pq.write_table(table, temporary))
