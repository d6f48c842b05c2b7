"""Writes what ``read_folder`` reads: folders from arrays, and single Parquet files."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import write_checked
from ray_backfill.core.stages import make_folder, write_whole
from ray_backfill.core.store_path import in_store, path_of, regular_file
from ray_backfill.data.columns import MODELS, native
from ray_backfill.data.folder import SPLITS, EmbeddingFolder, EmbeddingTable, read_folder, read_train
from ray_backfill.data.identity import Identities, as_identities, stating
from ray_backfill.data.vectors import is_vectors
from ray_backfill.data.words import FILES, Words, write_words
from ray_backfill.engine.systems import as_array

# Of the queries and of the gallery, or of a gallery whose items query the others.
Arrays = ArrayLike | tuple[ArrayLike | None, ArrayLike | None]
Columns = Mapping[str, ArrayLike | Iterable[Any]] | pd.DataFrame
# Columns of lists that are no vectors -> what the lists hold.
_LISTS = {"positives": "gallery ids", "ignored": "gallery ids", "grades": "numbers"}


def write_folder(
    path: str | Path, gallery: Columns, queries: Columns | None = None, train: Columns | None = None, *,
    models: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write embeddings of two models as a folder that ``simulate`` and ``read_folder`` take.

    >>> gallery = {"old": old_gallery, "new": new_gallery, "label": label}
    >>> queries = {"old": old_queries, "new": new_queries, "label": query_label}
    >>> path = rb.write_folder("my_embeddings", gallery, queries)

    Args:
        path: The folder to write. Files of an earlier call are replaced.
        gallery: Columns by name, as a mapping or a pandas frame; N values each. ``old`` and ``new``: (N, d) embeddings
            of the two models, whose d may differ; for ``forecast``, ``new`` may be missing. Optional: ``id`` (unique
            integers or strings; by default 0 to N - 1), ``label``, ``camera``, numbers for backfill orders
            (``old_score``, ``popularity``, ``order_score``, ...) and embeddings of further models. Others are kept.
        queries: The same for queries, which may also have a ``group`` (curves for each), a ``weight`` (in every mean),
            and ``positives`` and ``ignored`` (lists of gallery ids) instead of labels, with ``grades`` (a list of
            numbers for each list of positives). By default the gallery queries itself.
        train: The same for the items on which maps between the models are fitted; by default none.
        models: Column -> the name of its model, such as {"old": "openai:text-embedding-3-small"}. The files state it,
            and other vectors under such a column are refused (docs/model-runs.md).

    Returns:
        The folder. Nothing is written unless everything can be read back; ``gallery.parquet`` appears last.

    Raises:
        InputError: A column is missing, has a wrong shape or length, or holds values that the data contract refuses,
            such as NaN or duplicate ids; or the folder holds a split that this call would leave beside the new ones.
    """
    return _write(path_of(path), gallery, queries, train, FILES, as_identities(models or {}, "models"))


