"""A folder of embeddings: its splits, and their columns by name. Nothing is computed here.

docs/embeddings.md has the data contract: the files and their columns. Each file may be a folder of part files, which
are read in the order of their names. Without ``queries.parquet`` the gallery items are the queries, each excluded from
its own result. ``validation.parquet`` judges fits and chooses their settings, and no fit sees it; without it, a part
of the train split is held out for that. A column of lists of floats is the embeddings of the model with its name.

Shapes: N items of a split, V views of each train item, C classes, d dimensions.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import track
from ray_backfill.core.schema import open_checked, reading
from ray_backfill.core.store_path import path_of
from ray_backfill.data.columns import (
    COLUMNS,
    MODELS,
    NUMBERS,
    OF_QUERIES,
    Parts,
    as_ids,
    as_numbers,
    join_known,
    joined,
    kind_of,
    names_in,
    part_files,
    read_known,
    read_parts,
    read_picked,
    some,
    texts_fingerprint,
)
from ray_backfill.data.division import drawn_rows, held_out
from ray_backfill.data.identity import Identities, identities_of
from ray_backfill.data.vectors import float_type, is_vectors, read_rows, strict_vectors, take_rows
from ray_backfill.data.words import called, words_of
from ray_backfill.engine.systems import FloatArray, IntArray

SPLITS = ("gallery", "queries", "train", "classifier", "train_views", "validation")
_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredSplit:
    """Where a split that was validated is stored: for workers, also on other machines, which read some of it."""

    path: Path

    def vectors(self, first: int, last: int, models: Sequence[str]) -> dict[str, FloatArray]:
        """Read the embeddings of these models for the rows first .. last - 1 only."""
        return read_rows(part_files(self.path), first, last, models)

    def ids(self) -> NDArray[Any]:
        """Read the ids, (N,)."""
        return np.concatenate([as_ids(part, file, "id") for file, part in read_parts(self.path, "id")])


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
        return all(name in names_in(file) for file in part_files(self.path))

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

    def take(self, rows: IntArray) -> "EmbeddingTable":
        """Return some items. Cost: a copy of their vectors, mapped from a temporary file if they are large."""

        def taken(values: Any) -> Any:
            if isinstance(values, dict):
                return {name: taken(column) for name, column in values.items()}
            if isinstance(values, list):
                return [values[row] for row in rows]
            return None if values is None else take_rows(values, rows)

        of_items = [column.name for column in fields(self) if column.init and column.name not in ("path", "rows")]
        places = rows if self.rows is None else self.rows[rows]
        return replace(self, rows=places, **{name: taken(getattr(self, name)) for name in of_items})

    def drawn(self, most: int, seed: int) -> "EmbeddingTable":
        """Return at most so many items, whole classes if possible, without zero vectors, which have no cosine."""
        rows = drawn_rows(self.label, len(self), most, seed)
        return self.take(rows[np.all([v[rows].any(axis=1) for v in self.vectors.values()], axis=0)])

    def left_out_ids(self) -> NDArray[Any]:
        """The ids, as text, of rows that an import left out of this split; they are listed beside it."""
        listed = left_out_file(self.path)
        return StoredSplit(listed).ids().astype(str) if listed.exists() else np.empty(0, str)

    @property
    def stored(self) -> StoredSplit:
        """All items of the split as they are stored, whichever of them this table has."""
        return StoredSplit(self.path)

    @property
    def old(self) -> FloatArray:
        """(N, d) embeddings by the old model."""
        return self.vectors["old"]

    @property
    def new(self) -> FloatArray:
        """(N, d) embeddings by the new model."""
        return self.vectors["new"]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear classifier on a model's embeddings."""

    label: NDArray[Any]
    """(C,) unique classes."""
    weight: NDArray[np.float32]
    """(C, d) float32."""
    bias: NDArray[np.float32]
    """(C,) float32."""


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
    sample_path: Path | None = None
    """Where a train split that is a sample of the gallery is stored; None: the train split is the folder's own."""
    identities: Identities = field(default_factory=dict)
    """The models that the folder states, as ``identities_of`` returns them."""

    def __repr__(self) -> str:
        splits = {name: getattr(self, name) for name in ("gallery", "queries", "train", "validation")}
        rows = [f"{len(table):,} {name}" for name, table in splits.items() if table is not None]
        dims = [f"{name} {vectors.shape[1]}" for name, vectors in self.gallery.vectors.items()]
        return f"Embeddings in {self.path}: {', '.join(rows)}; dimensions: {', '.join(dims)}"

    @property
    def train_bytes(self) -> int:
        """Size of the train vectors and their further views."""
        vectors = (self.train.vectors if self.train else {}, self.train_views)
        return sum(array.nbytes for of_model in vectors for array in of_model.values())

    def called(self, split: str) -> str:
        """What messages call a split, whether it is there or not."""
        return called(self.path / f"{split}.parquet", in_short=True)

    @property
    def train_path(self) -> Path:
        """The folder from which fits read the train split again."""
        return self.sample_path or self.path

    @property
    def models(self) -> tuple[str, ...]:
        """Models whose embeddings both gallery and queries have."""
        return tuple(name for name in self.gallery.vectors if name in (self.queries or self.gallery).vectors)

    def fingerprint(self, models: Sequence[str] = MODELS, splits: Sequence[str] = SPLITS) -> str:
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
        return texts_fingerprint([table.path for table in (self.gallery, self.queries) if table is not None])

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
        digests: dict[tuple[str, str, str], bytes] = {}
        for split in SPLITS:
            table = getattr(self, split)
            for (model, name), values in _columns_of(table).items() if table is not None else ():
                if values is None and name in OF_QUERIES:
                    continue
                digest = hashlib.blake2b(f"{split} {model} {name}".encode())
                for array in [values] if isinstance(values, np.ndarray) else values or []:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                    for i in track(range(0, len(numbers), _PIECE_BYTES), "fingerprint", "x 64 MB"):
                        digest.update(numbers[i : i + _PIECE_BYTES].data)
                digests[split, model, name] = digest.digest()
        return digests


