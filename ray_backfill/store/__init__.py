"""Embeddings in Parquet: reading, checking, writing. No computation.

The data contract: a folder with ``gallery.parquet`` and, if there are any, ``queries.parquet`` and ``train.parquet``,
each a file or a folder of parts that are read in the order of their names. Columns: ``id`` (int64 or string), ``old``
and ``new`` (lists of float16 or float32, one length per column), and any further column of such lists: the embeddings
of another model of that name; optional ``label`` and ``group`` (of queries, for subgroups; integers or strings; label
-1: nobody knows it), ``camera``; for orders ``old_score``, ``old_entropy``, ``old_margin``, ``old_class`` (of the old
classifier: top probability, entropy, top minus second probability, top class), ``sigma``, ``popularity``,
``order_score`` (the user's own, low first), and any further column of numbers that an order asks for; queries may carry
``positives`` and ``ignored`` (lists of gallery ids) instead of labels. Without a queries file the gallery queries
itself, each item excluded from its own answer. ``classifier.parquet`` may hold the new model's classifier: ``label``,
``weight`` (lists), ``bias``. Other columns, such as ``name``, are for their owner.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.files import write_whole
from ray_backfill.progress import track
from ray_backfill.store._columns import MAPPED_BYTES as MAPPED_BYTES
from ray_backfill.store._columns import (
    as_id_lists,
    as_ids,
    as_integers,
    as_numbers,
    as_vectors,
    float_type,
    is_vectors,
    open_parquet,
    part_files,
    read_rows,
    some,
)
from ray_backfill.store._columns import room_for as room_for
from ray_backfill.systems import FloatArray

SPLITS = ("gallery", "queries", "train", "classifier")
_PIECE_BYTES = 64 << 20
# Column -> how it is read and checked. Fingerprints are made in this order.
_COLUMNS: Mapping[str, Callable[[pa.ChunkedArray, Path, str], Any]] = {
    "id": as_ids,
    "label": as_ids,
    "group": as_ids,
    "camera": as_integers,
    "old_score": as_numbers,
    "old_entropy": as_numbers,
    "old_margin": as_numbers,
    "old_class": as_ids,
    "sigma": as_numbers,
    "popularity": as_numbers,
    "order_score": as_numbers,
    "positives": as_id_lists,
    "ignored": as_id_lists,
}
_NUMBERS = tuple(name for name, read in _COLUMNS.items() if read is as_numbers)


@dataclass(frozen=True)
class EmbeddingTable:
    """One split, read and checked; N rows. Columns that the files lack are None. Lists of ids stay lists of ids.

    vectors: by the model's name (N, d) float16 or float32, as stored; large ones are mapped from a temporary file.
    numbers: by name (N,), those columns of numbers of the data contract that are there.
    """

    path: Path
    id: NDArray[Any]
    vectors: dict[str, FloatArray]
    numbers: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    label: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    camera: NDArray[np.int64] | None = None
    old_class: NDArray[Any] | None = None
    positives: list[NDArray[Any]] | None = None
    ignored: list[NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.id)

    def find_numbers(self, name: str) -> NDArray[np.float64] | None:
        """(N,) any column of numbers, None where the files lack it; one that is not of the data contract is read now.

        Raises:
            InputError: the column does not hold numbers, or not in every row.
        """
        return self.numbers.get(name) if name in _NUMBERS else read_numbers(self.path, name)

    @property
    def old(self) -> FloatArray:
        return self.vectors["old"]

    @property
    def new(self) -> FloatArray:
        return self.vectors["new"]


@dataclass(frozen=True)
class Classifier:
    """A linear classifier on a model's embeddings. label: (C,), unique. weight: (C, d) and bias: (C,) float32."""

    label: NDArray[Any]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddingFolder:
    """A folder of the data contract, read and checked.

    queries: None where the gallery queries itself. models: whose embeddings all splits have. classifier: of the new
    model, None where the folder has none.
    """

    path: Path
    gallery: EmbeddingTable
    queries: EmbeddingTable | None
    train: EmbeddingTable | None
    classifier: Classifier | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Of gallery and queries."""
        return tuple(name for name in self.gallery.vectors if name in (self.queries or self.gallery).vectors)

    def fingerprint(
        self, models: Sequence[str] = ("old", "new"), splits: Sequence[str] = SPLITS, further: Iterable[str] = ()
    ) -> str:
        """Changes with any value of any column of these splits, but for embeddings of other models than these.

        further: columns of numbers of the gallery that are not of the data contract, as far as they are there.
        Cost: one pass over the bytes, the first time.
        """
        digest = hashlib.blake2b(digest_size=12)
        for (split, model, _), of_column in self._digests.items():
            if split in splits and model in ("", *models):
                digest.update(of_column)
        for name in further:
            if name not in _COLUMNS and (numbers := self.gallery.find_numbers(name)) is not None:
                _digest(digest, numbers)
        return digest.hexdigest()

    @cached_property
    def _digests(self) -> dict[tuple[str, str, str], bytes]:
        """By split, model (for vectors) and column."""
        found: dict[tuple[str, str, str], bytes] = {}
        for split in SPLITS:
            table = getattr(self, split)
            for (model, name), values in _columns_of(table).items() if table is not None else ():
                digest = hashlib.blake2b(f"{split} {model} {name}".encode())
                for array in [values] if isinstance(values, np.ndarray) else values or []:
                    _digest(digest, array)
                found[split, model, name] = digest.digest()
        return found


def _columns_of(table: "EmbeddingTable | Classifier") -> dict[tuple[str, str], Any]:
    """By model (for vectors) and name; None for what is not there."""
    if isinstance(table, Classifier):
        return {("", name): values for name, values in vars(table).items()}
    known = {("", name): table.numbers.get(name) if name in _NUMBERS else getattr(table, name) for name in _COLUMNS}
    return known | {(model, "vectors"): vectors for model, vectors in table.vectors.items()}


def _digest(digest: Any, array: NDArray[Any]) -> None:
    digest.update(f"{array.dtype}{array.shape}".encode())
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    pieces = range(0, len(numbers), _PIECE_BYTES)
    for i in track(pieces, "fingerprint", "x 64 MB"):
        digest.update(numbers[i : i + _PIECE_BYTES].data)


def read_folder(
    path: Path, models: Sequence[str] = ("old", "new"), gallery_needs: Sequence[str] = ("old", "new")
) -> EmbeddingFolder:
    """Read and check a folder of the data contract (see the module).

    models: whose embeddings to read; those of others than old and new may be missing. gallery_needs: which embeddings
    the gallery must have: before a backfill it has no new ones.

    Raises:
        InputError: missing file or column, missing or duplicate ids, NaN, ragged lists, unknown positives; the message
            names file, column and first offending rows.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a folder that holds gallery.parquet")
    gallery = read_table(path / "gallery.parquet", models, gallery_needs)
    queries, train = (
        read_table(path / f"{name}.parquet", models) if (path / f"{name}.parquet").exists() else None
        for name in ("queries", "train")
    )
    for other in (queries, train):
        for name, vectors in other.vectors.items() if other else ():
            theirs, mine = vectors.shape[1], gallery.vectors.get(name, vectors).shape[1]
            if other and mine != theirs:
                raise InputError(
                    f"column {name!r} has {theirs} dimensions in {other.path} and {mine} in {gallery.path}"
                )
    return EmbeddingFolder(path, gallery, queries, train, read_classifier(path))


