"""CPUs of other nodes that decode images for a worker or actor: Ray tasks, whose pixels the object store carries."""

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import open_images
from ray_backfill.images.source import ImageSource, Items, Pixels
from ray_backfill.workers.waiting import answer_within

# How long an answer may take (the first one of a process lists all images), and how long nobody is asked after that.
_PATIENCE_S, _PAUSE_S = 60.0, 300.0


def source_for(data: Any, own: int, lent: int) -> ImageSource:
    """The images of ``data``, the ``Settings`` of a source, for ``own + lent`` threads of one process.

    own: reads at a time in this process. lent: reads at a time that are Ray tasks, on any node with a free CPU.
    """
    return _Lending(data, own) if lent else open_images(data)


class _Lending:
    """A source of images that has other processes read what exceeds its own reads at a time.

    Ray repeats a task whose node dies. What no other process can read in time, and what it finds broken, is read here:
    a node may lack CPUs or see other files.
    """

    def __init__(self, data: Any, own: int) -> None:
        self._data, self._source = data, open_images(data)
        self._own, self._asks_from = threading.Semaphore(own), 0.0
        self.splits, self.image_size = self._source.splits, self._source.image_size
        self.channels = self._source.channels

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        is_own = self._own.acquire(blocking=False)
        if not is_own and time.monotonic() >= self._asks_from:
            try:
                call = _read_elsewhere.remote(self._data, split, rows, self._source.names(split, rows))
                pixels: Pixels = answer_within(call, _PATIENCE_S)
                if not pixels.broken:
                    return replace(pixels, pixels_BSSC=pixels.pixels_BSSC.copy())  # frees the object store
            except RayError:  # of the cluster, or of the source: that one is raised again below, with its own type
                self._asks_from = time.monotonic() + _PAUSE_S
        if not is_own:
            self._own.acquire()
        try:
            return self._source.read(split, rows)
        finally:
            self._own.release()

    def items(self, split: str) -> Items:
        return self._source.items(split)

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        return self._source.names(split, rows)

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()


def _read(data: Any, split: str, rows: NDArray[np.int64], names: list[str] | None) -> Pixels:
    """names: of these images; other images are not read."""
    source = open_images(data)
    if source.names(split, rows) != names:
        raise InputError("this node has other images")
    since = time.thread_time()
    pixels = source.read(split, rows)
    return replace(pixels, lent_cpu_s=time.thread_time() - since)


# DEFAULT: never in the placement group of a worker, which has no CPU left.
_read_elsewhere = ray.remote(num_cpus=1, scheduling_strategy="DEFAULT")(_read)
