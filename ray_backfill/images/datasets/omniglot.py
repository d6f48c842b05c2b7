"""Omniglot: handwritten characters of many alphabets by twenty drawers each; bright strokes on black, one channel.

Source: Lake, Salakhutdinov, Tenenbaum, Human-level concept learning through probabilistic program induction, Science
2015, https://github.com/brendenlake/omniglot (MIT licence), the two small background sets: 242 characters in total,
with alphabets in both files counted once. The first drawers are the train split, the others the gallery, which queries
itself. Or some characters are left to the gallery, which then shows only these, by all drawers.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
from ray_backfill.images.datasets import DataSet, require_counts
from ray_backfill.images.listing import Listing, list_zips, number_classes
from ray_backfill.images.source import FileSource, ImageSource, Items

FILES = ("omniglot_small1.zip", "omniglot_small2.zip")
# The original names of these files.
_ORIGINAL_FILES = ("images_background_small1.zip", "images_background_small2.zip")
_DRAWERS = 20


@dataclass(frozen=True)
class Settings:
    """Location of the zip files, image size and split."""

    root: str
    """Folder of the two zip files."""
    image_size: int = 28
    """Pixels per side."""
    train_drawers: int = 12
    """Number of drawers, of 20, in the train split; the others are the gallery."""
    groups: bool = False
    """Add two subgroups: 0 for the first half of the alphabets by name, 1 for the others."""
    unseen: float = 0.0
    """Share of the characters of each half that only the gallery shows, which then shows no others; at least 0, below
    1."""


def open_images(settings: Settings) -> ImageSource:
    """List the drawings. Labels number the sorted (alphabet, character) pairs.

    Raises:
        InputError: settings out of range, or the zip files are missing, unreadable or something else.
    """
    require_counts(settings, "image_size")
    if not 1 <= settings.train_drawers < _DRAWERS:
        raise InputError(f"omniglot: train_drawers must be 1 to {_DRAWERS - 1}, not {settings.train_drawers}")
    if not 0 <= settings.unseen < 1:
        raise InputError(f"omniglot: unseen must be at least 0 and below 1, not {settings.unseen}")
    listing = list_zips(_find_files(settings.root))
    drawers_N = _drawers(listing)
    names, numbers_F = number_classes([tuple(folder.split("/")) for folder in listing.folders])
    labels_N = numbers_F[listing.folder_N]
    alphabets, alphabet_of_class = np.unique([alphabet for alphabet, *_ in names], return_inverse=True)
    half_of_class = (alphabet_of_class >= len(alphabets) // 2).astype(np.int64)
    items = Items(np.arange(len(labels_N)), labels_N, half_of_class[labels_N] if settings.groups else None)
    train_N = drawers_N <= settings.train_drawers
    gallery_N = ~train_N
    if settings.unseen:
        gallery_N = _unseen(half_of_class, settings.unseen)[labels_N]
        train_N &= ~gallery_N
    splits = {"train": items.take(np.flatnonzero(train_N)), "gallery": items.take(np.flatnonzero(gallery_N))}
    return FileSource("omniglot", settings, listing, splits, channels=1, resample=Image.Resampling.BOX, inverted=True)


def _unseen(half_of_class: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """(C,) whether a class is left to the gallery: this share of each half, always the same classes."""
    rng = np.random.default_rng(0)
    unseen = np.zeros(len(half_of_class), bool)
    for half in (0, 1):
        classes = np.flatnonzero(half_of_class == half)
        unseen[rng.permutation(classes)[: round(share * len(classes))]] = True
    if not unseen.any():
        raise InputError(f"omniglot: unseen {share} is less than one character of each half; give a larger share, or 0")
    return unseen


def _find_files(root: str) -> list[Path]:
    folder = path_of(root).expanduser()
    for names in (FILES, _ORIGINAL_FILES):
        if root and all((folder / name).is_file() for name in names):
            return [folder / name for name in names]
    raise InputError(
        f"omniglot: expected {' and '.join(FILES)} in {root!r}; download them as {' and '.join(_ORIGINAL_FILES)} "
        "from github.com/brendenlake/omniglot (folder python)"
    )


def _drawers(listing: Listing) -> NDArray[np.int64]:
    """(N,) drawer of each file, from the last two digits of its name: 0394_07.png is by drawer 7."""
    deep_F = np.array([folder.count("/") == 1 for folder in listing.folders])
    named_N = pc.match_substring_regex(listing.names, r"^.*_\d\d\.png$").to_numpy(zero_copy_only=False)
    wrong_W = np.flatnonzero(~(named_N & deep_F[listing.folder_N]))
    if len(wrong_W):
        where = listing.where(int(wrong_W[0]))
        raise InputError(f"omniglot: {where} is not alphabet/character/NNNN_DD.png; use the original files")
    return pc.utf8_slice_codeunits(listing.names, -6, -4).cast(pa.int64()).to_numpy()


DATASETS = (DataSet("omniglot", Settings, open_images),)