def read_classifier(folder: Path) -> Classifier | None:
    """The new model's classifier, if the folder has one."""
    path = folder / "classifier.parquet"
    if not path.exists():
        return None
    file = open_parquet(path)
    for column in ("label", "weight", "bias"):
        if column not in file.schema_arrow.names:
            raise InputError(f"{path} has no column {column!r}; it needs label, weight and bias")
    float_type("weight", [file], [path])
    table = file.read(columns=["label", "weight", "bias"])
    label = as_ids(table["label"], path, "label")
    if len(np.unique(label)) != len(label):
        raise InputError(f"{path}, column 'label': duplicates; each class has one row")
    weight = as_vectors(table["weight"].combine_chunks(), path, "weight", 0, np.float32)
    return Classifier(label, weight, as_numbers(table["bias"], path, "bias", np.float32))


def read_table(
    path: Path, models: Sequence[str] = ("old", "new"), needed: Sequence[str] = ("old", "new")
) -> EmbeddingTable:
    """Read one split: a Parquet file, or a folder of part files in the order of their names.

    models: whose embeddings to read, as far as they are there. needed: those that must be.
    Vectors are read piece by piece and keep their type; above MAPPED_BYTES a column goes to a temporary file (in
    TMPDIR) that is mapped into memory and vanishes with the process.
    """
    files = part_files(path)
    read = {file: _read_columns(file, needed) for file in files}
    files = [file for file in files if len(read[file]["id"])]
    if not files:
        raise InputError(f"{path} has no rows")
    parts = [read[file] for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(f"{file} has columns {sorted(part)}, but {files[0]} has {sorted(parts[0])}")
        for name in (name for name in part if _COLUMNS[name] is as_ids):
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
        raise InputError(f"{path}, column 'id': duplicates, first {some(ids[counts > 1])}; ids must be unique")
    schemas = [open_parquet(file).schema_arrow for file in files]
    # A column that only shares a model's name with its embeddings is something of the user's.
    names = [
        name
        for name in models
        if name in needed or all(name in s.names and is_vectors(s.field(name).type) for s in schemas)
    ]
    numbers = {name: columns.pop(name) for name in _NUMBERS if name in columns}
    return EmbeddingTable(path, vectors=read_rows(files, 0, len(columns["id"]), names), numbers=numbers, **columns)


def read_vectors(path: Path, first: int, last: int, models: Sequence[str]) -> dict[str, FloatArray]:
    """The columns of these models, rows first .. last - 1 of a split, and no other rows."""
    return read_rows(part_files(path), first, last, models)


def read_numbers(path: Path, name: str) -> NDArray[np.float64] | None:
    """(N,) a column of numbers of a split; None where a file lacks it.

    Raises:
        InputError: the column does not hold numbers, or not in every row.
    """
    found = [(file, open_parquet(file)) for file in part_files(path)]
    if any(name not in opened.schema_arrow.names for _, opened in found):
        return None
    return np.concatenate([as_numbers(opened.read(columns=[name])[name], file, name) for file, opened in found])


def _read_columns(file: Path, needed: Sequence[str]) -> dict[str, Any]:
    """The known columns of one Parquet file but the vectors, as arrays (lists for lists of ids), checked."""
    opened = open_parquet(file)
    there = opened.schema_arrow.names
    for column in ("id", *needed):
        if column not in there:
            raise InputError(f"{file} has no column {column!r}; it has: {', '.join(there)}")
    present = [name for name in there if name in _COLUMNS]
    table = opened.read(columns=present)
    return {name: _COLUMNS[name](table[name], file, name) for name in present}


def vector_column(vectors_ND: NDArray[Any]) -> pa.FixedSizeListArray:
    """(N, d) numbers as an Arrow column of lists that every Parquet reader understands."""
    flat = np.ascontiguousarray(vectors_ND).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors_ND.shape[1])


def vectors_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """(N, d) numbers of a column that ``vector_column`` made."""
    lists = column.combine_chunks()
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, lists.type.list_size)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file so that it is there whole or not at all."""
    # Vectors do not repeat: dictionaries of them make files larger by an eighth, and three times as slow to write.
    others = [field.name for field in table.schema if not is_vectors(field.type)]
    write_whole(path, lambda temporary: pq.write_table(table, temporary, use_dictionary=others))
