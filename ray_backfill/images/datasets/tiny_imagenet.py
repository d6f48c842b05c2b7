"""Tiny ImageNet, a part of it: photographs of 200 classes of ImageNet, 64 x 64 pixels, in one zip file or unpacked.

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip, made of ImageNet (Russakovsky et al., 2015). This layout has
150 photographs of each class to train on and 50 others as the gallery, which queries itself unless some of them are
set aside as queries. Labels are ranks of the sorted classes. Licence: that of ImageNet, for research that is not
commercial.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import Published, require_counts, wrong_layout
from ray_backfill.images.sources import ImageSource, Items
from ray_backfill.images.sources.classes import classes_below, items_below, rank_classes
from ray_backfill.images.sources.folders import Listing, list_folders
from ray_backfill.images.sources.source import FileSource
from ray_backfill.images.sources.zips import list_zips

PUBLISHED = Published(train=30_000, classes=200, gallery=10_000, decoded_per_s=500)
HOME = "http://cs231n.stanford.edu/tiny-imagenet-200.zip (for research that is not commercial)"
LAYOUT = (
    "tiny_imagenet.zip, or tiny_imagenet/ unpacked from it, with train/<class>/*.jpg and gallery/<class>/*.jpg: any of "
    "its labelled photographs in these folders"
)

_SPLITS = ("train", "gallery")


@dataclass(frozen=True)
class Settings:
    """Location and image size."""

    root: str
    """Folder with tiny_imagenet.zip, or with tiny_imagenet/ unpacked from it."""
    image_size: int = 64
    """Pixels per side; the files have 64."""
    queries: int = 0
    """Photographs of each class of the gallery that are queries instead; 0: gallery items query the others."""


def open_images(settings: Settings) -> ImageSource:
    """List the photographs; nothing is decoded.

    Raises:
        InputError: image_size below 1, queries below 0 or not fewer than a class has, nothing of this layout in the
            root, an unreadable zip file, an empty class, or a class of the gallery that train lacks.
    """
    require_counts(settings, "image_size")
    listing = _list(settings)
    for split in _SPLITS:
        if not classes_below(listing, split):
            raise wrong_layout(settings, f"there is no folder {split} with class folders", listing.root)
    label_of = rank_classes(listing)
    splits = {split: items_below("tiny_imagenet", listing, split, label_of) for split in _SPLITS}
    if settings.queries:
        splits["gallery"], splits["queries"] = _set_aside(splits["gallery"], settings.queries)
    return FileSource("tiny_imagenet", settings, listing, splits)


def _set_aside(gallery: Items, queries: int) -> tuple[Items, Items]:
    """The gallery without the first images of each class, and these. Items of a class follow each other."""
    _, first, counts = np.unique(gallery.labels_N, return_index=True, return_counts=True)
    if not 0 < queries < counts.min():
        raise InputError(
            f"--images.queries must be at least 0 and less than {counts.min()}, which a class has; got {queries}"
        )
    is_query_N = np.arange(len(gallery.labels_N)) - np.repeat(first, counts) < queries
    return (
        Items(gallery.ids_N[~is_query_N], gallery.labels_N[~is_query_N]),
        Items(gallery.ids_N[is_query_N], gallery.labels_N[is_query_N]),
    )


def _list(settings: Settings) -> Listing:
    root = Path(settings.root).expanduser()
    archive, folder = root / "tiny_imagenet.zip", root / "tiny_imagenet"
    if settings.root and archive.is_file():
        return list_zips([archive])
    if settings.root and folder.is_dir():
        return list_folders(str(folder), below=_SPLITS)
    raise wrong_layout(settings, "there is no tiny_imagenet.zip")
