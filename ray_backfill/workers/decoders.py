"""CPUs of other nodes that decode images for a worker with a GPU: Ray tasks, whose pixels the object store carries."""

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from ray_backfill.images.datasets import open_images
from ray_backfill.images.source import ImageSource, Items, Pixels


def source_for(data: Any, own: int, lent: int) -> ImageSource:
    """The images of ``data``, the ``Settings`` of a source, for ``own + lent`` threads of one worker.

    own: reads at a time in this process. lent: reads at a time that are Ray tasks, on any node with a free CPU.
    """
    return _Lending(data, own) if lent else open_images(data)


class _Lending:
    """A source of images that has other nodes read what exceeds its own reads at a time.

    A task is repeated elsewhere if its node dies. If that fails, too, the images are read here.
    """

    def __init__(self, data: Any, own: int) -> None:
        self._data, self._source = data, open_images(data)
        self._own = threading.Semaphore(own)
        self.splits, self.image_size = self._source.splits, self._source.image_size
        self.channels = self._source.channels

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        if self._own.acquire(blocking=False):
            try:
                return self._source.read(split, rows)
            finally:
                self._own.release()
        try:
            return ray.get(_read_anywhere.remote(self._data, split, rows))
        except RayError:  # also an error of the source: it is raised here, with its own type
            return self._source.read(split, rows)

    def items(self, split: str) -> Items:
        return self._source.items(split)

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        return self._source.names(split, rows)

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()


def _read(data: Any, split: str, rows: NDArray[np.int64]) -> Pixels:
    since = time.thread_time()
    pixels = open_images(data).read(split, rows)
    return replace(pixels, lent_cpu_s=time.thread_time() - since)


# DEFAULT: never in the placement group of a worker, which has no CPU left.
_read_anywhere = ray.remote(num_cpus=1, scheduling_strategy="DEFAULT")(_read)
