"""Expected values of metrics, if the number of closer items has a known part and a random one.

Only metrics that are sums over right answers of many ranks can be forecast: the expected value of such a sum needs each
right answer's rank alone. Metrics of the first right answer (CMC@k, MRR) need the joint distribution of all distances,
and a cut at a low rank leaves few right answers that count.

The random part is negative binomial: counts of similar items come in clumps. A metric is an average of values at single
counts, never the value at the average count: 1 / rank is convex.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.systems import Floats, GroundTruth
from ray_backfill.forecast.counts import CloserCounts

# The kinds, as numbers for the kernels: what an answer at a rank counts.
PRECISION, FOUND, DISCOUNTED = 0, 1, 2
_KINDS = {"mAP": PRECISION, "AP": PRECISION, "recall": FOUND, "P": FOUND, "nDCG": DISCOUNTED}  # settings.KINDS
_WHOLE = 1 << 40
# Standard deviation of the rank, relative to it, below which a Taylor series of second order is enough.
_NARROW = 0.1
# Above this mean, and below this variance of the ratio to it, a count without a cut is as good as a gamma variable.
_MANY, _MOST_VARIANCE = 40.0, 0.33
# Quantiles of the normal distribution in the middle of equally likely parts.
_QUANTILES = ndtri((np.arange(32) + 0.5) / 32)


@dataclass(frozen=True)
class SumMetric:
    """A metric as a sum over right answers. name: without its cut-off. cut: the last rank that counts."""

    name: str
    cut: int

    @classmethod
    def of(cls, name: str) -> "SumMetric":
        """The metric of this name, which can be forecast (``settings.why_not_forecast``)."""
        metric = parse_metric(name)
        return cls(metric.kind, metric.k or _WHOLE)

    @property
    def kind(self) -> int:
        """What an answer at a rank counts, see above."""
        return _KINDS[self.name]

    def gains(self, truth: GroundTruth, query: int) -> NDArray[np.float64]:
        """Gain of each right answer of a query, in the order of ``positives_of``: grades under nDCG, otherwise 1."""
        first, last = truth.positive_starts[query], truth.positive_starts[query + 1]
        if self.kind == DISCOUNTED and truth.grades is not None:
            return truth.grades[first:last]
        return np.ones(last - first)

    def largest(self, gains: NDArray[np.float64]) -> float:
        """What the sum is divided by; for most metrics the sum of the ideal ranking."""
        if self.kind != DISCOUNTED:
            return float({"mAP": min(len(gains), self.cut), "P": self.cut}.get(self.name, len(gains)))
        best = -np.sort(-gains)[: self.cut]
        return float((best / np.log2(np.arange(2, len(best) + 2))).sum())


class Entries(NamedTuple):
    """What stands for the right answers of a query: the sampled ones, and draws for the others.

    after, before: (K,) distances after and before the backfill, as indices into the thresholds of the counts.
    moment: (O, K) when they are backfilled. rank_share, ahead, stands_for: see ``DrawnAnswers``; the last one is its
    share. gain: (R, K) what it counts in each metric, once.
    answer: entries of one answer do not precede each other. sampled: index of the sampled answer, to whose contribution
    the entry belongs, or -1. sign: +1 or the share of a draw that is subtracted.
    """

    after: NDArray[np.int64]
    before: NDArray[np.int64]
    moment: NDArray[np.int64]
    rank_share: Floats
    ahead: Floats
    stands_for: Floats
    gain: Floats
    answer: NDArray[np.int64]
    sampled: NDArray[np.int64]
    sign: Floats


@dataclass(frozen=True, eq=False)
class Expectation:
    """Expected metrics of a query. value: (O, T, R).

    own: (O, n, T, R) by how much each of n sampled answers raises it: what it contributes, and what others contribute
    because it precedes them, beyond the same of the draws for it.
    changes: (1 + PARTS, O, T, R) by how much it changes with ``CloserCounts.changes``.
    """

    value: Floats
    own: Floats
    changes: Floats


def expect(
    entries: Entries, counts: CloserCounts, kinds: NDArray[np.int64], cuts: NDArray[np.int64], n_sampled: int
) -> Expectation:  # fmt: skip
    """The expected sums over right answers.

    Cost: O T K (K + R counts).
    """
    orders, _, points = counts.known.shape
    value = np.zeros((orders, points, len(kinds)))
    own = np.zeros((orders, n_sampled, points, len(kinds)))
    changes = np.zeros((orders, len(counts.changes), points, len(kinds)))
    for o in range(orders):
        of_order = counts._replace(known=counts.known[o], expected=counts.expected[o], changes=counts.changes[:, o])
        _expect(entries, entries.moment[o], of_order, kinds, cuts, value[o], own[o], changes[o])
    return Expectation(value, own, changes.swapaxes(0, 1))


@kernel
def _is_before(place: Array, answer: Array, one: int, other: int) -> bool:
    """Whether one entry precedes another; answers at equal distances are ranked by position, as by a replay."""
    return bool(place[one] < place[other] or (place[one] == place[other] and answer[one] < answer[other]))


@kernel
def _expect(
    entries: Entries, moment: Array, counts: CloserCounts, kinds: Array, cuts: Array, sums: Array, own: Array,
    changed: Array,
) -> None:  # fmt: skip
    """Add up one order. moment: (K,), counts: as in ``Entries`` and ``CloserCounts``, of this order."""
    after, before, _, rank_share, ahead, stands_for, gain, answer, sampled, sign = entries
    _, known, expected, variances, changes = counts
    behind = np.zeros((len(after), len(kinds)))  # change of an entry's contribution if one more answer precedes it
    for t in range(len(sums)):
        place = np.where(moment <= t, after, before)
        for k in range(len(after)):
            preceding = ahead[k]
            for other in range(len(after)):
                if answer[other] != answer[k] and _is_before(place, answer, other, k):
                    preceding += rank_share[other]
            closer, mean, variance = known[place[k], t], expected[place[k], t], variances[place[k]]
            for r in range(len(kinds)):
                share = stands_for[k] * gain[r, k]
                value = _of_entry(kinds[r], cuts[r], preceding, closer, mean, variance)
                sums[t, r] += share * value
                # At the cut, all answers that an entry stands for would leave at once. One more pushes out one of them.
                at_cut = 1.0 + preceding + closer + mean + abs(stands_for[k]) > cuts[r]
                more = max(1.0, abs(stands_for[k])) if at_cut else 1.0
                later = _of_entry(kinds[r], cuts[r], preceding + more, closer, mean, variance)
                behind[k, r] = share * (later - value) / more
                if sampled[k] >= 0:
                    own[sampled[k], t, r] += sign[k] * gain[r, k] * value
                if mean > 0:
                    step = 0.1 * mean
                    higher = _of_entry(kinds[r], cuts[r], preceding, closer, mean + step, variance)
                    slope = share * (higher - value) / step
                    for j in range(len(changes)):
                        changed[j, t, r] += slope * changes[j, place[k], t]
        for k in range(len(after)):
            if sampled[k] >= 0:
                for other in range(len(after)):
                    if answer[other] != answer[k] and _is_before(place, answer, k, other):
                        for r in range(len(kinds)):
                            own[sampled[k], t, r] += sign[k] * behind[other, r]


@kernel
def _of_entry(kind: int, cut: int, preceding: float, closer: float, mean: float, variance: float) -> float:
    """Expected contribution of a right answer: ``preceding`` other ones and ``closer`` known items precede it."""
    value = _value(kind, cut, 1.0 + preceding + closer, mean, variance)
    return value * (1.0 + preceding) if kind == 0 else value


@kernel
def _value(kind: int, cut: int, first: float, mean: float, variance: float) -> float:
    """Expected value of a right answer at rank ``first`` plus a negative binomial count."""
    if mean == 0.0:
        return _at(kind, first) if first <= cut else 0.0
    clumping = max(variance * mean, 1e-6)
    rank, deviation = first + mean, math.sqrt(mean * (1.0 + clumping))
    if rank + 8.0 * deviation <= cut and deviation < _NARROW * rank:
        return _at(kind, rank) * (1.0 + (deviation / rank) ** 2) if kind == 0 else _at(kind, rank)
    total = 0.0
    if mean > _MANY and variance < _MOST_VARIANCE and rank + 8.0 * deviation <= cut:
        # Wilson and Hilferty (1931): the cube root of a gamma variable is about normal.
        spread = deviation / mean / 3.0
        for quantile in _QUANTILES:
            total += _at(kind, first + mean * (1.0 - spread * spread + spread * quantile) ** 3)
        return total / len(_QUANTILES)
    chance = math.exp(-mean * math.log1p(clumping) / clumping)
    for more in range(int(mean + 8.0 * deviation + 12.0 * (1.0 + clumping))):
        if first + more > cut:
            break
        total += chance * _at(kind, first + more)
        chance *= (mean + more * clumping) / ((more + 1) * (1.0 + clumping))
    return total


@kernel
def _at(kind: int, rank: float) -> float:
    if kind == 0:
        return 1.0 / rank
    if kind == 1:
        return 1.0
    return 1.0 / math.log2(1.0 + rank)
