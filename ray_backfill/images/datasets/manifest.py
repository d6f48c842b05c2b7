"""Your own images, listed in a CSV or Parquet file; no folder is searched, and images may be in an object store.

Columns, by name and in any order; others are ignored. Required: ``path`` (local path or URI with options, see
``images.paths``) and ``label`` (text or integer; empty, -1 or nan: unknown, in the gallery only). Optional: ``split``
(train, gallery, queries; also val, test and index for the gallery, query for queries), ``group`` and ``camera``
(integers, or text that is numbered by name) and ``id`` (int64, unique; default: the row number, from 0). Without
``split`` the rows are divided, class by class. CSV files are UTF-8 with commas and a header. Licence: that of your
images.

Shapes: N rows of the manifest; P of them in a split; C classes.
"""

import csv
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.store_path import path_of
from ray_backfill.images.datasets import DataSet, check_own_images
from ray_backfill.images.draws import divide
from ray_backfill.images.paths import Paths
from ray_backfill.images.source import NAMES_OF, SPLITS, FileSource, ImageSource, Items, digest_items

_NEEDED, _OPTIONAL = ("path", "label"), ("split", "group", "camera", "id")
_NAMES_OF = NAMES_OF | {"gallery": (*NAMES_OF["gallery"], "index")}
_SPLIT_OF = {name: split for split, names in _NAMES_OF.items() for name in names}
_UNKNOWN = ("", "-1", "-1.0", "nan")  # pandas writes the last two for a numeric column with gaps
_BATCH = 65_536


@dataclass(frozen=True)
class Settings:
    """The manifest, the location of its images, and how to read and divide them."""

    root: str
    """The manifest: a .csv or .parquet file, or a folder of .parquet files."""
    images: str = ""
    """Base folder or URI of relative paths; empty: the manifest's folder."""
    image_size: int = 64
    """Pixels per side; the whole image is resized to a square."""
    channels: int = 3
    """Colour channels: 3 (RGB) or 1 (grey)."""
    train_fraction: float = 0.6
    """Share of each class's images used for training, if the manifest has no column 'split'."""
    seed: int = 0
    """Random seed for the division into train and gallery images."""


def open_images(settings: Settings) -> ImageSource:
    """Read the manifest without checking that its images exist; a missing one is reported when it is read.

    Raises:
        InputError: settings out of range; the manifest is missing or unreadable; a missing column; a duplicate id, or a
            duplicate path in one split; an empty path; a train or query image without a label; an unknown value of
            ``split``; an unsupported URI scheme.
    Cost: one pass over the manifest; memory for the paths, and about forty bytes per row.
    """
    check_own_images(settings)
    table = _Manifest.read(settings.root)
    names, _ = _by_name(table.coded["label"], _UNKNOWN)
    labels_N = _coded({name: number for number, name in enumerate(names)}, table.coded["label"])
    split_N = _split_of_rows(table, names, labels_N, settings)
    groups_N, cameras_N = (_numbers(table.coded[name]) if name in table.coded else None for name in ("group", "camera"))
    _check_rows(table, split_N, labels_N, cameras_N)
    items = Items(table.ids_N, labels_N, groups_N, cameras_N)
    positions = {split: np.flatnonzero(split_N == number) for number, split in enumerate(SPLITS) if number in split_N}
    splits = {split: items.take(rows_P) for split, rows_P in positions.items()}
    files, facts = Paths(_images_root(settings), table.paths), {"rows": digest_items(splits)}
    return FileSource("manifest", settings, files, splits, positions, settings.channels, facts)


