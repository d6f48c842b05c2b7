"""Retrieval metrics from the ranks of positives, and statistics of curves. No I/O, no distances.

A rank is the 1-based place of a positive among all items that are not ignored.
Shapes: P positives, T points, Q queries.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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


def auc(t: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return the area under the curve over t in [0, 1], by the trapezoid rule. Source: rank merge, section 3.2."""
    return float(np.trapezoid(values, t))


def auc_draws(t: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ``auc`` of each of (DRAWS, T) curves."""
    return np.asarray(np.trapezoid(draws, t, axis=1))


def auc_mean(values: NDArray[np.float64]) -> float:
    """Return the plain mean over the points, which FastFill's public code uses as the area."""
    return float(np.mean(values))


def gain(auc_method: float, auc_old: float, auc_new: float) -> float:
    """Return the share of the upgrade's improvement that users get during the backfill; 1.0 = 100 %, may be exceeded.

    Source: rank merge, table 1. NaN if old and new are equal: there is nothing to gain.
    """
    return (auc_method - auc_old) / (auc_new - auc_old) if auc_new != auc_old else float("nan")


def gain_draws(method: NDArray[np.float64], old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ``gain`` of each draw of (DRAWS,) areas; all NaN if old and new do not differ significantly."""
    step = new - old
    low, high = interval(step)
    return (method - old) / step if low > 0 or high < 0 else np.full(len(step), np.nan)


def largest_fall(values: NDArray[np.float64]) -> float:
    """Return the largest drop between neighbouring points, >= 0. Zero means that the curve never decreases."""
    return float(max(0.0, -np.diff(values).min(initial=0.0)))


def is_monotone(values: NDArray[np.float64]) -> bool:
    """Return whether the curve never decreases (rank merge, eq. 8), up to rounding of float64 means (1e-12)."""
    return largest_fall(values) <= 1e-12


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
    """Return the (DRAWS, T) means over each draw of queries. Cost: O(DRAWS Q T)."""
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