def _columns_of(table: "EmbeddingTable | Classifier | Mapping[str, FloatArray]") -> dict[tuple[str, str], Any]:
    """Return the columns by model (for vectors) and name; None for a missing column."""
    if isinstance(table, Mapping):
        return {(model, "vectors"): vectors for model, vectors in table.items()}
    if isinstance(table, Classifier):
        return {("", name): values for name, values in vars(table).items()}
    known = {("", name): table.numbers.get(name) if name in NUMBERS else getattr(table, name) for name in COLUMNS}
    return known | {(model, "vectors"): vectors for model, vectors in table.vectors.items()}


def read_folder(
    path: str | Path, models: Sequence[str] = MODELS, gallery_needs: Sequence[str] = MODELS
) -> EmbeddingFolder:
    """Read and validate a folder of embeddings.

    Args:
        path: Folder with ``gallery.parquet`` and, optionally, ``queries.parquet``, ``train.parquet`` and
            ``classifier.parquet``; see docs/embeddings.md for the columns.
        models: Models whose embeddings are read; only "old" and "new" must exist.
        gallery_needs: Models whose embeddings the gallery must have; before a backfill it has no new ones.

    Returns:
        The validated splits. Embeddings keep their type, float16 or float32; columns above 1 GiB are mapped from a
        temporary file in TMPDIR.

    Raises:
        InputError: A file or column is missing, ids are missing or duplicate, or embeddings are NaN, infinite or of
            different lengths, or of two models. The message names the file, the column and the first offending rows.
    """
    path = path_of(path)
    with reading(path):
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; give a folder that contains gallery.parquet")
        identities = identities_of(path)
        has_queries = (path / "queries.parquet").exists()
        gallery = read_table(path / "gallery.parquet", models, gallery_needs, are_queries=not has_queries)
        queries = read_table(path / "queries.parquet", models, are_queries=True) if has_queries else None
        split = read_train(path, models)
    for other in (table for table in (queries, split.train, split.validation) if table is not None):
        for name, vectors in other.vectors.items():
            theirs, mine = vectors.shape[1], gallery.vectors.get(name, vectors).shape[1]
            if mine != theirs:
                what = words_of(path)["column"].format(name)
                raise InputError(
                    f"{what} has {theirs} dimensions in {called(other.path)} and {mine} in {called(gallery.path)}; "
                    "use embeddings of one model"
                )
    return EmbeddingFolder(path, gallery, queries, *split, identities=identities)


class TrainSplit(NamedTuple):
    """What fits learn from, and what they must not see; see ``EmbeddingFolder`` for the fields."""

    train: EmbeddingTable | None
    classifier: Classifier | None
    train_views: Mapping[str, FloatArray]
    validation: EmbeddingTable | None


