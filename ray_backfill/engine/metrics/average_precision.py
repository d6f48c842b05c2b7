"""Average precision: the mean over all right answers of the precision (share of right items) at their ranks.

Cut at k, right answers beyond rank k count as 0, and the sum is divided by the largest number of right answers that the
first k results can hold. (trec_eval's ``map_cut_k`` divides by the number of all right answers instead.)
"""

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.kind import MetricKind


@kernel
def average_precision(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    total = 0.0
    for j in range(len(ranks)):
        if ranks[j] > cut:
            break
        total += (j + 1) / ranks[j]
    return total / min(n_right, cut)


AVERAGE_PRECISION = MetricKind(
    name="mAP",
    is_whole=True,
    meaning="Mean average precision: for each query, the precision (share of right items) at the rank of every right "
    "item, averaged; then the mean over queries. mAP@k counts the first k results only.",
    source="trec_eval, map; mAP@k: Google Landmarks v2 (Weyand et al., CVPR 2020), section 5.1",
    value=average_precision,
)
