"""Embeddings in Parquet files: reading, validation and writing. No computation.

The data contract is a folder with ``gallery.parquet`` and, optionally, ``queries.parquet`` and ``train.parquet``. Each
is a file or a folder of part files, which are read in the order of their names. Columns:

- ``id``: integer or string, unique
- ``old``, ``new``: embeddings, lists of float16 or float32 of one length per column
- any other column of such lists: the embeddings of another model with that name
- ``label``, optional: integer or string; -1 means unknown
- ``group``, optional, for queries: subgroup, integer or string
- ``camera``, optional: integer or string
- ``old_score``, ``old_entropy``, ``old_margin``, ``old_class``, for orders: top probability, entropy, top minus second
  probability and top class of the old model's classifier
- ``sigma``, ``popularity``, ``order_score`` (the user's own score, low first) and any other number that an order uses
- ``positives``, ``ignored``, for queries in place of labels: lists of gallery ids
- ``grades``, optional, beside ``positives``: for each of them a number above 0, which nDCG counts
- ``weight``, optional, for queries: a number above 0, the query's weight in every mean

Without a queries file, the gallery items are the queries, each excluded from its own result. ``classifier.parquet`` may
hold the new model's classifier: ``label``, ``weight`` (lists), ``bias``. ``validation.parquet`` has the columns of a
gallery: no fit sees it, and it judges fits and chooses their settings. Without it, a part of the train split is held
out for that. ``train_views.parquet`` has embeddings of further views of the train items (augmented images), view after
view: its ``id`` repeats that of train for each view. Other columns are not used.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, local_path
from ray_backfill.core.memory import MAPPED_BYTES as MAPPED_BYTES
from ray_backfill.core.parquet import open_checked, reading
from ray_backfill.data.store._classifier import Classifier as Classifier
from ray_backfill.data.store._classifier import read_classifier as read_classifier
from ray_backfill.data.store._columns import add_to_digest, as_ids, as_numbers, is_vectors, read_rows, some
from ray_backfill.data.store._columns import in_words as in_words
from ray_backfill.data.store._columns import kind_of as kind_of
from ray_backfill.data.store._columns import part_files as part_files
from ray_backfill.data.store._columns import vector_column as vector_column
from ray_backfill.data.store._columns import vectors_of as vectors_of
from ray_backfill.data.store._division import FEWEST as FEWEST
from ray_backfill.data.store._division import held_out, take_views
from ray_backfill.data.store._division import take as take
from ray_backfill.data.store._further import IMAGE as IMAGE
from ray_backfill.data.store._further import TEXT as TEXT
from ray_backfill.data.store._further import Parts, has_column, joined, read_parts, read_picked, shown_fingerprint
from ray_backfill.data.store._hashing import hash_rows as hash_rows
from ray_backfill.data.store._known import COLUMNS as COLUMNS
from ray_backfill.data.store._known import NUMBERS, OF_QUERIES, check_equal_columns, read_columns
from ray_backfill.data.store._views import read_views
from ray_backfill.data.store._writing import write_parquet as write_parquet
from ray_backfill.engine.systems import FloatArray, IntArray

SPLITS = ("gallery", "queries", "train", "classifier", "train_views", "validation")


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """One validated split of N rows. A column that the files do not have is None.

    Every other column is read by its name: ``column`` as it is stored, ``texts`` and ``find_numbers`` as arrays,
    ``pick`` single rows. A column is read from the files once, when it is first asked for, and kept as Arrow has it.
    """

    path: Path
    id: NDArray[Any]
    """(N,) unique ids, int64 or strings; so are the other ids and classes."""
    vectors: dict[str, FloatArray]
    """Model name -> (N, d) embeddings, float16 or float32 as stored; large ones are mapped from a temporary file."""
    numbers: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Column name -> (N,) numbers, for the numeric columns of the data contract."""
    label: NDArray[Any] | None = None
    """(N,) classes."""
    group: NDArray[Any] | None = None
    """(N,) subgroups."""
    camera: NDArray[Any] | None = None
    """(N,) cameras."""
    old_class: NDArray[Any] | None = None
    """(N,) classes predicted by the old model's classifier."""
    positives: list[NDArray[Any]] | None = None
    """For each query, the ids of its relevant gallery items."""
    ignored: list[NDArray[Any]] | None = None
    """For each query, the ids of gallery items that are left out of its ranking."""
    grades: list[NDArray[np.float64]] | None = None
    """For each query, the grades of its ``positives``."""
    weight: NDArray[np.float64] | None = None
    """(N,) weights of queries."""
    rows: IntArray | None = None
    """(N,) places of the items in the files; None: all of them, in their order."""
    _read: dict[str, Parts] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.id)

    def has_column(self, name: str) -> bool:
        """Whether all files of the split have this column."""
        return has_column(self.path, name)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return any column, (N,), in plain values; missing ones stay missing.

        Raises:
            InputError: A file does not have it, or the files have different types.
        """
        whole = joined(self._parts(name), self.path, name)
        return whole if self.rows is None else whole.take(pa.array(self.rows))

    def texts(self, name: str) -> NDArray[Any]:
        """Return a column of integers or text, (N,).

        Raises:
            InputError: A file does not have it, or it holds other values, or misses some.
        """
        known = getattr(self, name) if COLUMNS.get(name) is as_ids else None
        return self._array(name, as_ids) if known is None else known

    def find_numbers(self, name: str) -> NDArray[np.float64] | None:
        """Return a numeric column, (N,), or None if the split does not have it.

        Raises:
            InputError: The column holds other values than numbers, or misses some.
        """
        if name in NUMBERS:
            return self.numbers.get(name)
        return self._array(name, as_numbers) if self.has_column(name) else None

    def pick(self, name: str, rows: IntArray) -> list[Any]:
        """Return single rows of any column as Python values; None for all if the split does not have it.

        Reads only the parts of the files that hold these rows, and keeps nothing. rows: (K,) places in the split.
        """
        return read_picked(self.path, name, rows if self.rows is None else self.rows[rows])

    def _parts(self, name: str) -> Parts:
        if name not in self._read:
            self._read[name] = read_parts(self.path, name)
        return self._read[name]

    def _array(self, name: str, convert: Callable[[pa.ChunkedArray, Path, str], NDArray[Any]]) -> NDArray[Any]:
        values = np.concatenate([convert(part, file, name) for file, part in self._parts(name)])
        return values if self.rows is None else values[self.rows]

    @property
    def old(self) -> FloatArray:
        """(N, d) embeddings by the old model."""
        return self.vectors["old"]

    @property
    def new(self) -> FloatArray:
        """(N, d) embeddings by the new model."""
        return self.vectors["new"]


@dataclass(frozen=True, repr=False, eq=False)
class EmbeddingFolder:
    """A validated folder of embeddings."""

    path: Path
    gallery: EmbeddingTable
    queries: EmbeddingTable | None
    """None if the gallery items are the queries."""
    train: EmbeddingTable | None
    """The items that maps are fitted on, if there is a train split."""
    classifier: Classifier | None = None
    """The new model's classifier, if the folder has one."""
    train_views: Mapping[str, FloatArray] = field(default_factory=dict)
    """Model name -> (V, N, d) embeddings of V further views of each train item; empty if there are none."""
    validation: EmbeddingTable | None = None
    """Items that no map is fitted on: ``validation.parquet``, or a part of the train split. None: too few for that."""

    def __repr__(self) -> str:
        splits = {name: getattr(self, name) for name in ("gallery", "queries", "train", "validation")}
        rows = [f"{len(table):,} {name}" for name, table in splits.items() if table is not None]
        dims = [f"{name} {vectors.shape[1]}" for name, vectors in self.gallery.vectors.items()]
        return f"Embeddings in {self.path}: {', '.join(rows)}; dimensions: {', '.join(dims)}"

    @property
    def train_bytes(self) -> int:
        """Size of the train vectors and their further views."""
        vectors = (self.train.vectors if self.train else {}, self.train_views)
        return sum(each.nbytes for of_model in vectors for each in of_model.values())

    @property
    def models(self) -> tuple[str, ...]:
        """Models whose embeddings both gallery and queries have."""
        return tuple(name for name in self.gallery.vectors if name in (self.queries or self.gallery).vectors)

    def fingerprint(self, models: Sequence[str] = ("old", "new"), splits: Sequence[str] = SPLITS) -> str:
        """Return a hash of the folder's values, embeddings of other models excepted.

        Cost: one pass over the bytes, at the first call.

        Args:
            models: Models whose embeddings count.
            splits: Splits that count.
        """
        digest = hashlib.blake2b(digest_size=12)
        for (split, model, _), of_column in self._digests.items():
            if split in splits and model in ("", *models):
                digest.update(of_column)
        return digest.hexdigest()

    @cached_property
    def shown_fingerprint(self) -> str:
        """A hash of what pages show of single queries and items: texts and paths of images; "" if there are none."""
        return shown_fingerprint([table.path for table in (self.gallery, self.queries) if table is not None])

    @cached_property
    def log(self) -> EmbeddingTable | None:
        """The queries of ``log.parquet``, with the old model's embeddings; None if there is no log.

        Raises:
            InputError: It cannot be read.
        """
        path = self.path / "log.parquet"
        return read_table(path, ("old",), ("old",), are_queries=True) if path.exists() else None

    @cached_property
    def _digests(self) -> dict[tuple[str, str, str], bytes]:
        """Digest of each column, by split, model (for vectors) and column name."""
        found: dict[tuple[str, str, str], bytes] = {}
        for split in SPLITS:
            table = getattr(self, split)
            for (model, name), values in _columns_of(table).items() if table is not None else ():
                if values is None and name in OF_QUERIES:
                    continue
                digest = hashlib.blake2b(f"{split} {model} {name}".encode())
                for array in [values] if isinstance(values, np.ndarray) else values or []:
                    add_to_digest(digest, array)
                found[split, model, name] = digest.digest()
        return found


