"""What stands for the right answers of a query: its sampled ones, and draws of the distances of the others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.forecast.answers import RightAnswers, logarithms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Unsampled right answers for which distances are drawn, at most; they stand for all.
_MOST = 80
# Draws for each.
_DRAWS = 2


@dataclass(frozen=True, eq=False)
class Drawn:
    """K entries. after: (K,) distances after the backfill. answer: (K,) index of the right answer.

    rank_share: (K,) for how many answers an entry stands where it precedes others. ahead: (K,) number of answers that
    precede it beside those of other entries: half of the others that it stands for. share: (K,) how many times it
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
