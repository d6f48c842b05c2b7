"""From counts by place and slice to how many items rank before each positive, at every point.

Shapes: b queries, K thresholds of a query (CSR), P positives of a query, O orders, S slices, T = S + 1 points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.kernels import Array, kernel
from ray_backfill.replay.block import Thresholds, Union
from ray_backfill.systems import IntArray


@dataclass(frozen=True)
class Counted:
    """How many items of one system rank before its thresholds. counts: (O, CSR of (S, K + 1)) int32, cumulative.

    counts[s, k]: items of the slices up to s that rank before threshold k, without positives and ignored items.
    """

    counts: NDArray[np.int32]
    union: Union


def accumulate(hist: NDArray[np.int32], union: Union, n_slices: int) -> Counted:
    """Sum counts by place and slice, in place."""
    for of_order in hist:
        _accumulate(of_order, union.starts, n_slices)
    return Counted(hist, union)


@kernel
def _accumulate(hist: Array, starts: Array, n_slices: int) -> None:
    for q in range(len(starts) - 1):
        width = starts[q + 1] - starts[q] + 1
        base = n_slices * (starts[q] + q)
        for s in range(n_slices):
            row = hist[base + s * width : base + (s + 1) * width]
            before = np.int32(0)
            for k in range(width):
                before += row[k]
                row[k] = before
            if s > 0:
                above = hist[base + (s - 1) * width : base + s * width]
                for k in range(width):
                    row[k] += above[k]


class Side(NamedTuple):
    """One system of a pair: its counts, the pair's use of its thresholds, and the pair's rows of its counts."""

    counted: Counted
    use: int
    rows: Sequence[int]


def others_before(forward: Side | None, backward: Side | None, thresholds: Thresholds, points: int) -> IntArray:
    """Return (O, CSR of (T, P)): how many counted items rank before the j-th positive at each point.

    None: items of that system are not counted. Results for disjoint sets of items add up.
    """
    n_orders, n_positives = thresholds.slices.shape
    others = np.empty((n_orders, points * n_positives + 1), np.int64)
    for o in range(n_orders):
        sides = [_of_order(side or forward or backward, o) for side in (forward, backward)]
        _others_before(
            *sides[0], forward is not None, *sides[1], backward is not None, thresholds.starts, thresholds.owner,
            thresholds.slices[o], points, others[o],
        )  # fmt: skip
    return np.ascontiguousarray(others[:, :-1])


def _of_order(side: Side | None, order: int) -> tuple[NDArray[np.int32], IntArray, NDArray[np.int32]]:
    """Counts of one order, starts of the union, and the place of each threshold in it."""
    assert side is not None
    union = side.counted.union
    return side.counted.counts[side.rows[order]], union.starts, union.at[side.use]


@kernel
def _others_before(
    counts_f: Array, starts_f: Array, at_f: Array, use_f: bool, counts_b: Array, starts_b: Array, at_b: Array,
    use_b: bool, starts: Array, owner: Array, slices: Array, points: int, others: Array,
) -> None:  # fmt: skip
    n_slices = points - 1
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_positives = n_thresholds // 2
        width_f, width_b = starts_f[q + 1] - starts_f[q] + 1, starts_b[q + 1] - starts_b[q] + 1
        base_f, base_b = n_slices * (starts_f[q] + q), n_slices * (starts_b[q] + q)
        place_f, place_b = at_f[first : first + n_thresholds], at_b[first : first + n_thresholds]
        # A positive ranks by its forward threshold at the points after its slice, before them by its backward one.
        begin, length = np.empty(n_thresholds, np.uint32), np.empty(n_thresholds, np.uint32)
        all_b, before = np.zeros(n_thresholds, np.int32), np.empty(n_thresholds, np.int32)
        last_b = counts_b[base_b + (n_slices - 1) * width_b : base_b + n_slices * width_b]
        for k in range(n_thresholds):
            own = slices[first // 2 + owner[first + k] % n_positives] + 1
            is_forward = owner[first + k] < n_positives
            begin[k] = own if is_forward else 0
            length[k] = points - own if is_forward else own
            if use_b:
                all_b[k] = last_b[place_b[k]]
        at = np.uint64(points * (first // 2))
        for i in range(points):
            before[:] = all_b
            if i > 0 and use_f:
                row = counts_f[base_f + (i - 1) * width_f : base_f + i * width_f]
                for k in range(n_thresholds):
                    before[k] += row[place_f[k]]
            if i > 0 and use_b:
                row = counts_b[base_b + (i - 1) * width_b : base_b + i * width_b]
                for k in range(n_thresholds):
                    before[k] -= row[place_b[k]]
            for k in range(n_thresholds):
                # The entry of a threshold that does not rank its positive now is overwritten by the next one.
                others[at] = before[k]
                at += np.uint64(np.uint32(np.uint32(i) - begin[k]) < length[k])