@dataclass(frozen=True)
class _Manifest:
    """The manifest's columns: paths, ids, and the other existing ones, "" where empty. ``root``: for messages."""

    root: str
    paths: pa.LargeStringArray
    ids_N: NDArray[np.int64]
    coded: dict[str, pa.DictionaryArray]

    @classmethod
    def read(cls, root: str) -> "_Manifest":
        path = path_of(root).expanduser()
        files = sorted(path.glob("[!._]*.parquet")) if root and path.is_dir() else [path]
        are_tables = all(file.is_file() and file.suffix.lower() in (".csv", ".parquet") for file in files)
        if not root or not files or not are_tables:
            raise InputError(
                f"no manifest at {root!r}: expected a .csv or .parquet file, or a folder of .parquet files"
            )
        gathered: dict[str, list[pa.Array]] = {}
        with step(f"read {root}", unit="rows") as bar:
            for file in files:
                try:
                    for batch in _batches(file):
                        for name, column in zip(batch.schema.names, batch.columns, strict=True):
                            gathered.setdefault(name, []).append(_packed(name, column))
                        bar.advance(len(batch))
                except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
                    why = " ".join(str(error).split())
                    if "columns, got" in why:
                        why += "; a path with a comma needs quotes around it"
                    elif "UTF8" in why or isinstance(error, UnicodeDecodeError):
                        why += "; save it as UTF-8"
                    raise InputError(f"cannot read {file}: {why}") from error
        if not gathered:
            raise InputError(f"{root} has no rows: list at least one image")
        paths = pa.concat_arrays(gathered.pop("path"))
        ids = gathered.pop("id", None)
        ids_N = np.arange(len(paths)) if ids is None else _ids(root, pa.concat_arrays(ids))
        coded = {name: pa.chunked_array(batches).unify_dictionaries() for name, batches in gathered.items()}
        return cls(root, paths, ids_N, {name: column.combine_chunks() for name, column in coded.items()})

    def row(self, row: int) -> str:
        return f"row {row + 1} of {self.root} ({self.paths[row].as_py()!r})"


def _images_root(settings: Settings) -> str:
    if "://" in settings.images:
        return settings.images
    if settings.images:
        folder = path_of(settings.images).expanduser()
        if not folder.is_dir():
            raise InputError(f"manifest: no folder of images at {settings.images!r}; check the option images")
        return str(folder)
    path = path_of(settings.root).expanduser()
    return str(path if path.is_dir() else path.parent)


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    if file.suffix.lower() != ".csv":
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            yield from parquet.iter_batches(_BATCH, columns=_wanted(file, parquet.schema_arrow.names))
        return
    with file.open(encoding="utf-8-sig", newline="") as opened:
        header = [name.strip() for name in next(csv.reader(opened), [])]
    wanted = _wanted(file, header)
    yield from pa_csv.open_csv(
        file,
        read_options=pa_csv.ReadOptions(column_names=header, skip_rows=1),
        # Read everything as text: the label 007 is not 7, and a type inferred from the first rows may fail later.
        convert_options=pa_csv.ConvertOptions(
            include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()), strings_can_be_null=False
        ),
    )


def _wanted(file: Path, there: list[str]) -> list[str]:
    missing = [name for name in _NEEDED if name not in there]
    if missing:
        shown = textwrap.shorten(", ".join(map(repr, there)), 300)
        raise InputError(
            f"{file} has no column {missing[0]!r}; it has: {shown or 'none'} (a manifest needs "
            f"{' and '.join(_NEEDED)}, and may have {', '.join(_OPTIONAL)}; CSV columns are separated by commas)"
        )
    wanted = [name for name in _NEEDED + _OPTIONAL if name in there]
    twice = [name for name in wanted if there.count(name) > 1]
    if twice:
        raise InputError(f"{file} has two columns {twice[0]!r}: remove one")
    return wanted


def _packed(name: str, column: pa.Array) -> pa.Array:
    """A batch of a column in its stored form: paths as text, ids as integers, others dictionary-encoded."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if name == "path":
        return column.cast(pa.large_string()).fill_null("")
    if name == "id":
        if pa.types.is_string(column.type):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"the column id must contain 64-bit integers: {error}") from error
    return pc.utf8_trim_whitespace(column.cast(pa.string()).fill_null("")).dictionary_encode()


def _ids(root: str, ids: pa.Int64Array) -> NDArray[np.int64]:
    if ids.null_count:
        row = pc.index(ids.is_null(), True).as_py() + 1
        raise InputError(f"row {row} of {root} has no id: give every row an id, or none")
    ids_N = ids.to_numpy()
    twice = _first_repeated(ids_N)
    if twice:
        rows = f"rows {twice[0] + 1} and {twice[1] + 1}"
        raise InputError(f"id {ids_N[twice[0]]} occurs in {rows} of {root}: make ids unique")
    return ids_N


def _first_repeated(keys_N: NDArray[np.int64]) -> tuple[int, int] | None:
    """(earlier, later) positions of the first repeated key; None if all are unique."""
    sorted_N = np.sort(keys_N)
    if not (sorted_N[1:] == sorted_N[:-1]).any():
        return None
    order_N = np.argsort(keys_N, kind="stable")
    repeats = order_N[1:][keys_N[order_N][1:] == keys_N[order_N][:-1]]
    second = int(repeats.min())
    return int(np.flatnonzero(keys_N == keys_N[second])[0]), second


def _by_name(column: pa.DictionaryArray, unknown: Sequence[str]) -> tuple[list[str], bool]:
    """The column's texts, sorted, as numbers if all are 64-bit integers; and whether they are. Without unknown."""
    texts = [text for text in column.dictionary.to_pylist() if text not in unknown]
    are_numbers = all(
        len(text) <= 19 and text.removeprefix("-").isdecimal() and abs(int(text)) < 1 << 63 for text in texts
    )
    return sorted(texts, key=lambda text: (int(text) if are_numbers else 0, text)), are_numbers


