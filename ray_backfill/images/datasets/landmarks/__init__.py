"""Rendered images of synthetic landmarks: any number of them, with a long-tailed distribution and no download.

A landmark is a composition of textured shapes determined by (seed, label); an image is a view of it determined by
(seed, id). Nothing is stored: pixels are rendered when they are read. Licence: none needed, as images are generated.

Shapes: N images of a split; B images of a batch; L landmarks; S pixels per side.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import DataSet, require_counts
from ray_backfill.images.datasets.landmarks.render import render
from ray_backfill.images.draws import class_sizes, hash_ids, shares
from ray_backfill.images.source import SPLITS, ImageSource, Items, Pixels

# Part of the fingerprint: increase it whenever a change to the renderer changes pixels or labels.
_RENDERER_VERSION = 1
# Ids of a split start at its position in SPLITS times this, so that no two splits share an id.
_SPLIT_STRIDE = 1 << 40
# Minimum number of images of a landmark in a split, if the split is large enough.
_FEWEST = 4
# Streams of random numbers; the renderer's are below 100.
_LABEL_STREAM, _RANK_STREAM = 100, 101


@dataclass(frozen=True)
class Settings:
    """Number, size and difficulty of the rendered images."""

    seed: int = 0
    """Random seed for landmarks and images."""
    image_size: int = 32
    """Pixels per side."""
    landmarks: int = 200
    """Number of landmarks (classes)."""
    train_images: int = 12_000
    """Number of train images."""
    gallery_images: int = 6_000
    """Number of gallery images."""
    queries: int = 500
    """Number of query images."""
    zipf: float = 0.6
    """Exponent of the class sizes, which fall as rank ** -zipf; 0: all classes have the same size."""
    difficulty: float = 1.0
    """Strength of changes in viewpoint and light, occlusion, blur and noise, from 0 to 3; 0: frontal views."""


@dataclass
class _Landmarks:
    settings: Settings
    image_size: int
    splits: tuple[str, ...] = SPLITS
    channels: int = 3
    _items: dict[str, Items] = field(default_factory=dict)

    def items(self, split: str) -> Items:
        """Ids are fixed by the split and the position. Cost: O(N log N) once, in numpy."""
        if split not in self.splits:
            raise InputError(f"landmarks has no split {split!r}; it has: {', '.join(self.splits)}")
        if split not in self._items:
            self._items[split] = self._make_items(split)
        return self._items[split]

    def _make_items(self, split: str) -> Items:
        s = self.settings
        count = {"train": s.train_images, "gallery": s.gallery_images, "queries": s.queries}[split]
        ids_N = np.arange(count, dtype=np.int64) + SPLITS.index(split) * _SPLIT_STRIDE
        if split == "queries":
            # Each landmark of the gallery gets the same number of queries, so that the tail counts too.
            sizes_L = shares(count, (self._sizes(s.gallery_images) > 0).astype(np.float64))
        else:
            sizes_L = self._sizes(count)
        shuffled_N = np.argsort(hash_ids(s.seed, _LABEL_STREAM, ids_N), kind="stable")
        labels_N = np.empty(count, np.int64)
        labels_N[shuffled_N] = np.repeat(np.arange(s.landmarks), sizes_L)
        return Items(ids_N, labels_N)

    def _sizes(self, count: int) -> NDArray[np.int64]:
        """(L,) int64. Ranks are random, so that the first half of the labels is not easier than the second."""
        s = self.settings
        rank_L = np.argsort(hash_ids(s.seed, _RANK_STREAM, np.arange(s.landmarks)), kind="stable")
        return class_sizes(count, s.landmarks, s.zipf, _FEWEST)[rank_L]

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Render the rows; no image is ever broken. Cost: O(B S^2), about 0.03 ms per image of 32 pixels."""
        items = self.items(split)
        s = self.settings
        return Pixels(render(s.seed, items.ids_N[rows], items.labels_N[rows], s.image_size, s.difficulty))

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        """None: images have no names."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        return {"dataset": "landmarks", "renderer": _RENDERER_VERSION, **asdict(self.settings)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": {}}  # cheaper to draw again than to send


def open_images(settings: Settings) -> ImageSource:
    """A source with train, gallery and queries. Raises InputError for settings out of range."""
    require_counts(settings, "image_size", "landmarks", "train_images", "gallery_images", "queries")
    for name in ("zipf", "difficulty"):
        if not 0 <= getattr(settings, name) <= 3:
            raise InputError(f"landmarks: {name} must be between 0 and 3, not {getattr(settings, name)}")
    return _Landmarks(settings, settings.image_size)


DATASETS = (DataSet("landmarks", Settings, open_images),)
