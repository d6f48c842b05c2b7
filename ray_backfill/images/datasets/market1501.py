"""Market-1501: 1,501 people seen by six cameras, in the layout of its archive.

A name such as ``0002_c1s1_000451_03.jpg`` contains identity, camera, sequence and frame. Identity 0000 marks
distractors, which are never right; -1 marks junk, which every query ignores. Junk is therefore left out of the gallery,
which gives the same ranking. Gallery images with a query's identity and camera are ignored.
Source: rank merge, section 5.1; the data set's home page.

Shapes: N images.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import Published, PublishedSettings, require_folders
from ray_backfill.images.sources import ImageSource, Items
from ray_backfill.images.sources.folders import Listing, list_folders
from ray_backfill.images.sources.source import FileSource

# Its images have 64 x 128 pixels.
PUBLISHED = Published(train=12_936, classes=751, gallery=15_913, queries=3_368, decoded_per_s=2000)
HOME = "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html (for research; cite its paper)"
LAYOUT = (
    "bounding_box_train/, bounding_box_test/ and query/, each with files such as 0002_c1s1_000451_03.jpg, "
    "perhaps below Market-1501-v15.09.15/"
)

_TOP = "Market-1501-v15.09.15"
_FOLDERS = {"train": "bounding_box_train", "gallery": "bounding_box_test", "queries": "query"}
_NAME = r"^(?P<identity>-1|[0-9]{4})_c(?P<camera>[1-6])s[0-9]+_[0-9]+_[0-9]+\."
_JUNK, _DISTRACTOR = -1, 0


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location and image size."""


def open_images(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded. Labels are identity numbers.

    Raises:
        InputError: a folder is missing, a file name is not of this data set, or a query or train image is junk or a
            distractor.
    """
    root = settings.folder
    root = root / _TOP if (root / _TOP).is_dir() else root
    require_folders(settings, root, _FOLDERS.values())
    listing = list_folders(str(root), below=tuple(_FOLDERS.values()))
    identity_N, camera_N = _parse(listing)
    positions = {}
    for split, folder in _FOLDERS.items():
        if folder not in listing.folders:
            raise InputError(f"market1501: no images in {folder}: unpack the archive again")
        of_split_N = listing.folder_N == listing.folders.index(folder)
        if split == "gallery":
            of_split_N &= identity_N != _JUNK
        elif (nobody := np.flatnonzero(of_split_N & (identity_N <= _DISTRACTOR))).size:
            raise InputError(
                f"{listing.where(int(nobody[0]))} is junk or a distractor: only the gallery may have those"
            )
        positions[split] = np.flatnonzero(of_split_N)
    splits = {
        split: Items(np.arange(len(rows)), identity_N[rows], cameras_N=camera_N[rows])
        for split, rows in positions.items()
    }
    return FileSource("market1501", settings, listing, splits, positions)


def _parse(listing: Listing) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) identity and (N,) camera of each file."""
    found = pc.extract_regex(listing.names, pattern=_NAME)
    if found.null_count:
        first = int(np.argmax(found.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(
            f"{listing.where(first)} is not named like an image of Market-1501 (0002_c1s1_000451_03.jpg): remove it"
        )
    identity, camera = (pc.cast(found.field(name), pa.int64()).to_numpy() for name in ("identity", "camera"))
    return identity, camera
