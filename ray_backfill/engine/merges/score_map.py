"""Maps from distances to scores that never swap two items of one system, not even by rounding.

A score is computed in float64 by operations that stay monotone after rounding, and is capped at the score of the next
knot. Therefore computed scores never decrease with the distance, and bisection over the float32 numbers inverts the map
exactly. Shapes: K knots; segment j of K + 1 ends at knot j.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel

_LARGEST = np.finfo(np.float32).max


class _Segments(NamedTuple):
    """The segments of a map: score(d) = min(y + (d - x) * slope, cap) in the segment of d.

    ordinals: (K + 2,) the first float32 number of each segment, and the last float32 number, as consecutive integers.
    """

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
        _find_scores(distances, self.distances, *self._segments[:4], out)
        return out

    def first_not_before(
        self, distances: NDArray[np.float32], scores: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """For each (distance, score) of another system, return the smallest distance here that does not rank before it.

        Ranking is by score, then distance. If there is no such distance, the result is the largest float32 number.
        Also returns whether the two tie. Cost: about 30 comparisons per distance.
        """
        out, ties = np.empty(len(distances), np.float32), np.empty(len(distances), np.bool_)
        _find_first_not_before(distances, scores, self.distances, *self._segments, out, ties)
        return out, ties

    @cached_property
    def _segments(self) -> _Segments:
        x, y = self.distances, self.scores
        with np.errstate(over="ignore"):
            inner = np.diff(y) / np.diff(x) if len(x) > 1 else np.zeros(1)
        slope = np.concatenate([inner[:1], inner if len(x) > 1 else [], inner[-1:]])
        ordinals = np.concatenate([[_ordinal(-_LARGEST)], _first_ordinals(x), [_ordinal(_LARGEST)]]).astype(np.int64)
        return _Segments(np.append(x[0], x), np.append(y[0], y), slope, np.append(y, np.inf), ordinals)


def identity() -> ScoreMap:
    """Return the map whose scores are the distances, without rounding below 2^29."""
    return ScoreMap(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


def _ordinal(value: Any) -> NDArray[np.int64]:
    """Convert float32 numbers to consecutive integers: 0.0 and -0.0 to 0, the next larger number to 1."""
    bits = np.asarray(value, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits + (1 << 31)))


def _first_ordinals(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the ordinal of the smallest float32 number that is at least x, or of the largest if there is none."""
    rounded = np.clip(x, -_LARGEST, _LARGEST).astype(np.float32)
    return np.minimum(_ordinal(rounded) + (rounded < x), _ordinal(_LARGEST))


@kernel
def _find_scores(distances: Array, knots: Array, x: Array, y: Array, slope: Array, cap: Array, out: Array) -> None:
    for i in range(len(distances)):
        out[i] = _score(distances[i], knots, x, y, slope, cap)


@kernel
def _score(distance: float, knots: Array, x: Array, y: Array, slope: Array, cap: Array) -> float:
    d = np.float64(distance)
    j = np.searchsorted(knots, d, side="right")
    return min(y[j] + (d - x[j]) * slope[j], cap[j])


@kernel
def _find_first_not_before(
    distances: Array, scores: Array, knots: Array, x: Array, y: Array, slope: Array, cap: Array, ordinals: Array,
    out: Array, ties: Array,
) -> None:  # fmt: skip
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
        ties[i] = out[i] == distances[i] and _score(out[i], knots, x, y, slope, cap) == score


@kernel
def _number(ordinal: int) -> Any:
    bits = ordinal if ordinal >= 0 else -ordinal - 0x80000000
    return np.int32(bits).view(np.float32)
