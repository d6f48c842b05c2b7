"""Images by row: the interface of image sources, and their building blocks. Independent of any data set."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SPLITS = ("train", "gallery", "queries")


@dataclass(frozen=True)
class Items:
    """The rows of one split, without their pixels.

    ids_N: (N,) int64, unique within the split. labels_N: (N,) int64 class of each image, -1 if unknown. groups_N: (N,)
    int64 subgroup, or None. cameras_N: (N,) int64 camera, or None; a query ignores gallery images of the same class AND
    camera. positives_N: for queries, (N,) lists of int64 ids of the right gallery images if labels do not determine
    them; otherwise None.
    """

    ids_N: NDArray[np.int64]
    labels_N: NDArray[np.int64]
    groups_N: NDArray[np.int64] | None = None
    cameras_N: NDArray[np.int64] | None = None
    positives_N: pa.ListArray | None = None

    def __len__(self) -> int:
        return len(self.ids_N)

    def take(self, rows: NDArray[np.int64]) -> "Items":
        """The rows at these positions."""
        return replace(self, **{name: values.take(rows) for name, values in vars(self).items() if values is not None})


@dataclass(frozen=True)
class Pixels:
    """A decoded batch: (B, S, S, C) uint8, and the reason for each broken image, by position in the batch.

    The pixels of a broken image are zero; callers must leave those positions out.
    """

    pixels_BSSC: NDArray[np.uint8]
    broken: dict[int, str] = field(default_factory=dict)


class ImageSource(Protocol):
    """Splits of labelled images. ``splits``: the existing ones; without "queries" the gallery queries itself."""

    splits: tuple[str, ...]
    image_size: int
    channels: int

    def items(self, split: str) -> Items:
        """All rows of ``split``. Raises InputError for a split that is not in ``splits``."""

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode the given rows of ``split`` (positions in ``items(split)``). Never raises for a broken image."""

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        """The user's names of these images, such as paths below the root; None if they have no names."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able: changes when any image, label or split may have changed. Cheap (no decoding)."""


def digest_items(splits_items: Mapping[str, Items]) -> str:
    """Hash of all ids, labels, groups, cameras and positives, for labels that the file names do not determine."""
    hasher = hashlib.sha256()
    for split in sorted(splits_items):
        for column in fields(Items):
            values = getattr(splits_items[split], column.name)
            hasher.update(f"{split} {column.name}\0".encode())
            if isinstance(values, pa.ListArray):
                hasher.update(values.value_lengths().to_numpy().data)
                values = values.flatten().to_numpy()
            if values is not None:
                hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()
