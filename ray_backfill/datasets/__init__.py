"""What every source of images offers; one source a file, found by module name.

A source module defines ``Settings`` (a frozen dataclass, all a worker needs to open it again) and
``open_source(settings) -> ImageSource``. Sources know splits and pixels; they know no models.
"""

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.plugins import load_plugin, plugin_names

SPLITS = ("train", "gallery", "queries")


@dataclass(frozen=True)
class Items:
    """The rows of one split, without their pixels.

    ids_N: (N,) int64, unique within the split. labels_N: (N,) int64 class of each image.
    groups_N: (N,) int64 subgroup, or None.
    """

    ids_N: NDArray[np.int64]
    labels_N: NDArray[np.int64]
    groups_N: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids_N)


@dataclass(frozen=True)
class Pixels:
    """A decoded batch: (B, S, S, C) uint8, and for each broken image its position in the batch with the reason.

    A broken image's pixels are zero; whoever reads the batch must leave those positions out.
    """

    pixels_BSSC: NDArray[np.uint8]
    broken: dict[int, str] = field(default_factory=dict)


class ImageSource(Protocol):
    """Splits of labelled images. ``splits`` names those it has: without "queries" the gallery queries itself."""

    splits: tuple[str, ...]
    image_size: int
    channels: int

    def items(self, split: str) -> Items:
        """All rows of ``split``. Raises InputError for a split that is not in ``splits``."""

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode the given rows of ``split`` (positions in ``items(split)``). Never raises for a broken image."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able: changes when any image, label or split may have changed. Cheap (no decoding)."""


def dataset_names() -> list[str]:
    """The known sources."""
    return plugin_names(sys.modules[__name__])


def dataset_module(name: str) -> ModuleType:
    """The module of a source. Raises InputError for an unknown name."""
    return load_plugin(sys.modules[__name__], name)


def dataset_name(settings: Any) -> str:
    """The name of the source that a ``Settings`` instance belongs to."""
    return type(settings).__module__.rsplit(".", 1)[-1]


@lru_cache(maxsize=4)
def open_source(settings: Any) -> ImageSource:
    """Open the source that ``settings`` (a ``Settings`` of one of the modules here) describes; once in a process."""
    source: ImageSource = dataset_module(dataset_name(settings)).open_source(settings)
    return source
