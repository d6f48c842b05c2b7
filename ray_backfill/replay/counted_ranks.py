"""Metrics of whole rankings from the counts of ``counting``. Shapes: b queries, P right answers, O orders, T points."""

import numpy as np

from ray_backfill.kernels import Array, kernel
from ray_backfill.metrics import measure


@kernel
def measure_counts(
    others: Array, positive_starts: Array, is_map: Array, cuts: Array, values: Array, top1: Array
) -> None:
    """Compute the metrics of a block from ``others_before``, summed over shards.

    others: (O, CSR of (T, P)). values: (O, b, T, metrics) float64. top1: (O, b, T) bool.
    """
    n_orders, n_queries, points = top1.shape
    for q in range(n_queries):
        n_positives = positive_starts[q + 1] - positive_starts[q]
        ranks = np.empty(n_positives, np.int64)
        for o in range(n_orders):
            for i in range(points):
                first = points * positive_starts[q] + i * n_positives
                for j in range(n_positives):
                    ranks[j] = others[o, first + j] + j + 1
                measure(ranks, n_positives, is_map, cuts, values[o, q, i])
                top1[o, q, i] = ranks[0] == 1
