"""Statistics of curves from the values of single queries: means, areas, gains, falls, flips, bootstrap intervals.

Queries may have weights. Every mean over queries is then a weighted one.

Shapes: T points, Q queries.
"""

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel

FloatQT = NDArray[np.float64]
# Whether each query's top-1 is correct, or the share of several orders in which it is.
RightQT = NDArray[np.bool_] | NDArray[np.float64]


# (Q,) relative weights of queries; None if they are equal.
Weights = NDArray[np.float64] | None


def relative_weights(weights_Q: Weights) -> Weights:
    """Return weights whose largest is 1, or None if all are equal: then means are plain ones, to the last bit."""
    if weights_Q is None or not len(weights_Q) or (weights_Q == weights_Q[0]).all():
        return None
    return np.asarray(weights_Q / weights_Q.max())


def mean(values_QT: FloatQT, weights_Q: Weights = None) -> NDArray[np.float64]:
    """Return the (T,) weighted means over queries."""
    if weights_Q is None:
        return np.asarray(values_QT.mean(axis=0))
    return np.asarray(np.average(values_QT, axis=0, weights=weights_Q))


def auc(t: NDArray[np.float64], values: NDArray[np.float64], is_step: bool = False) -> float:
    """Return the area under the curve over t in [0, 1], by the trapezoid rule. Source: rank merge, section 3.2.

    is_step: the curve is constant between points and jumps at the next one, like offline backfilling; the area of such
    a curve is exact.
    """
    return float(auc_draws(t, values[None], is_step)[0])


def auc_draws(t: NDArray[np.float64], draws: NDArray[np.float64], is_step: bool = False) -> NDArray[np.float64]:
    """Return the ``auc`` of each of (DRAWS, T) curves."""
    return np.asarray(draws[:, :-1] @ np.diff(t) if is_step else np.trapezoid(draws, t, axis=1))


def auc_mean(values: NDArray[np.float64]) -> float:
    """Return the plain mean over the points, which FastFill's public code uses as the area."""
    return float(np.mean(values))


def gain(auc_method: float, auc_old: float, auc_new: float) -> float:
    """Return the share of the upgrade's improvement that users get during the backfill; 1.0 = 100 %, may be exceeded.

    Source: rank merge, table 1. NaN if old and new are equal: there is nothing to gain.
    """
    return (auc_method - auc_old) / (auc_new - auc_old) if auc_new != auc_old else float("nan")


def is_upgrade(old: NDArray[np.float64], new: NDArray[np.float64], n_queries: int) -> bool:
    """Return whether new is significantly better than old, from (DRAWS,) areas; otherwise a gain means nothing."""
    return bool(interval(new - old, n_queries)[0] > 0)


