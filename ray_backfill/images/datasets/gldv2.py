"""Google Landmarks Dataset v2: 5 million photographs of landmarks, in folders by the first digits of their ids.

The train split is the cleaned one (``train_clean.csv``), or the full one (``train.csv``) without that file. The gallery
is the index. Queries are the test images with answers in ``retrieval_solution_v2.1.csv``, private and public; it also
lists the right images. Labels are landmark_ids. Train and index number their landmarks independently, so a million is
added to those of the index, and no index landmark is mistaken for one of the training set. Nothing is listed: all paths
follow from the ids, and a missing image is noticed when it is read. A folder may hold the published tar archives.
Source: Weyand et al., Google Landmarks Dataset v2 (CVPR 2020); protocol: rank merge, section 5.3.

Shapes: N images; Q queries; C lines of a table.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from ray_backfill.core.errors import InputError
from ray_backfill.images.archives import with_archives
from ray_backfill.images.datasets import DataSet, Published, PublishedSettings, require_folders, wrong_layout
from ray_backfill.images.paths import Paths
from ray_backfill.images.source import FileSource, ImageSource, Items, digest_items

_FOLDERS = {"train": "train", "gallery": "index", "queries": "test"}
_USAGES = {"all": ("Private", "Public"), "private": ("Private",), "public": ("Public",)}
_FIRST_OF_INDEX = 1_000_000
# All images of a landmark are in one field, so lines may be long.
_BLOCK_BYTES = 16 << 20
# Queries of each choice; of 1,580 test images, 451 are ignored.
_N_QUERIES = {"all": 1_129, "private": 750, "public": 379}


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location, image size and queries."""

    queries: str = "all"
    """Queries of the test set to use: all, private or public."""


def open_images(settings: Settings) -> ImageSource:
    """Read the tables; no folder is listed and nothing is decoded.

    Raises:
        InputError: settings out of range, a folder or table is missing, or a table does not match the others.
    """
    if settings.queries not in _USAGES:
        raise InputError(f"gldv2: unknown queries {settings.queries!r}; known: {', '.join(_USAGES)}")
    root = settings.folder
    require_folders(settings, root, _FOLDERS.values())
    (train, train_N), (gallery, gallery_N) = _train(settings), _index(settings)
    queries, positives_Q = _queries(settings, gallery)
    ids = {"train": train, "gallery": gallery, "queries": queries}
    splits = {split: Items(np.arange(len(of)), of) for split, of in (("train", train_N), ("gallery", gallery_N))}
    splits["queries"] = Items(np.arange(len(queries)), np.full(len(queries), -1), positives_N=positives_Q)
    paths_of = []
    for split, folder in _FOLDERS.items():  # folder/a/b/c/abc....jpg
        letters = [pc.utf8_slice_codeunits(ids[split], i, i + 1) for i in range(3)]
        named = pc.binary_join_element_wise(ids[split], "jpg", ".")
        paths_of.append(pc.binary_join_element_wise(folder, *letters, named, "/"))
    firsts = np.cumsum([0, *(len(ids[split]) for split in _FOLDERS)])[:-1]
    positions = {split: first + splits[split].ids_N for split, first in zip(_FOLDERS, firsts, strict=True)}
    facts = {"items": digest_items(splits)}
    folder_N = np.repeat(np.arange(len(_FOLDERS)), [len(ids[split]) for split in _FOLDERS])
    paths = Paths(str(root), pa.concat_arrays(paths_of))
    files = with_archives(paths, [root / folder for folder in _FOLDERS.values()], folder_N)
    return FileSource("gldv2", settings, files, splits, positions, facts=facts)


def _train(settings: Settings) -> tuple[pa.Array, NDArray[np.int64]]:
    path = _need(settings, "train_clean.csv", "train.csv")
    if path.name == "train_clean.csv":
        lists = _read(path, {"landmark_id": pa.int64(), "images": pa.string()})
        ids, line_N = _split(lists["images"])
        labels = lists["landmark_id"].take(line_N)
    else:
        table = _read(path, {"id": pa.string(), "landmark_id": pa.int64()})
        ids, labels = table["id"], table["landmark_id"]
    _check_ids(ids, path)
    return ids, labels.to_numpy()


