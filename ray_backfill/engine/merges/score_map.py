"""Maps from distances to scores that never swap two items of one system, not even by rounding.

A score is computed in float64 by operations that stay monotone after rounding, and is capped at the score of the next
knot. Therefore computed scores never decrease with the distance, and bisection over the float32 numbers inverts the map
exactly. Maps are fitted on pairs of train items.

Shapes: K knots; segment j of K + 1 ends at knot j; P sampled pairs i != j of train items.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, count_up_to, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import IntArray, UpgradePair

_LARGEST = np.finfo(np.float32).max


class _Segments(NamedTuple):
    """The segments of a map: score(d) = min(y + (d - x) * slope, cap) in the segment of d.

    knots: (K,) the distances at which segments end. ordinals: (K + 2,) the first float32 number of each segment, and
    the last float32 number, as consecutive integers.
    """

    knots: NDArray[np.float64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    slope: NDArray[np.float64]
    cap: NDArray[np.float64]
    ordinals: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """A piecewise linear map from distances to scores; a low score means close.

    Beyond its ends, the map continues with the slope of the end segment; with one knot it is constant.

    Raises:
        InputError: The knots do not ascend, the scores decrease, or a number is not finite.
    """

    distances: NDArray[np.float64]
    """(K,) distances of the knots, strictly ascending."""
    scores: NDArray[np.float64]
    """(K,) scores of the knots, never decreasing."""

    def __post_init__(self) -> None:
        x, y = self.distances, self.scores
        if x.ndim != 1 or x.shape != y.shape or not len(x):
            raise InputError(
                f"a score map needs as many scores as distances, at least one; got shapes {x.shape} and {y.shape}"
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError("a score map needs finite distances and scores")
        if (np.diff(x) <= 0).any() or (np.diff(y) < 0).any():
            raise InputError("a score map needs strictly ascending distances and scores that never decrease")
        # The map continues beyond its ends, to any distance that float32 can hold.
        with np.errstate(over="ignore"):
            farthest = self._segments.slope * 2.0**129
        if not np.isfinite(farthest).all():
            raise InputError("a score map is too steep for float64; move its knots apart or scale its scores down")

    def __call__(self, distances: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the (n,) float64 scores of (n,) float32 distances."""
        out = np.empty(len(distances))
        _find_scores(distances, self._segments, out)
        return out

    def first_not_before(
        self, distances: NDArray[np.float32], scores: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """For each (distance, score) of another system, return the smallest distance here that does not rank before it.

        Ranking is by score, then distance. If there is no such distance, the result is the largest float32 number.
        Also returns whether the two tie. Cost: about 30 comparisons per distance.
        """
        out, ties = np.empty(len(distances), np.float32), np.empty(len(distances), np.bool_)
        _find_first_not_before(distances, scores, self._segments, out, ties)
        return out, ties

    @cached_property
    def _segments(self) -> _Segments:
        x, y = self.distances, self.scores
        with np.errstate(over="ignore"):
            inner = np.diff(y) / np.diff(x) if len(x) > 1 else np.zeros(1)
        slope = np.concatenate([inner[:1], inner if len(x) > 1 else [], inner[-1:]])
        # Of the smallest float32 number that is at least the knot, or of the largest if there is none.
        rounded = np.clip(x, -_LARGEST, _LARGEST).astype(np.float32)
        at_knots = np.minimum(_ordinal(rounded) + (rounded < x), _ordinal(_LARGEST))
        ordinals = np.concatenate([[_ordinal(-_LARGEST)], at_knots, [_ordinal(_LARGEST)]]).astype(np.int64)
        return _Segments(x, np.append(x[0], x), np.append(y[0], y), slope, np.append(y, np.inf), ordinals)


def identity() -> ScoreMap:
    """Return the map whose scores are the distances, without rounding below 2^29."""
    return ScoreMap(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


def _ordinal(value: Any) -> NDArray[np.int64]:
    """Convert float32 numbers to consecutive integers: 0.0 and -0.0 to 0, the next larger number to 1."""
    bits = np.asarray(value, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits + (1 << 31)))


@kernel
def _find_scores(distances: Array, segments: _Segments, out: Array) -> None:
    for i in range(len(distances)):
        out[i] = _score(distances[i], segments)


@kernel
def _score(distance: float, segments: _Segments) -> float:
    d = np.float64(distance)
    j = count_up_to(segments.knots, d)
    return min(segments.y[j] + (d - segments.x[j]) * segments.slope[j], segments.cap[j])


@kernel
def _find_first_not_before(distances: Array, scores: Array, segments: _Segments, out: Array, ties: Array) -> None:
    knots, x, y, slope, cap, ordinals = segments
    for i in range(len(distances)):
        d, score = np.float64(distances[i]), scores[i]
        # Find the first knot that does not rank before: the result is in the segment that ends there, or is its end.
        j, last_knot = 0, len(knots)
        while j < last_knot:
            middle = (j + last_knot) // 2
            if y[middle + 1] < score or (y[middle + 1] == score and knots[middle] < d):
                j = middle + 1
            else:
                last_knot = middle
        first, last = ordinals[j], ordinals[j + 1]
        while first < last:
            half = (first + last) >> 1
            e = np.float64(_number(half))
            at_half = min(y[j] + (e - x[j]) * slope[j], cap[j])
            if at_half < score or (at_half == score and e < d):
                first = half + 1
            else:
                last = half
        out[i] = _number(first)
        ties[i] = out[i] == distances[i] and _score(out[i], segments) == score


@kernel
def _number(ordinal: int) -> Any:
    bits = ordinal if ordinal >= 0 else -ordinal - 0x80000000
    return np.int32(bits).view(np.float32)


# Most pairs in a sample: enough to resolve the closest millionth, in about a second.
MOST_PAIRS = 1 << 20
# Most items that are drawn from one class, so that large classes do not dominate.
_MOST_OF_A_CLASS = 40
# Quantiles that become knots: this many evenly spaced ones, and this many per factor of ten towards the closest pair.
_EVEN_QUANTILES = 128
_QUANTILES_A_DECADE = 64
# Inverse strength of the regularisation: negligible, but slopes stay finite if the distance separates all matches.
_WEAK = 1e6

Maps = tuple[ScoreMap, ScoreMap]
# (P,) distances of pairs in the backward and in the forward system.
_BothDistances = tuple[NDArray[np.float64], NDArray[np.float64]]


def fit_quantile(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map each backward distance to the forward distance of the same quantile; keep forward distances.

    Knots are dense at small distances, which decide the top of the ranking.
    """
    backward, forward = _sample(train, distance, seed)
    q = quantiles(len(backward))
    x, of_x = np.unique(quantiles_of(backward, q), return_inverse=True)
    # A backward distance that many pairs share maps to the mean of their forward distances.
    y = np.bincount(of_x, quantiles_of(forward, q)) / np.bincount(of_x)
    return ScoreMap(x, np.maximum.accumulate(y)), identity()


def fit_zscore(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Subtract the mean of train pairs' distances and divide by their standard deviation, in each system."""

    def fit(distances: NDArray[np.float64]) -> ScoreMap:
        centre, spread = distances.mean(), distances.std() or 1.0
        return ScoreMap(np.array([centre, centre + spread]), np.array([0.0, 1.0]))

    backward, forward = _sample(train, distance, seed)
    return fit(backward), fit(forward)


def _sample(train: UpgradePair, distance: str, seed: int) -> _BothDistances:
    """Of random pairs of train items."""
    n = train.n_gallery
    if n * (n - 1) <= MOST_PAIRS:
        return _all_distances(train, distance, np.arange(n))
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, n, MOST_PAIRS), rng.integers(0, n - 1, MOST_PAIRS)
    j += j >= i
    by_row = np.argsort(i, kind="stable")  # so that memory is read in order
    backward, forward = (
        ProductForm.of(system, distance).exact(i[by_row], j[by_row]).astype(np.float64)
        for system in (train.backward, train.forward)
    )
    return backward, forward


def fit_isotonic(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map distances to -P(match | distance), by isotonic regression; constant beyond the sampled distances."""
    from scipy.optimize import isotonic_regression

    assert label is not None

    def fit(distances: NDArray[np.float64], is_match: NDArray[np.bool_]) -> ScoreMap:
        order = np.argsort(distances)
        ascending = distances[order]
        starts = np.flatnonzero(np.diff(ascending, prepend=-np.inf))
        x, pairs = ascending[starts], np.diff(starts, append=len(ascending))  # how often each distance occurs
        share = np.add.reduceat(is_match[order], starts, dtype=np.float64) / pairs
        y = -isotonic_regression(share, weights=pairs, increasing=False).x
        # Knots where a stretch of equal scores begins or ends.
        changes = np.concatenate([[True], np.diff(y) > 0, [True]])
        x, y = (of[changes[1:] | changes[:-1]] for of in (x, y))
        # An extra knot at each end, because a map continues with the slope of its end segments.
        x = np.concatenate([[x[0] - 1], x, [x[-1] + 1]])
        return ScoreMap(x, np.maximum.accumulate(np.concatenate([y[:1], y, y[-1:]])))

    (backward, forward), is_match = _labelled_sample(train, label, distance, seed)
    return fit(backward, is_match), fit(forward, is_match)


def fit_logistic(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map distances to -logit P(match | distance), linear in the distance, by logistic regression.

    If matches are not closer than other pairs, all distances get the same uninformative score, minus the logit of the
    share of matches; raw distances then decide.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    assert label is not None

    def fit(distances: NDArray[np.float64], is_match: NDArray[np.bool_]) -> ScoreMap:
        centre, spread = distances.mean(), distances.std()
        share = is_match.mean()
        uninformative = ScoreMap(np.array([centre]), np.array([np.log((1 - share) / share)]))
        if spread == 0:
            return uninformative
        x = np.stack([(distances - centre) / spread, np.ones(len(distances))])
        penalty = np.array([1 / _WEAK, 0.0]) / len(distances)  # of the slope alone

        def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            """The mean of -log P(match or not), and its gradient."""
            logit = weights @ x
            value = np.logaddexp(0, logit).mean() - (logit * is_match).mean() + penalty @ weights**2 / 2
            return float(value), x @ (expit(logit) - is_match) / len(distances) + penalty * weights

        def curvature(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            chance = expit(weights @ x)
            return (x * chance * (1 - chance)) @ x.T / len(distances) + np.diag(penalty)

        start = np.array([0.0, np.log(share / (1 - share))])
        slope, at_centre = -minimize(loss, start, jac=True, hess=curvature, method="trust-exact", tol=1e-10).x
        if slope <= 0:
            return uninformative
        return ScoreMap(np.array([centre, centre + spread]), np.array([at_centre, at_centre + slope]))

    (backward, forward), is_match = _labelled_sample(train, label, distance, seed)
    return fit(backward, is_match), fit(forward, is_match)


def quantiles(n_pairs: int) -> NDArray[np.float64]:
    """Return (K,) quantiles, ascending from 0 to 1; small ones are equally many for each factor of ten."""
    decades = np.log10(max(n_pairs, 10))
    dense = np.geomspace(1 / max(n_pairs, 10), 1, int(np.ceil(decades * _QUANTILES_A_DECADE)))
    return np.unique(np.concatenate([[0.0], dense, np.linspace(0, 1, _EVEN_QUANTILES + 1)]))


def quantiles_of(values: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """``np.quantile`` of many quantiles, with the same bits: after sorting, which takes a tenth of its time."""
    ascending, at = np.sort(values), q * (len(values) - 1)
    before = np.floor(at).astype(np.int64)
    low, high, share = ascending[before], ascending[np.minimum(before + 1, len(values) - 1)], at - before
    return np.where(share < 0.5, low + (high - low) * share, high - (high - low) * (1 - share))


def _labelled_sample(
    train: UpgradePair, label: IntArray, distance: str, seed: int
) -> tuple[_BothDistances, NDArray[np.bool_]]:
    """Of all pairs of items of some randomly drawn classes, so that there are matches; and which pairs are matches.

    Matches are more frequent than among all pairs, but equally so for both systems, so that scores stay comparable.

    Raises:
        InputError: No two items have the same class, or all items have the same class.
    """
    rows = _draw_classes(label, seed)
    is_match = _all_pairs(label[rows, None] == label[rows])
    if not is_match.any():
        raise InputError(
            "no two train items have the same label, so there is no match to learn from; use the merge 'quantile'"
        )
    if is_match.all():
        raise InputError(
            "all train items have the same label, so there are only matches to learn from; use the merge 'quantile'"
        )
    return _all_distances(train, distance, rows), is_match


def _draw_classes(label: IntArray, seed: int) -> IntArray:
    """Return the rows of as many randomly drawn classes as MOST_PAIRS allows; only some rows of large classes."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(label))
    _, class_of_row = np.unique(label, return_inverse=True)
    place_of_class = rng.permutation(class_of_row.max() + 1)
    rows = shuffled[np.argsort(place_of_class[class_of_row[shuffled]], kind="stable")]
    # Number of rows of the same class before each row.
    starts = np.flatnonzero(np.diff(class_of_row[rows], prepend=-1))
    within = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    return np.sort(rows[within < _MOST_OF_A_CLASS][: int(np.sqrt(MOST_PAIRS))])


def _all_distances(train: UpgradePair, distance: str, rows: IntArray) -> _BothDistances:
    """Of all pairs of some rows."""
    backward, forward = (
        _all_pairs(ProductForm.of(system, distance).exact_grid(rows, rows)).astype(np.float64)
        for system in (train.backward, train.forward)
    )
    return backward, forward


def _all_pairs(grid_RR: NDArray[Any]) -> NDArray[Any]:
    """Of all pairs in both directions, because the two sides of a system may come from different models."""
    return grid_RR[~np.eye(len(grid_RR), dtype=np.bool_)]
