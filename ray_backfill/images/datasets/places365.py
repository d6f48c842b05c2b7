"""Places-365 (standard): photographs of 365 kinds of places, in the official "easy directory structure".

Source: Zhou et al., Places: a 10 million image database for scene recognition, PAMI 2017,
http://places2.csail.mit.edu. The validation images are the gallery, which queries itself. Labels are ranks of the
sorted classes, as in the official list. Licence: for research and education only, not for commercial use.
"""

from dataclasses import dataclass

from ray_backfill.images.datasets import Published, PublishedSettings, require_folders
from ray_backfill.images.sources import ImageSource
from ray_backfill.images.sources.classes import items_below, rank_classes
from ray_backfill.images.sources.folders import list_folders
from ray_backfill.images.sources.source import FileSource

# The images of the easy format have 256 x 256 pixels.
PUBLISHED = Published(train=1_803_460, classes=365, gallery=36_500, decoded_per_s=1200)
HOME = (
    "http://places2.csail.mit.edu/download.html, places365standard_easyformat.tar (24 GB; no account, but you must "
    "agree to its terms: research and education only)"
)
LAYOUT = "places365_standard/train/<class>/*.jpg and places365_standard/val/<class>/*.jpg"

# The top folder of the archive.
_FOLDER = "places365_standard"


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location and image size."""


def open_images(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded.

    Raises:
        InputError: image_size below 1, missing folders, an empty class, or a class of val that train lacks.
    Cost: one listing of the tree.
    """
    root = settings.folder
    if (root / _FOLDER).is_dir():
        root = root / _FOLDER
    folders = {"train": "train", "gallery": "val"}
    require_folders(settings, root, folders.values(), str(root))
    listing = list_folders(str(root), below=tuple(folders.values()))
    label_of = rank_classes(listing)
    splits = {split: items_below("places365", listing, folder, label_of) for split, folder in folders.items()}
    return FileSource("places365", settings, listing, splits)