def gain_draws(method: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (DRAWS,) gains, from (DRAWS,) areas; call it only if new ``is_upgrade``.

    Draws in which new is hardly better than old have large gains of either sign, and so the interval of an uncertain
    upgrade is wide. Linearised around the means it would be too narrow: docs/results/coverage.md. Where new equals old,
    the gain is ``_ENDLESS``, or NaN if nothing differs.
    """
    gained, step = method - old, new - old
    endless = np.where(gained == 0, np.nan, np.sign(gained) * _ENDLESS)
    return np.divide(gained, step, out=endless, where=step != 0)


def gain_limits(
    method: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64], n_queries: int
) -> tuple[float, float]:
    """Return the 95 % limits of a gain, from (DRAWS,) areas; NaN if new is no clear upgrade.

    NaN also if new equals old in so many draws that the gain has no limit.
    """
    if not is_upgrade(old, new, n_queries):
        return float("nan"), float("nan")
    gains = gain_draws(method, old, new)
    low, high = interval(gains[~np.isnan(gains)], n_queries)
    is_bounded = max(abs(low), abs(high)) < _ENDLESS / 1e6
    return (float(low), float(high)) if is_bounded else (float("nan"), float("nan"))


# A gain whose denominator is 0: larger than any other, and finite, so that percentiles can be taken.
_ENDLESS = 1e12
# Means of float64 shares differ by less than this if they are mathematically equal.
ROUNDING = 1e-12
# Below this spread, a drop is treated as deterministic.
_STILL = 1e-8


class Fall(NamedTuple):
    """The largest drawdown of a curve: the most that a later value is below an earlier one.

    size: in the metric's unit, 0 for a curve that never decreases. peak, trough: indices of the two values.
    """

    size: float
    peak: int
    trough: int


def largest_fall(values: NDArray[np.float64]) -> Fall:
    """Return the largest drawdown, from a peak to a later trough."""
    highest = np.maximum.accumulate(values)
    trough = int(np.argmax(highest - values))
    peak = int(np.argmax(values[: trough + 1]))
    return Fall(float(values[peak] - values[trough]), peak, trough)


def fall_limits(draws: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % limits of the largest fall of a curve, from its (DRAWS, T) bootstrap means; NaN if these are.

    The largest fall is the largest of many drops, so the limits hold for the drops between all pairs of moments at once
    (studentised maximum statistic, "simultaneous confidence band"). Cost: O(DRAWS T^2), at most 200 equally spaced
    moments of T; the last one and the two ends of the largest fall always belong to them.
    """
    if np.isnan(draws).any():
        return float("nan"), float("nan")
    last, fall = len(values) - 1, largest_fall(values)
    kept = np.union1d(np.arange(0, last, max(1, last // 100)), [fall.peak, fall.trough, last])
    errors, some = draws[:, kept] - draws[:, kept].mean(axis=0), values[kept]
    covariance = errors.T @ errors / len(errors)
    variance = np.diag(covariance)
    spread = np.sqrt(np.maximum(variance[:, None] + variance - 2 * covariance, 0))
    spread[spread < _STILL] = 0
    drops = np.triu(some[:, None] - some, 1)  # [earlier, later]
    largest = np.empty(len(errors))
    _largest_deviations(np.ascontiguousarray(errors), spread, largest)
    width = np.quantile(largest, LEVEL) * np.triu(spread, 1)
    return max(0.0, float((drops - width).max())), max(0.0, float((drops + width).max()))


@kernel
def _largest_deviations(errors: Array, spread: Array, largest: Array) -> None:
    """The largest |error of a drop| / spread of each draw, over all pairs of moments whose drop varies."""
    n = errors.shape[1]
    inverse = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            if spread[i, j] > 0:
                inverse[i, j] = 1 / spread[i, j]
    for d in range(len(errors)):
        error, most = errors[d], 0.0
        for i in range(n - 1):
            for j in range(i + 1, n):
                most = max(most, abs(error[i] - error[j]) * inverse[i, j])
        largest[d] = most


def lowest_limits(draws: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % limits of the smallest value of a curve, from its (DRAWS, T) bootstrap means; NaN if these are.

    It is the smallest of many, so the limits hold for all points at once, as in ``fall_limits``. Cost: O(DRAWS T).
    """
    if np.isnan(draws).any():
        return float("nan"), float("nan")
    errors = draws - draws.mean(axis=0)
    spread = errors.std(axis=0)
    spread[spread < _STILL] = 0
    scaled = np.divide(np.abs(errors), spread, out=np.zeros_like(errors), where=spread > 0)
    width = np.quantile(scaled.max(axis=1), LEVEL) * spread
    return float((values - width).min()), float((values + width).min())


def simultaneous_width(draws: NDArray[np.float64], n_queries: int) -> float:
    """Return how many standard errors to either side hold for K values at once, from their (K, DRAWS) bootstrap means.

    It is the quantile of the largest studentised deviation (max-t), for few queries expanded as ``interval``; of one
    value and many queries about 1.96. Cost: O(K DRAWS).
    """
    errors = draws - draws.mean(axis=1, keepdims=True)
    spread = errors.std(axis=1, keepdims=True)
    scaled = np.divide(np.abs(errors), spread, out=np.zeros_like(errors), where=spread > _STILL)
    return float(np.quantile(scaled.max(axis=0), 1 - 2 * _levels(n_queries)[0]))


def settles(values: NDArray[np.float64], target: float) -> int | None:
    """Return the first index from which on no value is below ``target``; None if the last one is."""
    below = np.flatnonzero(values < target)
    first = int(below[-1]) + 1 if len(below) else 0
    return first if first < len(values) else None


def settle_limits(above: NDArray[np.float64], n_queries: int) -> tuple[float, float]:
    """Return the 95 % limits of the index that ``settles`` finds; infinite: at no point; NaN if draws are.

    Limits of the values are inverted, so a draw that never reaches the target needs no index. The true index is above
    the upper limit only if the curve is below its target at the point before it: limits of single points do. It is
    below the lower limit if the curve seems too low at any of the points that follow: these need limits of all points
    at once, as in ``lowest_limits``. Percentiles of the draws' own indices are too late where a curve stays close to
    its target: docs/results/coverage.md. Cost: O(DRAWS T).

    above: (DRAWS, T) bootstrap means of a curve minus those of its target.
    """
    if np.isnan(above).any():
        return float("nan"), float("nan")
    errors = above - above.mean(axis=0)
    spread = errors.std(axis=0)
    scaled = np.divide(-errors, spread, out=np.zeros_like(errors), where=spread > _STILL)
    least, most = _levels(n_queries)
    highest = above.mean(axis=0) + np.quantile(scaled.max(axis=1), most) * spread
    first, last = (settles(limit, -ROUNDING) for limit in (highest, np.quantile(above, least, axis=0)))
    return float("inf") if first is None else first, float("inf") if last is None else last


def lost(before_QT: RightQT, now_QT: RightQT) -> FloatQT:
    """Return 1 where a query's top-1 was correct before and is wrong now, otherwise 0.

    For a mean of several orders, both are shares of the orders. The share that is lost is exact if all orders agree on
    what was before, as at t = 0 they do.
    """
    return np.asarray(before_QT * (1.0 - now_QT), np.float64)


def negative_flips(before_QT: RightQT, correct_QT: RightQT, weights_Q: Weights = None) -> NDArray[np.float64]:
    """Return the (T,) share of queries with a correct top-1 before, a wrong one at t. Source: FastFill, appendix D."""
    return mean(lost(before_QT, correct_QT), weights_Q)


def positive_flips(before_QT: RightQT, correct_QT: RightQT, weights_Q: Weights = None) -> NDArray[np.float64]:
    """Return the (T,) share of queries with a wrong top-1 before, a correct one at t. Source: FastFill, appendix D."""
    return negative_flips(correct_QT, before_QT, weights_Q)


# Number of bootstrap draws, and the share of them that an interval covers.
DRAWS = 1000
LEVEL = 0.95
# Draws per matrix product, as float64.
_DRAWS_AT_ONCE = 50


@lru_cache(maxsize=2)
def resamples(n_queries: int, seed: int = 0, draws: int = DRAWS) -> NDArray[np.uint16]:
    """Return (draws, Q) counts: how often each draw of Q queries with replacement contains each query.

    The same seed gives the same draws, so that statistics of two methods are paired.
    """
    rng = np.random.default_rng(seed)
    counts = np.empty((draws, n_queries), np.uint16)
    for draw in range(draws):
        counts[draw] = np.bincount(rng.integers(n_queries, size=n_queries), minlength=n_queries)
    return counts


def bootstrap_means(
    values_QT: FloatQT, weights_Q: Weights = None, seed: int = 0, draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return the (draws, T) weighted means over each draw of queries; NaN for one query, which varies in no draw.

    Queries are drawn with equal probability, and each keeps its weight.

    Cost: O(draws Q T).
    """
    if len(values_QT) < 2:
        return np.full((draws, values_QT.shape[1]), np.nan)
    counts, values_QT = resamples(len(values_QT), seed, draws), np.ascontiguousarray(values_QT)  # copied once at most
    means = np.empty((draws, values_QT.shape[1]))
    for first in range(0, draws, _DRAWS_AT_ONCE):
        part = slice(first, first + _DRAWS_AT_ONCE)
        drawn = counts[part].astype(np.float64)
        if weights_Q is None:
            means[part] = drawn @ values_QT / len(values_QT)
        else:
            drawn *= weights_Q
            means[part] = drawn @ values_QT / drawn.sum(axis=1, keepdims=True)
    return means


def interval(draws: NDArray[np.float64], n_queries: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return low and high of the 95 % percentile interval of bootstrap draws (first axis) over this many queries.

    Percentiles of a bootstrap are too narrow for few queries, so they are those that make the interval of normal values
    as wide as Student's t: 2.0 and 98.0 % of 30 queries, 2.5 and 97.5 % of many. Source: Hesterberg, "What Teachers
    Should Know About the Bootstrap", 2015, section 5.3 (expanded percentile interval).
    """
    low, high = np.quantile(draws, _levels(n_queries), axis=0)
    return low, high


@lru_cache(maxsize=1024)
def _levels(n_queries: int) -> tuple[float, float]:
    """The lower and the upper percentile of ``interval``, as shares."""
    from scipy.special import ndtr, stdtrit

    if n_queries < 2:
        return 0.0, 1.0
    expanded = stdtrit(n_queries - 1, (1 - LEVEL) / 2) * sqrt(n_queries / (n_queries - 1))
    return float(ndtr(expanded)), float(ndtr(-expanded))
