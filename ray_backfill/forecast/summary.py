"""What a forecast says in numbers: areas, gains, ends, falls, differences, and how much to embed for a narrower one."""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from ray_backfill.forecast.estimate import LEVEL, Estimate, Units, area_weights, moment_weights

Floats = NDArray[np.float64]
# Moments between which the largest drop is sought.
_MOMENTS = 11
# Multiples of the sample that are tried.
_MULTIPLES = np.geomspace(1, 1000, 1000)


@dataclass(frozen=True)
class Limits:
    """A value with its 95 % limits."""

    value: float
    low: float
    high: float


UNKNOWN = Limits(float("nan"), float("nan"), float("nan"))


def limits(estimate: Estimate) -> Limits:
    """The value and the limits of an estimate."""
    return Limits(estimate.value, estimate.low, estimate.high)


def bounded(estimate: Estimate) -> Limits:
    """The value and the limits of a metric, which is in [0, 1]."""
    return Limits(*(min(max(each, 0.0), 1.0) for each in (estimate.value, estimate.low, estimate.high)))


def curve(units: Units) -> list[Limits]:
    """The estimate at each moment; at t = 0 the exact value."""
    points, start = units.value.shape[1], float(units.start[:, 0].mean())
    return [Limits(start, start, start), *(bounded(units.mean(moment_weights(points, t))) for t in range(1, points))]


def area(units: Units, t: Floats) -> Estimate:
    """The area under the curve."""
    return units.mean(area_weights(t))


def gain(units: Units, new: Units, t: Floats) -> Limits:
    """The share of the upgrade's improvement that users get; unknown unless new is significantly better than old.

    new: of {new, new}, of which the last moment counts; it starts at {old, old}. The interval is that of a ratio of two
    estimates (Fieller, 1954).
    """
    one, last = np.ones(1), moment_weights(len(t), len(t) - 1)
    old = float(new.start.mean())
    area_, end = units.weighted(area_weights(t)), new.weighted(last)
    both = [each.mean(one) for each in (area_.plus(end, 0.0), end.plus(area_, 0.0), area_.plus(end, -1.0))]
    of_area, of_end, apart = both
    above, whole, quantile = of_area.value - old, of_end.value - old, of_area.quantile
    shared = (of_area.variance + of_end.variance - apart.variance) / 2
    a = whole**2 - quantile**2 * of_end.variance
    if whole <= 0 or a <= 0:
        return UNKNOWN
    b, c = above * whole - quantile**2 * shared, above**2 - quantile**2 * of_area.variance
    root = float(np.sqrt(max(b * b - a * c, 0.0)))
    return Limits(above / whole, (b - root) / a, (b + root) / a)


def end_difference(units: Units, new: Units) -> Limits:
    """M_1 minus that of {new, new}."""
    points = units.value.shape[1]
    return limits(units.plus(new, -1.0).mean(moment_weights(points, points - 1)))


def fall(units: Units, t: Floats) -> tuple[Limits, float, float]:
    """The largest drop of the estimated curve, and the moments before and after it.

    The limits are simultaneous (Bonferroni): they hold for all drops between pairs of ``_MOMENTS`` moments.
    """
    moments = np.unique(np.linspace(0, len(t) - 1, min(len(t), _MOMENTS)).round().astype(int)).tolist()
    level = 1 - (1 - LEVEL) / comb(len(moments), 2)
    best, low, high = (0.0, 0, 0), 0.0, 0.0
    for start, end in combinations(moments, 2):
        drop = units.mean(moment_weights(len(t), start) - moment_weights(len(t), end))
        half = drop.half_width_at(level)
        best = max(best, (drop.value, start, end))
        low, high = max(low, drop.value - half), max(high, drop.value + half)
    value, start, end = best
    return Limits(value, low, high), float(t[start]), float(t[end])


def items_to_halve(estimate: Estimate, groups_in_all: int, sampled: int, gallery: int) -> float:
    """Number of further items that would halve the interval; NaN if half of the gallery is not enough.

    More items pay for more queries. When all queries are chosen, they pay for more right answers of each. The model of
    other items is fitted on more of them, and needed for fewer.
    """
    share = estimate.groups / groups_in_all
    groups = np.minimum(estimate.groups * _MULTIPLES, groups_in_all)
    of_one = estimate.of_queries * estimate.groups / (1 - share) if share < 1 else 0.0
    of_queries = of_one / groups * (1 - groups / groups_in_all)
    of_answers = estimate.of_answers * np.minimum(1, groups_in_all / (estimate.groups * _MULTIPLES))
    left = np.clip((gallery - sampled * _MULTIPLES) / max(gallery - sampled, 1), 0.0, 1.0)
    of_model = left**2 * (estimate.structural + (estimate.of_model - estimate.structural) / _MULTIPLES)
    enough = of_queries + of_answers + of_model <= estimate.variance / 4
    more = np.ceil((_MULTIPLES[int(enough.argmax())] - 1) * sampled)
    if not estimate.variance or not enough.any() or sampled + more > gallery / 2:
        return float("nan")
    return float(more)
