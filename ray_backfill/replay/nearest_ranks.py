"""Metrics cut at k from the candidates of ``nearest``. Shapes: b queries, O orders, T points."""

from typing import Any

import numpy as np

from ray_backfill.kernels import Array, kernel
from ray_backfill.metrics import measure
from ray_backfill.replay.keys import item_of


@kernel
def measure_nearest(
    rows: Array, keys: Array, is_forward: Array, positives: Array, positive_starts: Array, ignored: Array,
    ignored_starts: Array, slices_ON: Array, is_map: Array, cuts: Array, values: Array, top1: Array,
) -> None:  # fmt: skip
    """Compute the metrics of a block from the candidates of all shards and both systems, in any order, by exact keys.

    rows: the query of each candidate. values: (O, b, T, metrics) float64. top1: (O, b, T) bool.
    """
    n_orders, n_queries, points = top1.shape
    k = cuts.max()
    starts = np.zeros(n_queries + 1, np.int64)
    for row in rows:
        starts[row + 1] += 1
    starts = np.cumsum(starts)
    of_row, filled = np.empty(len(rows), np.int64), starts.copy()
    for i in range(len(rows)):
        of_row[filled[rows[i]]] = i
        filled[rows[i]] += 1
    for q in range(n_queries):
        own = of_row[starts[q] : starts[q + 1]]
        own = own[np.argsort(keys[own])]
        right = positives[positive_starts[q] : positive_starts[q + 1]]
        left_out = ignored[ignored_starts[q] : ignored_starts[q + 1]]
        counts = np.array([not _contains(left_out, item_of(keys[c])) for c in own])
        own = own[counts]
        is_right = np.array([_contains(right, item_of(keys[c])) for c in own])
        ranks = np.empty(min(len(right), k), np.int64)
        for o in range(n_orders):
            # A candidate's system serves it at the points begin .. begin + length - 1.
            begin, length = np.empty(len(own), np.uint32), np.empty(len(own), np.uint32)
            for c in range(len(own)):
                after = slices_ON[o, item_of(keys[own[c]])] + 1
                begin[c] = after if is_forward[own[c]] else 0
                length[c] = points - after if is_forward[own[c]] else after
            for i in range(points):
                rank, found = 0, 0
                for c in range(len(own)):
                    if np.uint32(np.uint32(i) - begin[c]) < length[c]:
                        rank += 1
                        if is_right[c]:
                            ranks[found] = rank
                            found += 1
                        if rank == k:
                            break
                measure(ranks[:found], len(right), is_map, cuts, values[o, q, i])
                top1[o, q, i] = found > 0 and ranks[0] == 1


@kernel
def _contains(ascending: Array, value: int) -> Any:
    at = np.searchsorted(ascending, value)
    return at < len(ascending) and ascending[at] == value
