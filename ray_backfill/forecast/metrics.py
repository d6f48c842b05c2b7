"""Metrics that are sums over right answers of many ranks: only these can be forecast.

The expected value of such a sum needs each right answer's rank alone. Metrics of the first right answer (CMC@k, MRR)
need the joint distribution of all distances, and a cut at a low rank leaves few right answers that count.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.systems import GroundTruth

# The kinds, as numbers for the kernels: what an answer at a rank counts.
PRECISION, FOUND, DISCOUNTED = 0, 1, 2
_KINDS = {"mAP": PRECISION, "recall": FOUND, "nDCG": DISCOUNTED}
_WHOLE = 1 << 40
# Metrics with a lower cut-off depend on too few right answers. docs/results/forecast.md: what was measured.
LEAST_CUT = 100


def why_not_forecast(metric: str) -> str:
    """Why a metric cannot be forecast; "" if it can."""
    parsed = parse_metric(metric)
    if parsed.kind not in _KINDS:
        return "it depends on the first right answer alone, which a sample seldom settles"
    if parsed.k is not None and parsed.k < LEAST_CUT:
        return f"too few right answers count in the first {parsed.k}; a cut-off of {LEAST_CUT} or more can be forecast"
    return ""


@dataclass(frozen=True)
class SumMetric:
    """A metric as a sum over right answers. kind: see above. cut: the last rank that counts."""

    kind: int
    cut: int

    @classmethod
    def of(cls, name: str) -> "SumMetric":
        """The metric of this name, for which ``why_not_forecast`` is ""."""
        metric = parse_metric(name)
        return cls(_KINDS[metric.kind], metric.k or _WHOLE)

    def gains(self, truth: GroundTruth, query: int) -> NDArray[np.float64]:
        """Gain of each right answer of a query, in the order of ``positives_of``: grades under nDCG, otherwise 1."""
        first, last = truth.positive_starts[query], truth.positive_starts[query + 1]
        if self.kind == DISCOUNTED and truth.grades is not None:
            return truth.grades[first:last]
        return np.ones(last - first)

    def largest(self, gains: NDArray[np.float64]) -> float:
        """The sum of the ideal ranking, by which the metric is divided."""
        if self.kind == PRECISION:
            return float(min(len(gains), self.cut))
        if self.kind == FOUND:
            return float(len(gains))
        best = -np.sort(-gains)[: self.cut]
        return float((best / np.log2(np.arange(2, len(best) + 2))).sum())
