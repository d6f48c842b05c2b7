"""Reciprocal rank fusion: items of two lists are compared by their ranks in their own list instead of by distances.

At each point, the backfilled items, by forward distance, and the others, by backward distance, form two lists. An item
of rank r in its list scores 1 / (60 + r); ties go to the smaller distance, then to the earlier position. (The lists
have no common items, so the constant 60 has no effect.) Hence an item is preceded by the first r - 1 items of the other
list, and by its r-th item if that is closer, which is the case if c >= r, where c is the number of closer items there.

Source: Cormack, Clarke, Buettcher, Reciprocal rank fusion (SIGIR 2009), section 2.
Shapes: b queries, P positives of a query, O orders, S slices, T = S + 1 points.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.kernels import Array, kernel
from ray_backfill.metrics import measure
from ray_backfill.replay.block import Block, Thresholds
from ray_backfill.systems import IntArray


def measure_fused(
    others_2: IntArray,
    block: Block,
    thresholds: Thresholds,
    slices_ON: NDArray[np.uint16],
    is_map: NDArray[np.bool_],
    cuts: IntArray,
    values: NDArray[np.float64],
    top1: NDArray[np.bool_],
) -> None:
    """Compute the metrics of a block. others_2: (2, O, CSR of (T, P)) ``others_before`` of forward and backward items.

    values: (O, b, T, metrics) float64. top1: (O, b, T) bool.
    """
    points = top1.shape[2]
    n_forward_OT = np.zeros((len(slices_ON), points), np.int64)
    for o, slices in enumerate(slices_ON):
        n_forward_OT[o, 1:] = np.cumsum(np.bincount(slices, minlength=points - 1))
    _measure_fused(
        others_2, thresholds.starts, thresholds.owner, thresholds.slices, n_forward_OT, slices_ON.shape[1],
        slices_ON[:, block.ignored], block.ignored_starts, is_map, cuts, values, top1,
    )  # fmt: skip


@kernel
def _measure_fused(
    others_2: Array,
    starts: Array,
    owner: Array,
    slices: Array,
    n_forward_OT: Array,
    n_gallery: int,
    ignored_slices: Array,
    ignored_starts: Array,
    is_map: Array,
    cuts: Array,
    values: Array,
    top1: Array,
) -> None:
    n_orders, n_queries, points = top1.shape
    for q in range(n_queries):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_positives, n_ignored = n_thresholds // 2, ignored_starts[q + 1] - ignored_starts[q]
        ranks = np.empty(n_positives, np.int64)
        for o in range(n_orders):
            ignored_forward = np.zeros(points, np.int64)
            for s in ignored_slices[o, ignored_starts[q] : ignored_starts[q + 1]]:
                ignored_forward[np.int64(s) + 1 :] += 1
            for i in range(points):
                n_forward = n_forward_OT[o, i] - ignored_forward[i]
                n_backward = n_gallery - n_ignored - n_forward
                before_forward, before_backward, j = 0, 0, 0  # positives so far
                for k in range(n_thresholds):
                    is_forward = owner[first + k] < n_positives
                    if is_forward != (slices[o, first // 2 + owner[first + k] % n_positives] < i):
                        continue  # this threshold's system does not serve the positive now
                    at = points * (first // 2) + i * n_positives + j
                    of_forward = others_2[0, o, at] + before_forward
                    of_backward = others_2[1, o, at] + before_backward
                    if is_forward:
                        ranks[j] = _merged_rank(of_forward + 1, of_backward, n_backward)
                        before_forward += 1
                    else:
                        ranks[j] = _merged_rank(of_backward + 1, of_forward, n_forward)
                        before_backward += 1
                    j += 1
                ranks.sort()
                measure(ranks, n_positives, is_map, cuts, values[o, q, i])
                top1[o, q, i] = ranks[0] == 1


@kernel
def _merged_rank(rank: int, closer_of_other: int, n_other: int) -> int:
    return rank + min(n_other, rank if closer_of_other >= rank else rank - 1)
