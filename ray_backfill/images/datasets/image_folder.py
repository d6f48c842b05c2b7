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
from ray_backfill.core.store_path import path_of
from ray_backfill.images.datasets import DataSet, check_own_images
from ray_backfill.images.draws import divide
from ray_backfill.images.listing import class_folders, list_images
from ray_backfill.images.source import NAMES_OF, SPLITS, FileSource, ImageSource

_LISTS = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl")


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
    if Path(settings.root).suffix.lower() in _LISTS and path_of(settings.root).expanduser().is_file():
        raise InputError(
            f"image_folder reads a folder of images, and {settings.root} is a file; use --recipe manifest for a .csv "
            "or .parquet file that lists images"
        )
    listing = list_images(settings.root)
    tops = {folder.split("/", 1)[0] for folder in listing.folders}
    top_of = {split: there[0] for split in SPLITS if (there := [name for name in NAMES_OF[split] if name in tops])}
    if {"train", "gallery"} <= top_of.keys():
        _, splits = class_folders(listing, top_of)
    else:
        names, whole = class_folders(listing, {"": ""})
        train_N = divide(names, whole[""].labels_N, settings.train_fraction, settings.seed)
        splits = {
            split: whole[""].take(np.flatnonzero(of)) for split, of in (("train", train_N), ("gallery", ~train_N))
        }
    return FileSource("image_folder", settings, listing, splits, channels=settings.channels)


DATASETS = (DataSet("image_folder", Settings, open_images),)
