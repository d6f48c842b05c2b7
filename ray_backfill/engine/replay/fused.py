"""Reciprocal rank fusion: items of two lists are compared by their ranks in their own list instead of by distances.

At each point, the backfilled items, by forward distance, and the others, by backward distance, form two lists. An item
of rank r in its list scores 1 / (60 + r); ties go to the smaller distance, then to the earlier position. (The lists
have no common items, so the constant 60 has no effect.) Hence an item is preceded by the first r - 1 items of the other
list, and by its r-th item if that is closer, which is the case if c >= r, where c is the number of closer items there.

Source: Cormack, Clarke, Buettcher, Reciprocal rank fusion (SIGIR 2009), section 2.
Shapes: b queries, P positives of a query, O orders, S segments, T = S + 1 points.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics import NO_PLACES, Rankings
from ray_backfill.engine.replay.block import Block, Thresholds
from ray_backfill.engine.systems import IntArray


def fused_rankings(
    others_2: IntArray, block: Block, thresholds: Thresholds, segments_ON: NDArray[np.uint16], points: int,
    with_places: bool,
) -> Iterator[Rankings]:  # fmt: skip
    """Return the rankings of each order.

    others_2: (2, O, CSR of (T, P)) ``others_before`` of forward and of backward items.
    """
    for o, segments in enumerate(segments_ON):
        n_forward_T = np.zeros(points, np.int64)
        n_forward_T[1:] = np.cumsum(np.bincount(segments, minlength=points - 1))
        before = np.empty(others_2.shape[2], np.int32)
        places = np.empty(len(before), np.int32) if with_places else NO_PLACES
        _fuse(
            others_2[0, o], others_2[1, o], thresholds.starts, thresholds.owner, thresholds.segments[o], n_forward_T,
            len(segments), segments[block.ignored], block.ignored_starts, before, places,
        )  # fmt: skip
        yield Rankings(before, block.positive_starts, places)


@kernel
def _fuse(
    others_f: Array, others_b: Array, starts: Array, owner: Array, segments: Array, n_forward_T: Array, n_gallery: int,
    ignored_segments: Array, ignored_starts: Array, before: Array, places: Array,
) -> None:  # fmt: skip
    points = len(n_forward_T)
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_right, n_ignored = n_thresholds // 2, ignored_starts[q + 1] - ignored_starts[q]
        ranked = np.empty(n_right, np.int64)
        ignored_forward = np.zeros(points, np.int64)
        for s in ignored_segments[ignored_starts[q] : ignored_starts[q + 1]]:
            ignored_forward[np.int64(s) + 1 :] += 1
        for i in range(points):
            n_forward = n_forward_T[i] - ignored_forward[i]
            n_backward = n_gallery - n_ignored - n_forward
            before_f, before_b, j = 0, 0, 0  # right answers so far
            base = points * (first // 2) + i * n_right
            for k in range(n_thresholds):
                right = owner[first + k] % n_right
                is_forward = owner[first + k] < n_right
                if is_forward != (segments[first // 2 + right] < i):
                    continue  # this threshold's system does not serve the right answer now
                of_f, of_b = others_f[base + j] + before_f, others_b[base + j] + before_b
                if is_forward:
                    rank = _merged_rank(of_f + 1, of_b, n_backward)
                    before_f += 1
                else:
                    rank = _merged_rank(of_b + 1, of_f, n_forward)
                    before_b += 1
                ranked[j] = rank * n_right + right  # below 2^63, since a rank and a number of items are below 2^32
                j += 1
            ranked.sort()
            for j in range(n_right):
                before[base + j] = ranked[j] // n_right - j - 1
                if len(places) > 0:
                    places[base + j] = ranked[j] % n_right


@kernel
def _merged_rank(rank: int, closer_of_other: int, n_other: int) -> int:
    return rank + min(n_other, rank if closer_of_other >= rank else rank - 1)
