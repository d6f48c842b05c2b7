"""Feeds training batches of decoded images: from memory where they fit, else decoded ahead by threads."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.datasets import ImageSource
from ray_backfill.datasets._ahead import read_ahead

# Decoded images up to this size are decoded once and kept.
CACHE_BYTES = 1 << 30


class PixelFeed:
    """Batches of pixels for row numbers of the train split.

    Broken images are left out of a batch; ``broken`` collects them with their reasons, by row.
    """

    def __init__(
        self, source: ImageSource, rows: NDArray[np.int64], threads: int = 2, cache_bytes: int = CACHE_BYTES
    ) -> None:
        """rows: all rows that may be asked for. threads: decoders that work ahead if the images exceed cache_bytes."""
        self.broken: dict[int, str] = {}
        self._source, self._threads = source, threads
        self._cache: NDArray[np.uint8] | None = None
        if len(rows) * source.image_size**2 * source.channels <= cache_bytes:
            chunks = [rows[i : i + 1024] for i in range(0, len(rows), 1024)]
            self._cache = np.concatenate([pixels for _, pixels in self._decoded(chunks)])
            self._place = np.full(int(rows.max()) + 1, -1)
            readable = rows[~np.isin(rows, list(self.broken))]
            self._place[readable] = np.arange(len(readable))

    def batches(self, batches: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        """For each array of rows: (B, S, S, C) uint8 of the readable ones, and which rows those are."""
        if self._cache is None:
            for kept, pixels in self._decoded(batches):
                yield torch.from_numpy(pixels), kept
            return
        for rows in batches:
            place = self._place[rows]
            yield torch.from_numpy(self._cache[place[place >= 0]]), rows[place >= 0]

    def _decoded(self, batches: Iterable[NDArray[np.int64]]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        for rows, pixels in read_ahead(self._source, "train", batches, self._threads):
            self.broken.update({int(rows[i]): reason for i, reason in pixels.broken.items()})
            kept = np.setdiff1d(np.arange(len(rows)), list(pixels.broken))
            yield rows[kept], pixels.pixels_BSSC[kept]
