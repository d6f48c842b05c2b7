"""Your own images: one folder per class, as a folder tree, a zip file of one, or a folder of such zip files.

A class is the path of an image's folder below the root ("Alphabet/character" is fine). A tree with ``train/`` and one
of ``gallery/``, ``val/``, ``test/`` (the first that exists), and optionally ``queries/`` or ``query/``, has its own
splits. Any other tree is divided, class by class. Licence: that of your images.

Shapes: N images; F folders of images.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import DataSet, check_own_images
from ray_backfill.images.draws import divide
from ray_backfill.images.listing import Listing, list_images, number_classes
from ray_backfill.images.source import FileSource, ImageSource, Items

_LISTS = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")
_FOLDERS = {"gallery": ("gallery", "val", "test"), "queries": ("queries", "query")}


@dataclass(frozen=True)
class Settings:
    """Location of the images, and how to read and divide them."""

    root: str
    """The folder tree, a zip file of one, or a folder of such zip files."""
    image_size: int = 64
    """Pixels per side; the whole image is resized to a square."""
    channels: int = 3
    """Colour channels: 3 (RGB) or 1 (grey)."""
    train_fraction: float = 0.6
    """Share of each class's images used for training, if the tree has no splits of its own."""
    seed: int = 0
    """Random seed for the division into train and gallery images."""


def open_images(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded.

    Raises:
        InputError: settings out of range, nothing at the root, no images, an image outside any class folder, an empty
            class, or an unreadable zip file.
    Cost: one listing of the tree, and a sort.
    """
    check_own_images(settings)
    if Path(settings.root).suffix.lower() in _LISTS and Path(settings.root).expanduser().is_file():
        raise InputError(
            f"image_folder reads a folder of images, and {settings.root} is a file; use --recipe manifest for a .csv "
            "or .parquet file that lists images"
        )
    listing = list_images(settings.root)
    own = _own_splits(listing)
    splits = _split_rows(listing, own) if own else _divided_rows(listing, settings)
    return FileSource("image_folder", settings, listing, splits, channels=settings.channels)


def _own_splits(listing: Listing) -> dict[str, str]:
    """The top folder of each split, if the tree has splits of its own."""
    tops = {folder.split("/", 1)[0] for folder in listing.folders}
    found = {"train": "train"} if "train" in tops else {}
    for split, folders in _FOLDERS.items():
        there = [folder for folder in folders if folder in tops]
        if there:
            found[split] = there[0]
    return found if "train" in found and "gallery" in found else {}


def _split_rows(listing: Listing, own: dict[str, str]) -> dict[str, Items]:
    split_of = {folder: split for split, folder in own.items()}
    parts = [folder.partition("/") for folder in listing.folders]
    splits_F = np.array([split_of.get(top, "") for top, _, _ in parts])
    used_F = np.flatnonzero(splits_F != "").tolist()
    numbers_F = np.full(len(parts), -1)
    numbers_F[used_F] = number_classes([_class_name(parts[number][2], listing, number) for number in used_F])[1]
    items = Items(np.arange(len(listing)), numbers_F[listing.folder_N])
    return {split: items.take(np.flatnonzero((splits_F == split)[listing.folder_N])) for split in own}


def _divided_rows(listing: Listing, settings: Settings) -> dict[str, Items]:
    classes = [_class_name(folder, listing, number) for number, folder in enumerate(listing.folders)]
    names, numbers_F = number_classes(classes)
    items = Items(np.arange(len(listing)), numbers_F[listing.folder_N])
    train_N = divide(names, items.labels_N, settings.train_fraction, settings.seed)
    return {"train": items.take(np.flatnonzero(train_N)), "gallery": items.take(np.flatnonzero(~train_N))}


def _class_name(name: str, listing: Listing, folder: int) -> str:
    if not name:
        first = int(np.searchsorted(listing.folder_N, folder))
        raise InputError(f"{listing.where(first)} is in no class folder: move it into one, or remove it")
    return name


DATASETS = (DataSet("image_folder", Settings, open_images),)
