"""Cumulative match characteristic: whether any right answer is among the first k results (success, hit rate)."""

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.kind import MetricKind


@kernel
def cmc(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    return 1.0 if len(ranks) > 0 and ranks[0] <= cut else 0.0


CMC = MetricKind(
    name="CMC",
    is_whole=False,
    meaning="The share of queries with at least one right item among the first k results.",
    source="rank merge, section 4; trec_eval, success_k",
    value=cmc,
)
