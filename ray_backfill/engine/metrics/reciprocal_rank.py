"""Reciprocal rank: 1 / the rank of the first right answer. Cut at k, it is 0 if this rank is above k."""

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.kind import MetricKind


@kernel
def reciprocal_rank(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    return 1.0 / ranks[0] if len(ranks) > 0 and ranks[0] <= cut else 0.0


RECIPROCAL_RANK = MetricKind(
    name="MRR",
    is_whole=True,
    meaning="Mean reciprocal rank: for each query, 1 / the rank of the first right item; then the mean over queries. "
    "MRR@k is 0 for a query without a right item among the first k results.",
    source="trec_eval, recip_rank",
    value=reciprocal_rank,
)
