"""Recall: the share of a query's right answers that are among the first k results."""

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.kind import MetricKind


@kernel
def recall(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    found = 0
    while found < len(ranks) and ranks[found] <= cut:
        found += 1
    return found / n_right


RECALL = MetricKind(
    name="recall",
    is_whole=False,
    meaning="For each query, the share of all its right items that are among the first k results; then the mean over "
    "queries. It is below 100 % wherever a query has more than k right items.",
    source="trec_eval, recall_k",
    value=recall,
)
