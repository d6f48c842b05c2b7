"""From the chosen queries to the mean over all queries, with an interval; and what a forecast says in such numbers.

The metric of a chosen query is an estimate, too: from its sampled right answers, and from expected numbers of closer
items. Three errors are added: that of choosing queries, that of sampling right answers, and that of the model of other
items: that of its sample, by the jackknife, and a structural one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from ray_backfill.engine.systems import Floats
from ray_backfill.forecast.models import PARTS

LEVEL = 0.95
# Structural errors correlate by exp(-distance / reach) of the moments, in shares of the backfill.
_REACH = 1.0
# Moments between which the largest drop is sought.
_MOMENTS = 11
# Multiples of the sample that are tried.
_MULTIPLES = np.geomspace(1, 1000, 1000)


class Limits(NamedTuple):
    """A value with its 95 % limits."""

    value: float
    low: float
    high: float


UNKNOWN = Limits(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class Estimate:
    """An estimated mean over all queries, and the variances of its errors.

    structural: the part of of_model that a larger sample leaves. freedom: degrees of freedom. groups: number of chosen
    groups of queries.
    """

    value: float
    of_queries: float
    of_answers: float
    of_model: float
    structural: float
    freedom: float
    groups: int

    @property
    def variance(self) -> float:
        """The variance of all errors together."""
        return self.of_queries + self.of_answers + self.of_model

    def quantile(self, level: float = LEVEL) -> float:
        """Standard deviations in half of the interval of this level."""
        return float(student.ppf((1 + level) / 2, self.freedom))

    def half_width(self, level: float = LEVEL) -> float:
        """Half the width of the interval of this level."""
        return self.quantile(level) * float(np.sqrt(self.variance))

    @property
    def limits(self) -> Limits:
        """The value and its limits."""
        return Limits(self.value, self.value - self.half_width(), self.value + self.half_width())

    @property
    def bounded(self) -> Limits:
        """The value and the limits of a metric, which is in [0, 1]."""
        return Limits(*(min(max(end, 0.0), 1.0) for end in self.limits))


@dataclass(frozen=True, eq=False)
class SampledAnswers:
    """Sampled right answers of m queries. contribution: (n, T) by how much each one raises the metric, beyond what was
    expected of it. query: (n,) index of its query. answers: (m,) numbers of right answers from which they are drawn.
    """

    contribution: Floats
    query: NDArray[np.int64]
    answers: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Units:
    """A forecast curve: a metric of each chosen query at each moment.

    start: (Q, c) what is known of all scored queries: the metric at t = 0. chosen: (m,) indices into these. group:
    (m,). n_groups: of all queries. value: (m, T). without: (m, PARTS, T) change if a part of the items is left out on
    which the model of other items is fitted. shift: system that serves backfilled items -> (F, T) changes of the mean
    by F independent structural errors of its counts. sampled: of the chosen queries.
    """

    start: Floats
    chosen: NDArray[np.int64]
    group: NDArray[np.int64]
    n_groups: int
    value: Floats
    without: Floats
    shift: Mapping[str, Floats]
    sampled: SampledAnswers

    def mean(self, weights: Floats) -> Estimate:
        """The mean over all queries of the metric's sum over T moments, with these (T,) weights.

        A regression on the metric at t = 0, which is known of all queries, removes what the choice of queries explains.
        """
        y, start = self.value @ weights, self.start[self.chosen]
        spread = start - start.mean(axis=0)
        inverse = np.linalg.pinv(spread.T @ spread)
        slope = inverse @ spread.T @ y
        leverage = 1 / len(y) + np.einsum("ic,cd,id->i", spread, inverse, spread)
        left = (y - y.mean() - spread @ slope) / (1 - np.minimum(leverage, 0.9))
        _, of = np.unique(self.group, return_inverse=True)
        groups = int(of.max()) + 1
        totals = np.bincount(of, left)
        share = groups / self.n_groups
        of_queries = float(totals @ totals) / len(y) ** 2 * groups / max(groups - 1, 1) * (1 - share)
        deviations = np.bincount(of, np.sqrt(self._of_answers(weights)))
        of_answers = share * float(deviations @ deviations) / len(y) ** 2
        value = float(y.mean() + (self.start.mean(axis=0) - start.mean(axis=0)) @ slope)
        # Structural errors of two systems are independent of each other; the jackknife leaves out the same items.
        structural = sum(float(((shift @ weights) ** 2).sum()) for shift in self.shift.values())
        of_model = jackknife((self.without @ weights).mean(axis=0)) + structural
        of_sample = of_model - structural
        parts = ((of_queries + of_answers, groups - 1 - self.start.shape[1]), (of_sample, PARTS - 1))
        freedom = satterthwaite(of_queries + of_answers + of_model, parts)
        return Estimate(value, of_queries, of_answers, of_model, structural, freedom, groups)

    def _of_answers(self, weights: Floats) -> Floats:
        """(m,) variance of each query's weighted metric by which answers were sampled.

        A query of which at most one answer was sampled has the mean spread of the others.
        """
        of, answers = self.sampled.query, self.sampled.answers
        number = np.bincount(of, minlength=len(answers))
        of_one = self.sampled.contribution @ weights
        off = of_one - (np.bincount(of, of_one, len(number)) / np.maximum(number, 1))[of]
        spread = np.bincount(of, off**2, len(number)) / np.maximum(number - 1, 1) * answers**2
        is_known = number > 1
        spread[~is_known] = spread[is_known].mean() if is_known.any() else 0.0
        return np.asarray(
            np.where(answers > 0, (1 - number / np.maximum(answers, 1)) * spread / np.maximum(number, 1), 0)
        )

    def plus(self, other: "Units", factor: float = 1.0) -> "Units":
        """The sum of a curve and a multiple of another one of the same sample, whose errors are shared."""
        contribution = self.sampled.contribution + factor * other.sampled.contribution
        start = self.start if np.array_equal(self.start, other.start) else np.hstack([self.start, other.start])
        value, shift = self.value + factor * other.value, dict(self.shift)
        for system, each in other.shift.items():
            shift[system] = shift.get(system, np.zeros_like(each)) + factor * each
        without = self.without + factor * other.without
        sampled = replace(self.sampled, contribution=contribution)
        return replace(self, start=start, value=value, without=without, shift=shift, sampled=sampled)

    def weighted(self, weights: Floats) -> "Units":
        """A curve of one moment: the sum of this one with (T,) weights."""
        sampled = replace(self.sampled, contribution=self.sampled.contribution @ weights[:, None])
        shift = {system: each @ weights[:, None] for system, each in self.shift.items()}
        value, without = (of @ weights[:, None] for of in (self.value, self.without))
        return replace(self, value=value, without=without, shift=shift, sampled=sampled)


def mean_of(value: Floats, group: NDArray[np.int64]) -> Limits:
    """The mean over m queries with its limits. value: (m,). group: (m,) those of a group may err together."""
    _, of = np.unique(group, return_inverse=True)
    totals, middle = np.bincount(of, value - value.mean()), float(value.mean())
    groups = len(totals)
    if groups < 2:
        return Limits(middle, -np.inf, np.inf)
    deviation = float(np.sqrt(totals @ totals * groups / (groups - 1))) / len(value)
    half = float(student.ppf((1 + LEVEL) / 2, groups - 1)) * deviation
    return Limits(middle, middle - half, middle + half)


def structural_errors(changes_mT: Floats) -> Floats:
    """(T, T) independent changes of the mean over m queries that together are the structural error at each moment.

    changes_mT: by an error of one standard deviation. Errors at two moments correlate, the less the further they are
    apart. Were they one error, it would cancel from a gain, which has the same system in its area and its end.
    """
    t = np.linspace(0, 1, changes_mT.shape[1])
    correlation = np.exp(-np.abs(t[:, None] - t) / _REACH)
    return np.asarray(np.linalg.cholesky(correlation).T * changes_mT.mean(axis=0))


def satterthwaite(total: float, parts: Sequence[tuple[float, int]]) -> float:
    """Degrees of freedom of a variance that is the sum of estimated parts and known ones (Satterthwaite, 1946).

    parts: (variance, degrees of freedom) of those that are estimated.
    """
    spread = sum(variance**2 / max(freedom, 1) for variance, freedom in parts)
    return total**2 / spread if spread else float("inf")


def jackknife(changes: Floats) -> float:
    """Variance of an estimate that changes by these numbers if one of the parts of its data is left out."""
    parts = len(changes)
    return float((parts - 1) / parts * (changes @ changes))


def exact_units(value: Floats) -> Units:
    """A curve that is known exactly. value: (Q, T) of all scored queries."""
    everyone = np.arange(len(value))
    nothing = SampledAnswers(np.zeros((0, value.shape[1])), everyone[:0], np.zeros_like(everyone))
    without = np.zeros((len(value), PARTS, value.shape[1]))
    return Units(value[:, :1], everyone, everyone, len(value), value, without, {}, nothing)


def area_weights(t: Floats) -> Floats:
    """(T,) weights of the trapezoid rule."""
    step = np.diff(t)
    return np.asarray(np.concatenate([step, [0]]) / 2 + np.concatenate([[0], step]) / 2)


def moment_weights(points: int, index: int) -> Floats:
    """(T,) weights that pick one moment."""
    return np.asarray(np.eye(points)[index])


def curve(units: Units) -> list[Limits]:
    """The estimate at each moment; at t = 0 the exact value."""
    points, start = units.value.shape[1], float(units.start[:, 0].mean())
    return [Limits(start, start, start), *(units.mean(moment_weights(points, t)).bounded for t in range(1, points))]


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
    above, whole, quantile = of_area.value - old, of_end.value - old, of_area.quantile()
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
    return units.plus(new, -1.0).mean(moment_weights(points, points - 1)).limits


def fall(units: Units, t: Floats) -> tuple[Limits, float, float]:
    """The largest drop of the estimated curve, and the moments before and after it.

    The limits are simultaneous (Bonferroni): they hold for all drops between pairs of ``_MOMENTS`` moments.
    """
    moments = np.unique(np.linspace(0, len(t) - 1, min(len(t), _MOMENTS)).round().astype(int)).tolist()
    level = 1 - (1 - LEVEL) / comb(len(moments), 2)
    best, low, high = (0.0, 0, 0), 0.0, 0.0
    for start, end in combinations(moments, 2):
        drop = units.mean(moment_weights(len(t), start) - moment_weights(len(t), end))
        half = drop.half_width(level)
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
