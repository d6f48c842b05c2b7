"""Distances of right answers that are not sampled, drawn from a model of those that are.

log d = a + b log s + u + e: s is the distance of the item's stand-in, u what the answers of a query have in common
(normal), e the rest (empirical). The model is fitted by expectation maximisation (Laird and Ware, 1982).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Distances below this share of a unit count as this: their logarithms would outweigh all others.
_LEAST = 1e-3
_ROUNDS = 40


def logarithms(distances: NDArray[np.floating], unit: float = 1.0) -> Floats:
    """Logarithms of distances, bounded below. unit: a usual distance."""
    return np.asarray(np.log(np.maximum(distances.astype(np.float64), _LEAST * unit)))


@dataclass(frozen=True, eq=False)
class RightAnswers:
    """The fitted model. common, rest: variances of u and e. residuals: what e is drawn from. unit: a usual distance."""

    constant: float
    slope: float
    common: float
    rest: float
    residuals: Floats
    unit: float = 1.0

    def draw(self, stand_in: Floats, known: Floats, rng: np.random.Generator) -> Floats:
        """Draw the distances of right answers of a query.

        stand_in: (k,) logarithms of their stand-ins' distances. known: what its sampled answers have beyond the
        prediction from theirs, ``excess``.
        """
        u = self._common_part(len(known), float(known.sum()), rng)
        return self._at(stand_in, u, rng)

    def draw_without_itself(self, stand_in: Floats, known: Floats, rng: np.random.Generator) -> Floats:
        """Draw the distance of each sampled answer as if it was not sampled. stand_in, known: (k,) of these answers."""
        number = len(known)
        u = np.array([self._common_part(number - 1, float(known.sum() - one), rng) for one in known])
        return self._at(stand_in, u, rng)

    def excess(self, stand_in: Floats, distance: Floats) -> Floats:
        """What the logarithms of some distances have beyond the prediction from the stand-ins'."""
        return np.asarray(distance - self.constant - self.slope * stand_in)

    def _common_part(self, number: int, total: float, rng: np.random.Generator) -> float:
        variance = self.common * self.rest / (self.rest + number * self.common)
        return float(total * variance / self.rest + np.sqrt(variance) * rng.standard_normal())

    def _at(self, stand_in: Floats, u: Floats | float, rng: np.random.Generator) -> Floats:
        rest = self.residuals[rng.integers(0, len(self.residuals), len(stand_in))]
        return np.asarray(np.exp(self.constant + self.slope * stand_in + u + rest))


def fit_answers(pairs: Sequence[tuple[Floats, Floats]], unit: float = 1.0) -> RightAnswers:
    """Fit the model. pairs: of each chosen query the logarithms of its sampled answers' distances: stand-in, true."""
    number = np.array([len(x) for x, _ in pairs])
    of = np.repeat(np.arange(len(pairs)), number)
    x, y = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    design = np.stack([np.ones_like(x), x], axis=1)
    common = rest = 0.5 * float(y.var()) + 1e-9
    u = np.zeros(len(pairs))
    for _ in range(_ROUNDS):
        (constant, slope), *_others = np.linalg.lstsq(design, y - u[of], rcond=None)
        off = y - constant - slope * x
        variance = 1 / (1 / common + number / rest)
        u = variance * np.bincount(of, off, len(pairs)) / rest
        left = off - u[of]
        common = float((u * u + variance).mean()) + 1e-12
        rest = float((left @ left + (number * variance).sum()) / len(y)) + 1e-12
    spread = float(left.std())
    residuals = left * (np.sqrt(rest) / spread) if spread else left
    return RightAnswers(float(constant), float(slope), common, rest, np.sort(residuals), unit)