def _columns_of(table: "EmbeddingTable | Classifier | Mapping[str, FloatArray]") -> dict[tuple[str, str], Any]:
    """Return the columns by model (for vectors) and name; None for a missing column."""
    if isinstance(table, Mapping):
        return {(model, "vectors"): vectors for model, vectors in table.items()}
    if isinstance(table, Classifier):
        return {("", name): values for name, values in vars(table).items()}
    known = {("", name): table.numbers.get(name) if name in NUMBERS else getattr(table, name) for name in COLUMNS}
    return known | {(model, "vectors"): vectors for model, vectors in table.vectors.items()}


def read_folder(
    path: str | Path, models: Sequence[str] = ("old", "new"), gallery_needs: Sequence[str] = ("old", "new")
) -> EmbeddingFolder:
    """Read and validate a folder of embeddings.

    Args:
        path: Folder with ``gallery.parquet`` and, optionally, ``queries.parquet``, ``train.parquet`` and
            ``classifier.parquet``; see the module for the columns.
        models: Models whose embeddings are read; only "old" and "new" must exist.
        gallery_needs: Models whose embeddings the gallery must have; before a backfill it has no new ones.

    Returns:
        The validated splits. Embeddings keep their type, float16 or float32; columns above 1 GiB are mapped from a
        temporary file in TMPDIR.

    Raises:
        InputError: A file or column is missing, ids are missing or duplicate, or embeddings are NaN, infinite or of
            different lengths. The message names the file, the column and the first offending rows.
    """
    path = local_path(path)
    with reading(path):
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; give a folder that contains gallery.parquet")
        has_queries = (path / "queries.parquet").exists()
        gallery = read_table(path / "gallery.parquet", models, gallery_needs, are_queries=not has_queries)
        queries = read_table(path / "queries.parquet", models, are_queries=True) if has_queries else None
        split = read_train(path, models)
    for other in (queries, split.train, split.validation):
        for name, vectors in other.vectors.items() if other else ():
            theirs, mine = vectors.shape[1], gallery.vectors.get(name, vectors).shape[1]
            if other and mine != theirs:
                raise InputError(
                    f"column {name!r} has {theirs} dimensions in {other.path} and {mine} in {gallery.path}; "
                    "use embeddings of one model"
                )
    return EmbeddingFolder(path, gallery, queries, *split)