def _write(
    path: Path, gallery: Columns, queries: Columns | None, train: Columns | None, words: Words,
    models: Identities,
) -> Path:  # fmt: skip
    """``write_folder`` for a user who calls the data so."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give a folder")
    given = {"train": train, "queries": queries, "gallery": gallery}
    # Before the backfill, a gallery has no new embeddings yet. One that queries itself could not be forecast.
    needed = ("old",) if queries is not None and "new" not in gallery else MODELS
    tables = {
        name: _table(name, columns, needed if name == "gallery" else MODELS, words)
        for name, columns in given.items() if columns is not None
    }  # fmt: skip
    if nowhere := models.keys() - {name for table in tables.values() for name in table.column_names}:
        raise InputError(f"models names {min(nowhere)!r}, which is no column; it has: {', '.join(models)}")
    left = [name for name in SPLITS if name not in tables and (path / f"{name}.parquet").exists()]
    if left:
        raise InputError(
            f"{path} holds {left[0]}.parquet, which this call does not replace; delete it, or write elsewhere"
        )
    make_folder(path.parent)
    with TemporaryDirectory(dir=None if in_store(path) else path.parent, prefix=f".{path.name}.") as temporary:
        for name, table in tables.items():
            write_parquet(Path(temporary) / f"{name}.parquet", stating(table, models))
        write_words(Path(temporary), words)
        try:
            read_folder(temporary, gallery_needs=needed)
        except InputError as error:
            raise InputError(str(error).replace(temporary, str(path))) from error
        make_folder(path)
        write_words(path, words)
        for name in tables:
            write_whole(path / f"{name}.parquet", partial(shutil.move, Path(temporary) / f"{name}.parquet"))
    return path


def load_array(path: Path | None) -> NDArray[Any] | None:
    """Map the array in a file of numpy (.npy); None for None. Raises InputError if the file cannot be read."""
    if path is None:
        return None
    regular_file(path_of(path))
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a file that numpy.save wrote (.npy)") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} holds no array that can be read; give a file that numpy.save wrote (.npy)") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; give a file that numpy.save wrote (.npy)")
    return array


def write_arrays(path: Path, arrays: Mapping[str, Arrays | None], words: Words, train: Columns | None = None) -> Path:
    """Write arrays of queries and gallery as a folder of embeddings.

    Args:
        path: As for ``write_folder``, and so are train and the errors.
        words: What the user calls the arrays.
        arrays: Column ("old", "new", "label") -> (queries, gallery), or one array of a gallery that queries itself.
    """
    pairs = {
        name: array if isinstance(array, tuple) else (None, array)
        for name, array in arrays.items()
        if array is not None
    }
    if any(len(pair) != 2 for pair in pairs.values()):
        raise InputError("old, new and label are each one array, of the gallery, or two: (queries, gallery)")
    queries = {name: of_queries for name, (of_queries, _) in pairs.items() if of_queries is not None}
    gallery = {name: of_gallery for name, (_, of_gallery) in pairs.items() if of_gallery is not None}
    for split, columns in {"queries": queries, "gallery": gallery}.items():
        if columns and len(columns) < len(pairs):
            lacking = next(name for name in pairs if name not in columns)
            raise InputError(f"{lacking} has no array for the {split}; old, new and label need the same splits")
    return _write(path, gallery, queries or None, train, words, {})


def _table(split: str, columns: Columns, models: Sequence[str], words: Words) -> pa.Table:
    """The columns of a split in the types of the data contract. models: columns that must be there."""
    if not isinstance(columns, Mapping | pd.DataFrame):
        raise InputError(
            f"{split} must be columns by name, such as a dict with 'old' and 'new', not {type(columns).__name__}"
        )
    given = {str(name): values for name, values in columns.items()}
    missing = [name for name in models if name not in given]
    if missing:
        raise InputError(f"{split}: no column {missing[0]!r}; it has: {', '.join(given)}")
    what = {name: words.get(f"{split}/{name}", f"{split}: column {name!r}") for name in given}
    arrays = {name: _column(what[name], name, values) for name, values in given.items()}
    rows = {name: len(array) for name, array in arrays.items()}
    for name, count in rows.items():
        if count != rows["old"]:
            of_old = words.get(f"{split}/old", "'old'")
            raise InputError(f"{what[name]} has {count} rows, {of_old} has {rows['old']}")
    if not rows["old"]:
        raise InputError(f"{what['old']} has no rows; each split needs at least one")
    return pa.table({"id": np.arange(rows["old"])} | arrays)


def _column(what: str, name: str, values: Any) -> pa.Array:
    """One column; two dimensions are embeddings. what: its name in messages."""
    if name in _LISTS:
        rows = [as_array(row, what) for row in values]
        if any(row.ndim != 1 for row in rows):
            raise InputError(f"{what} must have a list of {_LISTS[name]} for each query")
        return pa.array([row.tolist() for row in rows])
    array = native(as_array(values, what))
    try:
        # numpy would make numbers of them
        if np.ma.is_masked(array) or (array.ndim == 2 and array.dtype.kind in "cmM"):
            raise TypeError("masked values, complex numbers, dates and times are no embeddings")
        if array.ndim == 2:
            return vector_column(array if array.dtype == np.float16 else array.astype(np.float32))
        if array.ndim == 1 and name not in MODELS:
            # Arrow would cut numpy's texts at the first NUL, and make one label of several.
            return pa.array(array.tolist() if array.dtype.kind == "U" else array)
    except (TypeError, ValueError, pa.ArrowNotImplementedError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(f"{what} cannot be written: {str(error).splitlines()[0]}") from error
    wanted = "two dimensions, one row an item" if name in MODELS else "one value an item, or vectors"
    raise InputError(f"{what} must have {wanted}; got shape {array.shape}")


def with_train(folder: EmbeddingFolder, items: EmbeddingTable, place: Path) -> EmbeddingFolder:
    """Return the folder with these items as its train split. They are written to ``place``, where fits read them again.

    Raises:
        InputError: The disk is full.
    """
    columns = {"id": pa.array(items.id)} | {model: vector_column(vectors) for model, vectors in items.vectors.items()}
    if items.label is not None:
        columns["label"] = pa.array(items.label)
    write_parquet(place / "train.parquet", pa.table(columns))
    write_words(place, {"train": "the sample"})
    split = read_train(place, tuple(items.vectors))
    return replace(folder, train=split.train, validation=split.validation, sample_path=place)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically: readers see the complete file or none.

    Args:
        path: File to write; its folder is created if needed.
        table: Columns; see ``vector_column`` for embeddings.

    Raises:
        InputError: The disk is full.
    """
    # Vectors do not repeat: dictionary encoding makes files an eighth larger and writing three times as slow.
    others = [field.name for field in table.schema if not is_vectors(field.type)]
    write_whole(path, lambda temporary: write_checked(table, temporary, use_dictionary=others))


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
