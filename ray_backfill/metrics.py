"""Retrieval metrics from the ranks of positives, and statistics of curves. No I/O, no distances.

A rank is the 1-based place of a positive among all items that are not ignored.
Shapes: P positives, T points, Q queries.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.kernels import Array, kernel

FloatQT = NDArray[np.float64]
BoolQT = NDArray[np.bool_]


@dataclass(frozen=True)
class Metric:
    """A parsed metric name: "mAP" (whole ranking), "mAP@100" or "CMC@1" (cut at k)."""

    name: str
    kind: Literal["mAP", "CMC"]
    k: int | None


def parse_metric(name: str) -> Metric:
    """Parse "mAP", "mAP@k" or "CMC@k" (k >= 1).

    Raises:
        InputError: The name has none of these forms; the message lists them.
    """
    match = re.fullmatch(r"(mAP|CMC)(?:@([1-9]\d*))?", name)
    if match is None or (match[1] == "CMC" and match[2] is None):
        raise InputError(f"unknown metric {name!r}; known: mAP, mAP@k and CMC@k, e.g. mAP@100, CMC@1")
    k = int(match[2]) if match[2] else None
    if k is not None and k >= 1 << 32:
        raise InputError(f"the cut-off of metric {name!r} exceeds any gallery; use mAP or a smaller k")
    return Metric(name, "mAP" if match[1] == "mAP" else "CMC", k)


def metric_codes(metrics: Sequence[Metric]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return the arguments of ``measure``: which metrics are average precisions, and the cut-off of each."""
    whole = np.iinfo(np.int64).max
    return np.array([x.kind == "mAP" for x in metrics]), np.array([x.k or whole for x in metrics], np.int64)


@kernel
def measure(ranks: Array, n_positives: int, is_map: Array, cuts: Array, values: Array) -> None:
    """Compute the metrics of one ranking from the ascending ranks of its positives into ``values`` (float64).

    Ranks above all cut-offs may be left out. mAP: average precision, the mean over all positives of (place among the
    positives / rank). mAP@k: sum of the precisions at the positives within the first k, divided by min(P, k) (the GLDv2
    definition). CMC@k: 1.0 if any positive is within the first k, else 0.0.
    """
    for m in range(len(cuts)):
        total = 0.0
        for j in range(len(ranks)):
            if ranks[j] > cuts[m]:
                break
            if not is_map[m]:
                total = 1.0
                break
            total += (j + 1) / ranks[j]
        values[m] = total / min(n_positives, cuts[m]) if is_map[m] else total


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


def is_upgrade(old: NDArray[np.float64], new: NDArray[np.float64]) -> bool:
    """Return whether new is significantly better than old, from (DRAWS,) areas; otherwise a gain means nothing."""
    return bool(interval(new - old)[0] > 0)


def gain_draws(method: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (DRAWS,) gains around their mean, from (DRAWS,) areas; call it only if new ``is_upgrade``.

    The ratio is linearised around the means (delta method), because single draws of new - old can be close to zero.
    """
    gained, step = method - old, new - old
    ratio = gained.mean() / step.mean()
    return np.asarray(ratio + (gained - ratio * step) / step.mean())


# Means of float64 shares differ by less than this if they are mathematically equal.
ROUNDING = 1e-12
# Drops whose bootstrap draws vary less than this do not vary: they come from no query.
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
    (studentised maximum statistic, "simultaneous confidence band"). Cost: O(DRAWS T^2), at most 101 moments of T.
    """
    if np.isnan(draws).any():
        return float("nan"), float("nan")
    step = max(1, (len(values) - 1) // 100)
    errors, some = draws[:, ::step] - draws[:, ::step].mean(axis=0), values[::step]
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
        own, most = errors[d], 0.0
        for i in range(n - 1):
            for j in range(i + 1, n):
                most = max(most, abs(own[i] - own[j]) * inverse[i, j])
        largest[d] = most


def settles(values: NDArray[np.float64], target: float) -> int | None:
    """Return the first index from which on no value is below ``target``; None if the last one is."""
    below = np.flatnonzero(values < target)
    first = int(below[-1]) + 1 if len(below) else 0
    return first if first < len(values) else None


def negative_flips(before_QT: BoolQT, correct_QT: BoolQT) -> NDArray[np.float64]:
    """Return the (T,) share of queries with a correct top-1 before, a wrong one at t. Source: FastFill, appendix D."""
    share: NDArray[np.float64] = (before_QT & ~correct_QT).mean(axis=0)
    return share


def positive_flips(before_QT: BoolQT, correct_QT: BoolQT) -> NDArray[np.float64]:
    """Return the (T,) share of queries with a wrong top-1 before, a correct one at t. Source: FastFill, appendix D."""
    return negative_flips(correct_QT, before_QT)


# Number of bootstrap draws, and the share of them that an interval covers.
DRAWS = 1000
LEVEL = 0.95
# Draws per matrix product, as float64.
_DRAWS_AT_ONCE = 50


@lru_cache(maxsize=2)
def resamples(n_queries: int, seed: int = 0) -> NDArray[np.uint16]:
    """Return (DRAWS, Q) counts: how often each draw of Q queries with replacement contains each query.

    The same seed gives the same draws, so that statistics of two methods are paired.
    """
    rng = np.random.default_rng(seed)
    counts = np.empty((DRAWS, n_queries), np.uint16)
    for draw in range(DRAWS):
        counts[draw] = np.bincount(rng.integers(n_queries, size=n_queries), minlength=n_queries)
    return counts


def bootstrap_means(values_QT: FloatQT, seed: int = 0) -> NDArray[np.float64]:
    """Return the (DRAWS, T) means over each draw of queries; NaN for one query, which varies in no draw.

    Cost: O(DRAWS Q T).
    """
    if len(values_QT) < 2:
        return np.full((DRAWS, values_QT.shape[1]), np.nan)
    counts = resamples(len(values_QT), seed)
    means = np.empty((DRAWS, values_QT.shape[1]))
    for first in range(0, DRAWS, _DRAWS_AT_ONCE):
        part = slice(first, first + _DRAWS_AT_ONCE)
        means[part] = counts[part].astype(np.float64) @ values_QT / len(values_QT)
    return means


def interval(draws: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return low and high of the percentile interval that covers LEVEL of the draws (first axis)."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high