class TrainSplit(NamedTuple):
    """What fits learn from, and what they must not see; see ``EmbeddingFolder`` for the fields."""

    train: EmbeddingTable | None
    classifier: Classifier | None
    train_views: Mapping[str, FloatArray]
    validation: EmbeddingTable | None


def read_train(path: Path, models: Sequence[str] = ("old", "new")) -> TrainSplit:
    """Read the items that everything is fitted on, and the validation part, which no fit sees.

    That is ``validation.parquet`` if there is one; otherwise a tenth of the train split, unless it is too small.
    """
    if not (path / "train.parquet").exists():
        return TrainSplit(None, read_classifier(path), read_views(path, None, {}), None)
    train = read_table(path / "train.parquet", models)
    classifier, views = read_classifier(path), read_views(path, train.id, train.vectors)
    if (path / "validation.parquet").exists():
        validation = read_table(path / "validation.parquet", models, tuple(train.vectors))
        return TrainSplit(train, classifier, views, validation)
    held_N = held_out(train.label, len(train))
    if not held_N.any():
        return TrainSplit(train, classifier, views, None)
    kept, held = np.flatnonzero(~held_N), np.flatnonzero(held_N)
    return TrainSplit(take(train, kept), classifier, take_views(views, kept), take(train, held))


def read_table(
    path: Path, models: Sequence[str] = ("old", "new"), needed: Sequence[str] = ("old", "new"),
    are_queries: bool = False,
) -> EmbeddingTable:  # fmt: skip
    """Read one split: a Parquet file, or a folder of part files in the order of their names.

    Vectors are read in pieces and keep their type. A column above MAPPED_BYTES goes to a temporary file (in TMPDIR)
    that is mapped into memory and disappears with the process.

    Args:
        path: File or folder.
        models: Models whose embeddings are read if they exist.
        needed: Models whose embeddings must exist.
        are_queries: Whether the items are queries, whose grades and weights are read.
    """
    files = part_files(path)
    read = {file: read_columns(file, needed, are_queries) for file in files}
    files = [file for file in files if len(read[file]["id"])]
    if not files:
        raise InputError(f"{path} has no rows; each split needs at least one")
    parts = [read[file] for file in files]
    check_equal_columns(files, parts)
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(parts[0][name], np.ndarray)
        else [row for part in parts for row in part[name]]
        for name in parts[0]
    }
    ids, counts = np.unique(columns["id"], return_counts=True)
    if (counts > 1).any():
        twice = some(ids[counts > 1])
        raise InputError(f"{path}, column 'id': duplicate ids {twice}; drop them (simulate --drop-broken does)")
    schemas = [open_checked(file).schema_arrow for file in files]
    # A column with a model's name that does not hold vectors is the user's own.
    names = [
        name
        for name in models
        if name in needed or all(name in s.names and is_vectors(s.field(name).type) for s in schemas)
    ]
    numbers = {name: columns.pop(name) for name in NUMBERS if name in columns}
    return EmbeddingTable(path, vectors=read_rows(files, 0, len(columns["id"]), names), numbers=numbers, **columns)


def read_vectors(folder: Path, split: str, first: int, last: int, models: Sequence[str]) -> dict[str, FloatArray]:
    """Read the embeddings of these models for the rows first .. last - 1 of a split only.

    For a worker on another machine, which gets the path of a folder that has been validated.
    """
    return read_rows(part_files(folder / f"{split}.parquet"), first, last, models)


def read_ids(folder: Path, split: str) -> NDArray[Any]:
    """Read the ids of a split, (N,); for a worker, as ``read_vectors``."""
    parts = read_parts(folder / f"{split}.parquet", "id")
    return np.concatenate([as_ids(part, file, "id") for file, part in parts])


def left_out_ids(path: Path) -> NDArray[Any]:
    """The ids, as text, of rows that an import left out of this split; they are listed beside it."""
    listed = path.with_name(f"{path.stem}_left_out.parquet")
    if not listed.exists():
        return np.empty(0, str)
    return np.concatenate([as_ids(part, file, "id") for file, part in read_parts(listed, "id")]).astype(str)