def _index(settings: Settings) -> tuple[pa.Array, NDArray[np.int64]]:
    """Ids, in the order of index.csv if it exists, and labels: -1 for images of unknown landmarks."""
    all_ids, known = _find(settings, "index.csv"), _find(settings, "index_image_to_landmark.csv")
    path = all_ids or known or _need(settings, "index_image_to_landmark.csv", "index.csv")
    ids = _read(path, {"id": pa.string()})["id"]
    _check_ids(ids, path)
    if known is None:
        return ids, np.full(len(ids), -1)
    table = _read(known, {"id": pa.string(), "landmark_id": pa.int64()})
    _check_ids(table["id"], known)
    labels = table["landmark_id"].take(pc.index_in(ids, value_set=table["id"]))
    return ids, pc.add(labels, _FIRST_OF_INDEX).fill_null(-1).to_numpy()


def _queries(settings: Settings, index_ids: pa.Array) -> tuple[pa.Array, pa.ListArray]:
    """Ids, and the right index rows of each query."""
    path = _need(settings, "retrieval_solution_v2.1.csv")
    table = _read(path, {"id": pa.string(), "images": pa.string(), "Usage": pa.string()})
    _check_ids(table["id"], path)
    usage = pc.utf8_trim_whitespace(table["Usage"])
    strange = usage.filter(pc.invert(pc.is_in(usage, value_set=pa.array(["Private", "Public", "Ignored"]))))
    if len(strange):
        raise InputError(f"{path}: Usage must be Private, Public or Ignored, not {strange[0].as_py()!r}")
    asked = pc.is_in(usage, value_set=pa.array(_USAGES[settings.queries]))
    ids, images = table["id"].filter(asked), table["images"].filter(asked)
    if not len(ids):
        raise InputError(f"{path} has no query for queries = {settings.queries!r}; choose all, private or public")
    right, query_P = _split(images)
    rows = pc.index_in(right, value_set=index_ids)
    if rows.null_count:
        first = int(np.argmax(rows.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(
            f"{path}: the image {right[first].as_py()}, an answer to {ids[query_P[first].as_py()].as_py()}, "
            "is not in the index"
        )
    counts_Q = np.bincount(query_P.to_numpy(), minlength=len(ids))
    starts = pa.array(np.concatenate([[0], np.cumsum(counts_Q)]), pa.int32())
    return ids, pa.ListArray.from_arrays(starts, rows.cast(pa.int64()))


def _find(settings: Settings, name: str) -> Path | None:
    """Path of a table: beside the folders, in metadata/, or in one of the folders; None if it does not exist."""
    for folder in ("", "metadata", *_FOLDERS.values()):
        path = settings.folder / folder / name
        if path.is_file():
            return path
    return None


def _need(settings: Settings, *names: str) -> Path:
    for name in names:
        if (path := _find(settings, name)) is not None:
            return path
    raise wrong_layout(settings, f"there is no file {' or '.join(names)}")


def _read(path: Path, columns: dict[str, pa.DataType]) -> dict[str, pa.Array]:
    options = csv.ConvertOptions(column_types=columns, include_columns=list(columns))
    try:
        table = csv.read_csv(path, csv.ReadOptions(block_size=_BLOCK_BYTES), convert_options=options)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        raise InputError(f"{path} must be a table with the columns {', '.join(columns)}: {error}") from error
    found = {name: table[name].combine_chunks() for name in columns}
    for name, column in found.items():
        if column.null_count:
            raise InputError(f"{path}, column {name!r}: a value is missing")
    return found


def _split(lists_C: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split lines of ids separated by blanks ("None": no id); returns the ids and each id's line number."""
    split_C = pc.utf8_split_whitespace(lists_C)
    ids, line_N = pc.list_flatten(split_C), pc.list_parent_indices(split_C)
    there = pc.invert(pc.is_in(ids, value_set=pa.array(["", "None"])))
    return ids.filter(there), line_N.filter(there)


def _check_ids(ids: pa.Array, path: Path) -> None:
    """Raises InputError for malformed and duplicate ids (such as an image of two landmarks)."""
    wrong = ids.filter(pc.invert(pc.match_substring_regex(ids, "^[0-9a-f]{16}$")))
    if len(wrong):
        raise InputError(f"{path}: {wrong[0].as_py()!r} is not an id of 16 hexadecimal digits")
    if pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        raise InputError(f"{path}: the image {twice[0].as_py()} occurs twice; keep one line and one landmark per image")


DATASETS = (
    DataSet(
        "gldv2",
        Settings,
        open_images,
        lambda settings: Published(1_580_470, classes=81_313, gallery=761_757, queries=_N_QUERIES[settings.queries]),
        "https://github.com/cvdfoundation/google-landmark (no account needed; each image has its own licence)",
        "train/0/1/2/0123456789abcdef.jpg ..., index/ and test/ likewise; and, beside them or in metadata/, "
        "train_clean.csv (or train.csv), index_image_to_landmark.csv (or index.csv), retrieval_solution_v2.1.csv",
    ),
)
