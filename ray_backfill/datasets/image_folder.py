"""Your own images: a folder per class, as a tree, a zip file of it, or a folder of such zip files.

A class is the path of an image's folder below the root ("Alphabet/character" is fine). A tree with ``train/`` and one
of ``gallery/``, ``val/``, ``test/`` (the first of these that is there), and perhaps ``queries/`` or ``query/``, brings
its own splits. Any other tree is divided, class by class. Licence: that of the images.

Shapes: N images.
"""

import zlib
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.datasets import ImageSource, Items
from ray_backfill.datasets._file_source import FileSource, facts_of, number_classes
from ray_backfill.datasets._files import Listing, list_images
from ray_backfill.datasets._hashing import hash_ids
from ray_backfill.errors import InputError

_FOLDERS = {"gallery": ("gallery", "val", "test"), "queries": ("queries", "query")}


@dataclass(frozen=True)
class Settings:
    """``root``: the folder or zip file. ``channels``: 3 (RGB) or 1 (grey).

    ``train_fraction``, ``seed``: how many, and which, of a class's images train, where the tree has no splits.
    """

    root: str
    image_size: int = 64
    channels: int = 3
    train_fraction: float = 0.6
    seed: int = 0


def open_source(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded.

    Raises:
        InputError: settings out of range; nothing at the root, no images, an image outside of any class folder, an
            empty class, an unreadable zip file.
    Cost: one listing of the tree, and a sort.
    """
    if settings.image_size < 1:
        raise InputError(f"image_folder: image_size must be at least 1, not {settings.image_size}")
    if settings.channels not in (1, 3):
        raise InputError(f"image_folder: channels must be 3 (RGB) or 1 (grey), not {settings.channels}")
    if not 0 < settings.train_fraction < 1:
        raise InputError(f"image_folder: train_fraction must be between 0 and 1, not {settings.train_fraction}")
    listing = list_images(settings.root)
    own = _own_splits(listing)
    splits = _split_rows(listing, own) if own else _divided_rows(listing, settings)
    return FileSource(
        name="image_folder",
        listing=listing,
        splits_items=splits,
        image_size=settings.image_size,
        channels=settings.channels,
        facts=facts_of(asdict(settings)),
    )


def _own_splits(listing: Listing) -> dict[str, str]:
    """The top folder of each split, if the tree has splits of its own."""
    tops = {file.folder.split("/", 1)[0] for file in listing.files}
    found = {"train": "train"} if "train" in tops else {}
    for split, folders in _FOLDERS.items():
        there = [folder for folder in folders if folder in tops]
        if there:
            found[split] = there[0]
    return found if "train" in found and "gallery" in found else {}


def _split_rows(listing: Listing, own: dict[str, str]) -> dict[str, Items]:
    split_of = {folder: split for split, folder in own.items()}
    rows, classes, splits = [], [], []
    for row, file in enumerate(listing.files):
        top, _, name = file.folder.partition("/")
        if top in split_of:
            rows.append(row)
            classes.append(_class_name(name, listing, row))
            splits.append(split_of[top])
    _, labels_N = number_classes(classes)
    ids_N, splits_N = np.array(rows, np.int64), np.array(splits)
    return {split: Items(ids_N[splits_N == split], labels_N[splits_N == split]) for split in own}


def _divided_rows(listing: Listing, settings: Settings) -> dict[str, Items]:
    classes = [_class_name(file.folder, listing, row) for row, file in enumerate(listing.files)]
    names, labels_N = number_classes(classes)
    ids_N = np.arange(len(labels_N), dtype=np.int64)
    train_N = np.zeros(len(labels_N), bool)
    # The listing is sorted by class, so that a class is a run of rows.
    starts = np.searchsorted(labels_N, np.arange(len(names) + 1))
    for label, name in enumerate(names):
        start, end = int(starts[label]), int(starts[label + 1])
        train_N[start + _training_part(name, end - start, settings)] = True
    return {"train": Items(ids_N[train_N], labels_N[train_N]), "gallery": Items(ids_N[~train_N], labels_N[~train_N])}


def _training_part(name: str, count: int, settings: Settings) -> NDArray[np.int64]:
    """Which of a class's images, sorted by name, train: at least one, and not all unless there is only one.

    The class's name takes part, not its number, so that a class keeps its division when others come or go.
    """
    wanted = round(settings.train_fraction * count)
    wanted = 1 if count == 1 else min(max(wanted, 1), count - 1)
    shuffled = np.argsort(hash_ids(settings.seed, zlib.crc32(name.encode()), np.arange(count)), kind="stable")
    return shuffled[:wanted]


def _class_name(folder: str, listing: Listing, row: int) -> str:
    if not folder:
        raise InputError(f"{listing.where(row)} is in no class folder: move it into one, or away")
    return folder
