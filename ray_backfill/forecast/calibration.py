"""Whether the model of other items predicts how many of them are closer: on the items that were sampled at random.

Of each chosen query, the items closer than its sampled right answers are counted among the randomly sampled items and
compared with their expected number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln

Floats = NDArray[np.float64]
_LEAST_VARIANCE, _MOST_VARIANCE = 0.01, 5.0
# Ratios of observed to expected numbers that may be chance. What is beyond counts as an error of the model.
LEAST_RATIO, MOST_RATIO = 0.8, 1.25


@dataclass(frozen=True, eq=False)
class Checked:
    """Closer items among those sampled at random, at each sampled right answer of all chosen queries.

    observed, expected: (A,). influence: (A,) how much an error of the count changes average precision.
    """

    observed: Floats
    expected: Floats
    influence: Floats


@dataclass(frozen=True)
class Calibration:
    """ratio: observed over expected number of closer items, fitted. variance: of the ratio between queries."""

    ratio: float
    variance: float

    @property
    def beyond(self) -> float:
        """By what share of the expected numbers the ratio is outside of what may be chance."""
        return max(0.0, self.ratio / MOST_RATIO - 1, 1 - self.ratio / LEAST_RATIO)


def check(observed: Floats, expected: Floats, share: float, answers: int) -> Checked:
    """One query. observed, expected: (n,) at its sampled answers, ascending by distance. share: of all items that were
    sampled. answers: number of its right answers.
    """
    number = len(observed)
    of_all = expected / share
    preceding = np.arange(number) * max(answers - 1, 0) / max(number - 1, 1) if number > 1 else np.array([answers / 2])
    return Checked(observed, expected + 1e-6, (1 + preceding) * of_all / (1 + preceding + of_all) ** 2 / number)


def calibrate(checked: list[Checked]) -> Calibration:
    """Fit a negative binomial distribution of the counts by maximum likelihood, weighted by influence."""
    observed, expected, weight = (
        np.concatenate([getattr(each, name) for each in checked]) for name in ("observed", "expected", "influence")
    )
    weight = weight / max(weight.sum(), 1e-12)

    def loss(parameters: Floats) -> float:
        ratio, shape = np.exp(np.clip(parameters[0], -5, 5)), np.exp(-np.clip(parameters[1], -7, 3))
        mean = ratio * expected
        chance = gammaln(observed + shape) - gammaln(shape) + shape * np.log(shape / (shape + mean))
        return -float(weight @ (chance + observed * np.log(mean / (shape + mean))))

    ratio, variance = np.exp(np.clip(minimize(loss, [0.0, -1.0], method="Nelder-Mead").x, -5, 5))
    return Calibration(float(ratio), float(np.clip(variance, _LEAST_VARIANCE, _MOST_VARIANCE)))
