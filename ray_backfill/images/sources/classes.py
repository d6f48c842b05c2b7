"""Classes determined by folders.

Shapes: N images of a listing or of a split; F folders of the listing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.sources import Items
from ray_backfill.images.sources.folders import Listing


def number_classes(classes_F: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """The distinct classes, sorted, and the (F,) int64 index of each given class among them.

    With one class per folder, ``numbers_F[listing.folder_N]`` are the labels of the files.
    """
    names = sorted(set(classes_F))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[name] for name in classes_F], np.int64)


def classes_below(listing: Listing, split: str) -> dict[int, str]:
    """Folder number in the listing -> class (the path below ``split``), for each folder below ``split``."""
    top = f"{split}/"
    return {number: name.removeprefix(top) for number, name in enumerate(listing.folders) if name.startswith(top)}


def rank_classes(listing: Listing) -> dict[str, int]:
    """Class -> label: its rank among the sorted classes of train. (A listing's folders are sorted.)"""
    return {name: label for label, name in enumerate(classes_below(listing, "train").values())}


def items_below(dataset: str, listing: Listing, split: str, label_of: dict[str, int]) -> Items:
    """The images below ``split``; an id is the image's position in the listing.

    Raises:
        InputError: an image is in no class folder, or a class is missing from train.
    """
    if split in listing.folders:
        first = int(np.searchsorted(listing.folder_N, listing.folders.index(split)))
        raise InputError(f"{dataset}: {listing.where(first)} is in no class folder: move it into one, or remove it")
    classes = classes_below(listing, split)
    require_known(dataset, split, set(classes.values()), label_of)
    label_F = np.full(len(listing.folders), -1, np.int64)
    for number, name in classes.items():
        label_F[number] = label_of[name]
    ids_N = np.flatnonzero((label_F >= 0)[listing.folder_N])
    return Items(ids_N, label_F[listing.folder_N[ids_N]])


def require_known(dataset: str, what: str, classes: set[str], label_of: dict[str, int]) -> None:
    """Raises InputError if ``what`` has a class that is missing from train."""
    unknown = sorted(classes - label_of.keys())
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise InputError(
            f"{dataset}: {what} has the class {unknown[0]!r}{more}, which train lacks: unpack all of train, or remove "
            "the class from both"
        )
