"""Images that take as long as the test needs, and tell which nodes decoded them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import DataSet, landmarks
from ray_backfill.images.source import Items, Pixels


@dataclass(frozen=True)
class Settings:
    """told: a folder where each node that reads in a task leaves its id. elsewhere: what goes wrong in tasks only:
    "broken" images, "other" images, or "fails". fails: everywhere.
    """

    told: str
    images: landmarks.Settings
    image_s: float = 0.0
    elsewhere: str = ""
    fails: bool = False


def _is_task() -> bool:
    """Whether this is neither a driver nor an actor."""
    is_worker = ray.is_initialized() and ray._private.worker.global_worker.mode == ray.WORKER_MODE
    return is_worker and ray.get_runtime_context().get_actor_id() is None


class _Slow:
    def __init__(self, settings: Settings) -> None:
        self._settings, self._source = settings, landmarks.open_images(settings.images)
        self.splits, self.image_size = self._source.splits, self._source.image_size
        self.channels = self._source.channels

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        if self._settings.fails or (_is_task() and self._settings.elsewhere == "fails"):
            raise InputError("no credentials")
        if _is_task():
            Path(self._settings.told, ray.get_runtime_context().get_node_id()).touch()
            if self._settings.elsewhere == "broken":
                return Pixels(0 * self._source.read(split, rows).pixels_BSSC, {0: "no such file"})
        time.sleep(len(rows) * self._settings.image_s)
        return self._source.read(split, rows)

    def items(self, split: str) -> Items:
        return self._source.items(split)

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        return [f"{row}{'!' * (_is_task() and self._settings.elsewhere == 'other')}" for row in rows]

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()


def open_images(settings: Settings) -> _Slow:
    return _Slow(settings)


DATASETS = (DataSet("slow", Settings, open_images),)
