"""Whole rankings from the counts of ``counting``. Shapes: b queries, P right answers, O orders, T points."""

from collections.abc import Iterator

import numpy as np

from ray_backfill.kernels import Array, kernel
from ray_backfill.metrics.rankings import NO_PLACES, Rankings
from ray_backfill.replay.block import Block, Thresholds
from ray_backfill.systems import IntArray


def counted_rankings(
    others: IntArray, block: Block, thresholds: Thresholds, points: int, with_places: bool
) -> Iterator[Rankings]:
    """Return the rankings of each order. others: (O, CSR of (T, P)) ``others_before``, summed over shards."""
    for before, slices in zip(others, thresholds.slices, strict=True):
        places = NO_PLACES
        if with_places:
            places = np.empty(len(before), np.int32)
            _find_places(thresholds.starts, thresholds.owner, slices, points, places)
        yield Rankings(before, block.positive_starts, places)


@kernel
def _find_places(starts: Array, owner: Array, slices: Array, points: int, places: Array) -> None:
    """Which right answer is the j-th one at each point. Thresholds are in the order of the merged ranking."""
    at = 0
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_right = n_thresholds // 2
        for i in range(points):
            for k in range(n_thresholds):
                right = owner[first + k] % n_right
                is_forward = owner[first + k] < n_right
                # A right answer ranks by the threshold of the system that serves it now.
                if is_forward == (slices[first // 2 + right] < i):
                    places[at] = right
                    at += 1
