"""Normalised discounted cumulative gain: the sum of grade / log2(1 + rank), divided by that of the ideal ranking.

The convention is that of trec_eval, and so of ir_measures' nDCG and nDCG@k: the gain of a right answer is its grade
(linear; 1 without grades), any other item gains nothing, and the ideal ranking has all right answers of the query
first, in descending order of their grades, cut at k as well. (The other convention, a gain of 2^grade - 1, is equal
only without grades.)
"""

import numpy as np

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.kind import MetricKind


@kernel
def ndcg(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    total = 0.0
    for j in range(len(ranks)):
        if ranks[j] > cut:
            break
        total += (grades[j] if len(grades) > 0 else 1.0) / np.log2(1.0 + ranks[j])
    return total / ideal


NDCG = MetricKind(
    name="nDCG",
    is_whole=True,
    meaning="Normalised discounted cumulative gain: for each query, the sum of grade / log2(1 + rank) over its right "
    "items (the grade is 1 if they have none), as a share of that of the ideal ranking; then the mean over queries. "
    "nDCG@k counts the first k results only.",
    source="Järvelin and Kekäläinen, TOIS 2002, with the gain and discount of trec_eval, ndcg and ndcg_cut_k",
    value=ndcg,
    uses_grades=True,
)
