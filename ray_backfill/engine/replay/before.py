"""From counts by place and segment to how many items rank before each positive, at every point.

Shapes: b queries, K thresholds of a query (CSR), P positives of a query, O orders, S segments, T = S + 1 points.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.replay.block import Thresholds, Union
from ray_backfill.engine.systems import IntArray

CountArray = NDArray[np.uint16] | NDArray[np.int32]
Others = NDArray[np.int32]


class Counted(NamedTuple):
    """The items of one system by segment and place, without positives and ignored items, for some queries.

    counts: (O, CSR of (S, K + 1)); counts[s, k]: items of segment s whose place is k. If several pairs share the
    thresholds: items whose place is at most k, so that each pair can read them at its own thresholds. starts: of the
    union's rows of these queries.
    """

    counts: CountArray
    union: Union
    starts: IntArray


def accumulate(hist: CountArray, union: Union, begin: int, end: int, n_segments: int) -> Counted:
    """Sum the counts of the queries begin .. end - 1 by place, in place, if several pairs share the thresholds."""
    starts = union.starts[begin : end + 1]
    for of_order in hist if union.at else []:
        _accumulate(of_order, starts, n_segments)
    return Counted(hist, union, starts)


@kernel
def _accumulate(hist: Array, starts: Array, n_segments: int) -> None:
    for q in range(len(starts) - 1):
        width = starts[q + 1] - starts[q] + 1
        first = n_segments * (starts[q] - starts[0] + q)
        for s in range(n_segments):
            row = hist[first + s * width : first + (s + 1) * width]
            before = np.int32(0)
            for k in range(len(row)):
                before += row[k]
                row[k] = before


class CountsOfPair(NamedTuple):
    """One system's counts for a pair: the pair's use of its thresholds, and the rows of the counts, one an order."""

    counted: Counted
    use: int
    rows: Sequence[int]

    def of_order(self, order: int) -> tuple[CountArray, IntArray, NDArray[np.int32]]:
        """Counts, starts of the union, and the place of each threshold in it; empty if it has no others."""
        union = self.counted.union
        places = union.at[self.use] if union.at else np.empty(0, np.int32)
        return self.counted.counts[self.rows[order]], self.counted.starts, places


def find_others(
    forward: CountsOfPair, counts_forward: bool, backward: CountsOfPair, counts_backward: bool, thresholds: Thresholds,
    points: int, begin: int, end: int, others: Others,
) -> None:  # fmt: skip
    """Find for the queries begin .. end - 1 how many counted items rank before the j-th positive at each point.

    counts_forward, counts_backward: whether items of that system are counted. others: (O, CSR of (T, P) and one entry
    more, which means nothing). Results for disjoint sets of items add up.
    """
    starts = thresholds.starts[begin : end + 1]
    part = slice(points * starts[0] // 2, points * starts[-1] // 2 + 1)
    for o in range(len(others)):
        _others_before(
            *forward.of_order(o), counts_forward, *backward.of_order(o), counts_backward, starts, thresholds.owner,
            thresholds.segments[o], points, others[o, part],
        )  # fmt: skip


@kernel
def _others_before(
    counts_f: Array, starts_f: Array, at_f: Array, use_f: bool, counts_b: Array, starts_b: Array, at_b: Array,
    use_b: bool, starts: Array, owner: Array, segments: Array, points: int, others: Array,
) -> None:  # fmt: skip
    n_segments, most = points - 1, 0
    plus, minus = np.int32(1), np.int32(-1)  # literals would be compiled each on its own
    for q in range(len(starts) - 1):
        most = max(most, starts[q + 1] - starts[q])
    begin, length, is_active = np.empty(most, np.uint32), np.empty(most, np.uint32), np.empty(most, np.uint8)
    # Of systems of this pair alone: the items at each threshold's place. Of shared ones: those up to it.
    alone, shared = np.empty(most, np.int32), np.empty(most, np.int32)
    is_alone = not (use_f and len(at_f) > 0) and not (use_b and len(at_b) > 0)
    at = np.uint64(0)
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_positives = n_thresholds // 2
        width_f, width_b = starts_f[q + 1] - starts_f[q] + 1, starts_b[q + 1] - starts_b[q] + 1
        base_f, base_b = n_segments * (starts_f[q] - starts_f[0] + q), n_segments * (starts_b[q] - starts_b[0] + q)
        place_f, place_b = at_f[first : first + n_thresholds], at_b[first : first + n_thresholds]
        # A positive ranks by its forward threshold at the points after its segment, before them by its backward one.
        alone[:n_thresholds] = 0
        shared[:n_thresholds] = 0
        for k in range(n_thresholds):
            after = segments[first // 2 + owner[first + k] % n_positives] + 1
            is_forward = owner[first + k] < n_positives
            begin[k] = after if is_forward else 0
            length[k] = points - after if is_forward else after
        for s in range(n_segments if use_b else 0):
            _add(alone, shared, counts_b[base_b + s * width_b : base_b + (s + 1) * width_b], place_b, plus)
        for i in range(points):
            if i > 0 and use_f:
                _add(alone, shared, counts_f[base_f + (i - 1) * width_f : base_f + i * width_f], place_f, plus)
            if i > 0 and use_b:
                _add(alone, shared, counts_b[base_b + (i - 1) * width_b : base_b + i * width_b], place_b, minus)
            for k in range(n_thresholds):
                is_active[k] = np.uint32(np.uint32(i) - begin[k]) < length[k]
            # Here, the entry of a threshold that does not rank its positive now is overwritten by the next one.
            before = np.int32(0)
            if is_alone:
                for k in range(n_thresholds):
                    before += alone[k]
                    others[at] = before
                    at += np.uint64(is_active[k])
            else:
                for k in range(n_thresholds):
                    before += alone[k]
                    others[at] = before + shared[k]
                    at += np.uint64(is_active[k])


@kernel
def _add(alone: Array, shared: Array, row: Array, places: Array, sign: Any) -> None:
    """Add the counts of one segment. places: of the pair's thresholds among the shared ones; empty without any."""
    if len(places) == 0:
        for k in range(len(row) - 1):
            alone[k] += sign * row[k]
    for k in range(len(places)):
        shared[k] += sign * row[places[k]]