def _numbers(column: pa.DictionaryArray) -> NDArray[np.int64]:
    """(N,) the column's integers, or the ranks of its sorted texts; -1 if empty."""
    names, are_numbers = _by_name(column, ("",))
    return _coded({name: int(name) if are_numbers else i for i, name in enumerate(names)}, column)


def _coded(number_of: dict[str, int], column: pa.DictionaryArray) -> NDArray[np.int64]:
    """(N,) the number of each row's text, -1 without one."""
    numbers = [number_of.get(value, -1) for value in column.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[column.indices.to_numpy()]


def _split_of_rows(
    table: _Manifest, names: list[str], labels_N: NDArray[np.int64], settings: Settings
) -> NDArray[np.int8]:
    """(N,) the split of each row as an index into SPLITS: the manifest's own, or a division."""
    train, gallery = SPLITS.index("train"), SPLITS.index("gallery")
    if "split" not in table.coded:
        if labels_N.min() < 0:
            row = table.row(int(labels_N.argmin()))
            raise InputError(f"{row} has no label: add one, or put the row into 'gallery' by a column split")
        train_N = divide(names, labels_N, settings.train_fraction, settings.seed)
        if train_N.all():
            raise InputError(f"no class of {table.root} has two images, so the gallery would be empty: add images")
        return np.where(train_N, train, gallery).astype(np.int8)
    column = table.coded["split"]
    words = column.dictionary.to_pylist()
    for code, word in enumerate(words):
        if word.lower() not in _SPLIT_OF:
            row = table.row(int(np.argmax(column.indices.to_numpy() == code)))
            raise InputError(f"{row} is in an unknown split {word!r}; known: {', '.join(_SPLIT_OF)}")
    split_N = _coded({word: SPLITS.index(_SPLIT_OF[word.lower()]) for word in words}, column).astype(np.int8)
    for split in (train, gallery):
        if not (split_N == split).any():
            raise InputError(f"the column split of {table.root} has no row with {SPLITS[split]!r}: add some")
    return split_N


def _check_rows(
    table: _Manifest, split_N: NDArray[np.int8], labels_N: NDArray[np.int64], cameras_N: NDArray[np.int64] | None
) -> None:
    wrong_of = {
        "has no path": pc.equal(table.paths, "").to_numpy(zero_copy_only=False),
        "is in train or queries, but has no label": (labels_N < 0) & (split_N != SPLITS.index("gallery")),
    }
    if cameras_N is not None:
        wrong_of["is in the gallery or queries, but has no camera"] = (cameras_N < 0) & (
            split_N != SPLITS.index("train")
        )
    for complaint, wrong_N in wrong_of.items():
        if wrong_N.any():
            raise InputError(f"{table.row(int(wrong_N.argmax()))} {complaint}")
    keys_N = table.paths.dictionary_encode().indices.to_numpy().astype(np.int64)
    if "split" in table.coded:  # with explicit splits an image may be in two of them
        keys_N = keys_N * len(SPLITS) + split_N
    twice = _first_repeated(keys_N)
    if twice:
        raise InputError(f"{table.row(twice[1])} repeats row {twice[0] + 1}: keep one of the two")


DATASETS = (DataSet("manifest", Settings, open_images),)