def read_train(path: Path, models: Sequence[str] = MODELS) -> TrainSplit:
    """Read the items that everything is fitted on, and the validation part, which no fit sees.

    That is ``validation.parquet`` if there is one; otherwise a tenth of the train split, unless it is too small.
    """
    has_train = (path / "train.parquet").exists()
    train = read_table(path / "train.parquet", models) if has_train else None
    classifier, views = _read_classifier(path / "classifier.parquet"), _read_views(path / "train_views.parquet", train)
    if train is None:
        return TrainSplit(None, classifier, views, None)
    if (path / "validation.parquet").exists():
        validation = read_table(path / "validation.parquet", models, tuple(train.vectors))
        return TrainSplit(train, classifier, views, validation)
    held_N = held_out(train.label, len(train))
    if not held_N.any():
        return TrainSplit(train, classifier, views, None)
    kept = np.flatnonzero(~held_N)
    kept_views = {}
    for model, views_VND in views.items():
        n_views, n, dim = views_VND.shape
        in_file = (np.arange(n_views)[:, None] * n + kept).ravel()
        kept_views[model] = take_rows(views_VND.reshape(-1, dim), in_file).reshape(n_views, len(kept), dim)
    return TrainSplit(train.take(kept), classifier, kept_views, train.take(np.flatnonzero(held_N)))


def read_table(
    path: Path, models: Sequence[str] = MODELS, needed: Sequence[str] = MODELS,
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
    read = {file: read_known(file, needed, are_queries) for file in files}
    files = [file for file in files if len(read[file]["id"])]
    if not files:
        raise InputError(f"{path} has no rows; each split needs at least one")
    columns = join_known(files, [read[file] for file in files])
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


def left_out_file(split: Path) -> Path:
    """The table, next to a split that was imported, of the rows that it lacks."""
    return split.with_name(f"{split.stem}_left_out.parquet")


def _read_classifier(path: Path) -> Classifier | None:
    """Read the new model's classifier, if there is one."""
    if not path.exists():
        return None
    file = open_checked(path)
    for column in ("label", "weight", "bias"):
        if column not in file.schema_arrow.names:
            raise InputError(f"{path} has no column {column!r}; it needs the columns label, weight and bias")
    float_type("weight", [file], [path])
    with reading(path):
        table = file.read(columns=["label", "weight", "bias"])
        label = as_ids(table["label"], path, "label")
    if not len(label):
        raise InputError(f"{path} has no rows; give one row for each class, or delete the file")
    if len(np.unique(label)) != len(label):
        raise InputError(f"{path}, column 'label': duplicate classes; give one row for each class")
    weight = strict_vectors(table["weight"].combine_chunks(), path, "weight", 0, np.float32)
    return Classifier(label, weight, as_numbers(table["bias"], path, "bias", np.float32))


def _read_views(path: Path, train: EmbeddingTable | None) -> dict[str, FloatArray]:
    """Read the further views of the train items: model name -> (V, N, d); empty if there is no such file.

    The file has the rows of the first view, then those of the second, and so on, each in the order of the train split.
    Cost: V times that of the train vectors. Columns above 1 GiB are mapped from a temporary file, as these are.

    Raises:
        InputError: There is no train split, or the views lack a model, or have other ids or dimensions.
    """
    if not path.exists():
        return {}
    if train is None:
        raise InputError(f"{path} has views of train items, but there is no train.parquet beside it; add it")
    files = part_files(path)
    models = tuple(train.vectors)
    parts = [read_known(file, models, are_queries=False)["id"] for file in files]
    ids, id_N = np.concatenate([part for part in parts if len(part)] or parts), train.id
    remedy = "it must repeat the ids of train.parquet, in their order, once for each view"
    if kind_of(ids) != kind_of(id_N):
        raise InputError(f"{path}, column 'id' holds {kind_of(ids)}, that of train.parquet {kind_of(id_N)}; {remedy}")
    if not len(ids) or len(ids) % len(id_N):
        raise InputError(f"{path} has {len(ids):,} rows, no multiple of the {len(id_N):,} train items; {remedy}")
    if len(other := np.flatnonzero((ids.reshape(-1, len(id_N)) != id_N).ravel())):
        row = int(other[0])
        raise InputError(f"{path}, column 'id': {ids[row]} in row {row}, not {id_N[row % len(id_N)]}; {remedy}")
    views = read_rows(files, 0, len(ids), models)
    for name, vectors in views.items():
        theirs, ours = vectors.shape[1], train.vectors[name].shape[1]
        if theirs != ours:
            raise InputError(f"column {name!r} has {theirs} dimensions in {path} and {ours} in train.parquet")
    return {name: vectors.reshape(-1, len(train), vectors.shape[1]) for name, vectors in views.items()}
