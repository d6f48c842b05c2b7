"""Distances of right answers that are not sampled, drawn from a model of those that are; entries that stand for all.

log d = a + b log s + u + e: s is the distance of the item's stand-in, u what the answers of a query have in common
(normal), e the rest (empirical). The model is fitted by expectation maximisation (Laird and Ware, 1982).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Distances below this share of a unit count as this: their logarithms would outweigh all others.
_LEAST = 1e-3
_ROUNDS = 40
# Unsampled right answers of a query for which distances are drawn, at most; they stand for all. Draws for each.
_MOST, _DRAWS = 80, 2


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


@dataclass(frozen=True, eq=False)
class Drawn:
    """K entries. after: (K,) distances after the backfill. answer: (K,) index of the right answer.

    rank_share: (K,) for how many answers an entry stands where it precedes others. ahead: (K,) number of answers that
    precede it, without those of other entries: half of the others that it stands for. share: (K,) how many times it
    counts in a metric: a sampled answer stands for others, and what is drawn for it is subtracted, so that the models'
    errors cancel on average. sampled: (K,) index among the randomly sampled answers, or -1; sign: (K,) of its
    contribution. pool: number of answers from which these were sampled. random: (n,) their indices.
    """

    after: NDArray[np.float32]
    answer: Ints
    rank_share: Floats
    ahead: Floats
    share: Floats
    sampled: Ints
    sign: Floats
    pool: int
    random: Ints


def draw_entries(
    model: RightAnswers, stand_in: Floats, true: Floats, at_random: NDArray[np.bool_], rng: np.random.Generator
) -> Drawn:
    """Draw for the right answers of a query.

    stand_in: (P,) distances of their stand-ins. true: (P,) after the backfill, NaN if not sampled. at_random: (P,)
    whether an answer was sampled at random.
    """
    is_known = ~np.isnan(true)
    known, hidden = np.flatnonzero(is_known), np.flatnonzero(~is_known)
    random = np.flatnonzero(is_known & at_random)
    number, near = len(random), logarithms(stand_in, model.unit)
    index = np.full(len(true), -1)
    index[random] = np.arange(number)
    stands_for = 1 + len(hidden) / number if number else 1.0
    parts = [(true[known], known, 1.0, 0.0, np.where(index[known] >= 0, stands_for, 1.0), index[known], 1.0)]
    excess = model.excess(near[random], logarithms(true[random], model.unit))
    some = hidden if len(hidden) <= _MOST else np.sort(rng.choice(hidden, _MOST, replace=False))
    for _ in range(_DRAWS if len(some) else 0):
        each = len(hidden) / len(some) / _DRAWS
        nobody = np.full(len(some), -1)
        ahead = (len(hidden) / len(some) - 1) / 2
        parts.append((model.draw(near[some], excess, rng), some, each, ahead, np.full(len(some), each), nobody, 0.0))
        if number:
            again = model.draw_without_itself(near[random], excess, rng)
            less = np.full(number, -len(hidden) / number / _DRAWS)
            parts.append((again, random, 0.0, 0.0, less, index[random], -1 / _DRAWS))
    return _joined(parts, number + len(hidden), random)


def _joined(parts: list[tuple[Floats, Ints, float, float, Floats, Ints, float]], pool: int, random: Ints) -> Drawn:
    sizes = [len(part[0]) for part in parts]
    after, answer, share, sampled = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 4, 5))
    rank_share, ahead, sign = (np.repeat([part[i] for part in parts], sizes).astype(np.float64) for i in (2, 3, 6))
    return Drawn(after.astype(np.float32), answer, rank_share, ahead, share, sampled, sign, pool, random)
