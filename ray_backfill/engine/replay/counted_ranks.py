"""Whole rankings from the counts of ``counting``. Shapes: b queries, P right answers, O orders, T points."""

from collections.abc import Iterator

import numpy as np

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.rankings import ABSENT, NO_PLACES, Rankings
from ray_backfill.engine.replay.block import Block, Thresholds
from ray_backfill.engine.systems import IntArray


def counted_rankings(
    others: IntArray, block: Block, thresholds: Thresholds, points: int, with_places: bool, hides_backward: bool
) -> Iterator[Rankings]:
    """Return the rankings of each order. others: (O, CSR of (T, P)) ``others_before``, summed over shards.

    hides_backward: right answers that are not backfilled are not found, and ``others`` count backfilled items only.
    """
    for before, slices in zip(others, thresholds.slices, strict=True):
        places = NO_PLACES
        if with_places:
            places = np.empty(len(before), np.int32)
            _find_places(thresholds.starts, thresholds.owner, slices, points, places)
        if hides_backward:
            before = before.astype(np.int64)
            _hide_backward(thresholds.starts, thresholds.owner, slices, points, before, places)
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


@kernel
def _hide_backward(starts: Array, owner: Array, slices: Array, points: int, before: Array, places: Array) -> None:
    """Move the right answers that are backfilled to the front at each point; the others are absent."""
    at = 0
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_right = n_thresholds // 2
        for i in range(points):
            j, kept = 0, 0
            for k in range(n_thresholds):
                right = owner[first + k] % n_right
                is_forward = owner[first + k] < n_right
                is_backfilled = slices[first // 2 + right] < i
                if is_forward != is_backfilled:
                    continue
                if is_backfilled:
                    before[at + kept] = before[at + j]
                    if len(places) > 0:
                        places[at + kept] = places[at + j]
                    kept += 1
                j += 1
            before[at + kept : at + n_right] = ABSENT
            at += n_right
