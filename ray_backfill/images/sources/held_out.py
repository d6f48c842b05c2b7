"""A source with a part of its train split held out as a split of its own, "validation".

Shapes: N rows of the train split.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.images.sources import ImageSource, Items, Pixels

VALIDATION = "validation"


@dataclass
class HeldOut:
    """``source`` with two splits instead of its train split.

    held_N: (N,) rows that are held out, at least one. facts: how they were chosen, for the fingerprint.
    """

    source: ImageSource
    held_N: NDArray[np.bool_]
    facts: dict[str, Any]
    splits: tuple[str, ...] = field(init=False)
    image_size: int = field(init=False)
    channels: int = field(init=False)

    def __post_init__(self) -> None:
        self.splits = (*self.source.splits, VALIDATION)
        self.image_size, self.channels = self.source.image_size, self.source.channels
        self._rows = {"train": np.flatnonzero(~self.held_N), VALIDATION: np.flatnonzero(self.held_N)}

    def items(self, split: str) -> Items:
        whole = self.source.items("train" if split in self._rows else split)
        return whole.take(self._rows[split]) if split in self._rows else whole

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        return self.source.read(*self._there(split, rows))

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        return self.source.names(*self._there(split, rows))

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint() | {VALIDATION: self.facts}

    def _there(self, split: str, rows: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """The split of the source, and the rows in it."""
        return ("train", self._rows[split][rows]) if split in self._rows else (split, rows)
