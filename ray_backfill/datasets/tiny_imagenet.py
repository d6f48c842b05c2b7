"""Tiny ImageNet, a part of it: photographs of 200 classes of ImageNet, 64 x 64 pixels, in one zip file or unpacked.

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip, made of ImageNet (Russakovsky et al., 2015). This layout has
150 photographs of each class to train on and 50 others as the gallery, which queries itself. Labels are ranks of the
sorted classes. Licence: that of ImageNet, for research that is not commercial.
"""

from dataclasses import dataclass
from pathlib import Path

from ray_backfill.datasets import Published, require_counts, wrong_layout
from ray_backfill.images import ImageSource
from ray_backfill.images.classes import classes_below, items_below, rank_classes
from ray_backfill.images.folders import Listing, list_folders
from ray_backfill.images.source import FileSource
from ray_backfill.images.zips import list_zips

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


def open_source(settings: Settings) -> ImageSource:
    """List the photographs; nothing is decoded.

    Raises:
        InputError: image_size below 1, nothing of this layout in the root, an unreadable zip file, an empty class, or a
            class of the gallery that train lacks.
    """
    require_counts(settings, "image_size")
    listing = _list(settings)
    for split in _SPLITS:
        if not classes_below(listing, split):
            raise wrong_layout(settings, f"there is no folder {split} with class folders", listing.root)
    label_of = rank_classes(listing)
    splits = {split: items_below("tiny_imagenet", listing, split, label_of) for split in _SPLITS}
    return FileSource("tiny_imagenet", settings, listing, splits)


def _list(settings: Settings) -> Listing:
    root = Path(settings.root).expanduser()
    archive, folder = root / "tiny_imagenet.zip", root / "tiny_imagenet"
    if settings.root and archive.is_file():
        return list_zips([archive])
    if settings.root and folder.is_dir():
        return list_folders(str(folder), below=_SPLITS)
    raise wrong_layout(settings, "there is no tiny_imagenet.zip")
