"""Feeds training batches of decoded images: from memory if they fit, otherwise decoded ahead by threads."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.images.reading import DecodeTimes, read_ahead
from ray_backfill.images.source import ImageSource

# Images whose decoded size (over all workers of a machine) is below this limit are decoded once and kept.
CACHE_BYTES = 1 << 30


class PixelFeed:
    """Batches of pixels for row numbers of the train split. ``broken``: row -> reason, for the images seen so far.

    ``times``: time spent on decoding batches and on waiting for them so far; zero if all images are in memory.
    """

    def __init__(
        self, source: ImageSource, rows: NDArray[np.int64], threads: int = 1, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """rows: all rows that may be requested. threads: decoders that work ahead if the images exceed cache_bytes."""
        self.broken: dict[int, str] = {}
        self.times = DecodeTimes()
        self._source, self._threads = source, threads
        self._cache: NDArray[np.uint8] | None = None
        if len(rows) * source.image_size**2 * source.channels <= cache_bytes:
            chunks = [rows[i : i + 1024] for i in range(0, len(rows), 1024)]
            self._cache = np.concatenate([pixels for pixels, _ in self._decoded(chunks, DecodeTimes())])
            self._place = np.zeros(int(rows.max()) + 1, np.int64)
            self._place[rows] = np.arange(len(rows))

    def batches(self, batches: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Tensor, NDArray[np.bool_]]]:
        """For each array of B rows: (B, S, S, C) uint8, and (B,) which of them are readable; the others are zero."""
        if self._cache is None:
            for pixels, readable in self._decoded(batches, self.times):
                yield torch.from_numpy(pixels), readable
            return
        broken = list(self.broken)
        for rows in batches:
            yield torch.from_numpy(self._cache[self._place[rows]]), ~np.isin(rows, broken)

    def _decoded(
        self, batches: Iterable[NDArray[np.int64]], times: DecodeTimes
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
        for rows, pixels in read_ahead(self._source, "train", batches, self._threads, times):
            self.broken.update({int(rows[i]): reason for i, reason in pixels.broken.items()})
            yield pixels.pixels_BSSC, ~np.isin(np.arange(len(rows)), list(pixels.broken))
