"""Expected values of metrics, if the number of closer items has a known part and a random one.

The random part is Poisson around a mean that varies between queries by a gamma distribution of mean 1: counts of
similar items come in clusters. A metric is an average of values at single counts, never the value at the average count:
1 / rank is convex.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gamma

from ray_backfill.kernels import Array, kernel

Floats = NDArray[np.float64]
# Largest variance -> support points of the gamma distribution that are enough for it.
_POINTS = {1e-4: 1, 0.05: 3, 0.3: 8, math.inf: 16}
# Poisson means from which on approximations are used.
_MANY = 25.0


@dataclass(frozen=True, eq=False)
class Entries:
    """What stands for the right answers of a query: the sampled ones, and draws for the others.

    after, before: (K,) distances after and before the backfill, as indices into the thresholds of the counts.
    moment: (O, K) when they are backfilled. rank_share: how many answers an entry stands for where it precedes others.
    share: (R, K) how much it counts in each metric. answer: entries of one answer do not precede each other. sampled:
    index of the sampled answer, to whose contribution the entry belongs, or -1. sign: +1 or the share of a draw that
    is subtracted.
    """

    after: NDArray[np.int64]
    before: NDArray[np.int64]
    moment: NDArray[np.int64]
    rank_share: Floats
    share: Floats
    answer: NDArray[np.int64]
    sampled: NDArray[np.int64]
    sign: Floats


def mean_factors(variance: float) -> Floats:
    """Means of equally likely parts of the gamma distribution with mean 1 and this variance."""
    points = next(number for largest, number in _POINTS.items() if variance <= largest)
    if points == 1:
        return np.ones(1)
    shape = 1 / variance
    edges = gamma.ppf(np.arange(1, points) / points, shape, scale=variance)
    return np.asarray(np.diff(np.concatenate([[0], gamma.cdf(edges, shape + 1, scale=variance), [1]])) * points)


def expect(
    entries: Entries, known: NDArray[np.int64], expected: Floats, kinds: NDArray[np.int64], cuts: NDArray[np.int64],
    factors: Floats, n_sampled: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The (O, T, R) expected sums over right answers, and what each sampled answer contributes, (O, n, T, R).

    known, expected: (O, M, T) closer items. Cost: O T K (K + R counts).
    """
    orders, _, points = known.shape
    sums = np.zeros((orders, points, len(kinds)))
    own = np.zeros((orders, n_sampled, points, len(kinds)))
    for o in range(orders):
        _expect(
            entries.after, entries.before, entries.moment[o], entries.rank_share, entries.share, entries.answer,
            entries.sampled, entries.sign, known[o], expected[o], kinds, cuts, factors, sums[o], own[o],
        )  # fmt: skip
    return sums, own


@kernel
def _expect(
    after: Array, before: Array, moment: Array, rank_share: Array, share: Array, answer: Array, sampled: Array,
    sign: Array, known: Array, expected: Array, kinds: Array, cuts: Array, factors: Array, sums: Array, own: Array,
) -> None:  # fmt: skip
    for t in range(len(sums)):
        place = np.where(moment <= t, after, before)
        for k in range(len(after)):
            preceding = 0.0
            for other in range(len(after)):
                if answer[other] != answer[k] and place[other] < place[k]:
                    preceding += rank_share[other]
            first = 1.0 + preceding + known[place[k], t]
            for r in range(len(kinds)):
                value = 0.0
                for factor in factors:
                    value += _value(kinds[r], cuts[r], first, expected[place[k], t] * factor)
                value /= len(factors)
                if kinds[r] == 0:
                    value *= 1.0 + preceding
                sums[t, r] += share[r, k] * value
                if sampled[k] >= 0:
                    own[sampled[k], t, r] += sign[k] * value


@kernel
def _value(kind: int, cut: int, first: float, mean: float) -> float:
    """Expected value of a right answer at rank ``first`` plus a Poisson count."""
    if mean > _MANY:
        room = math.floor(cut - first) + 1.0
        if room <= 0:
            return 0.0
        # P(count < room), by Wilson and Hilferty (1931).
        spread = 1.0 / (9.0 * room)
        reached = 0.5 * math.erfc(-(1.0 - spread - (mean / room) ** (1.0 / 3.0)) / math.sqrt(2.0 * spread))
        rank = first + mean
        return reached * (_at(kind, rank) * (1.0 + mean / (rank * rank)) if kind == 0 else _at(kind, rank))
    total, chance = 0.0, math.exp(-mean)
    for more in range(int(mean + 8.0 * math.sqrt(mean) + 12.0)):
        if first + more > cut:
            break
        total += chance * _at(kind, first + more)
        chance *= mean / (more + 1)
    return total


@kernel
def _at(kind: int, rank: float) -> float:
    if kind == 0:
        return 1.0 / rank
    if kind == 1:
        return 1.0
    return 1.0 / math.log2(1.0 + rank)
