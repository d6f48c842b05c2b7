"""Expected metrics, beside sums over the Poisson and the negative binomial distribution."""

import numpy as np
import pytest
from scipy.stats import nbinom, poisson

from ray_backfill.forecast.expected import Entries, expect, mean_factors

KINDS = np.array([0, 0, 1, 2])
CUTS = np.array([1 << 40, 20, 20, 20])
NONE = np.zeros(1, np.int64)


def discounts(rank: np.ndarray) -> np.ndarray:
    kept = rank <= 20
    return np.stack([1 / rank, kept / rank, kept.astype(float), kept / np.log2(1 + rank)])


def one_answer(known: int, mean: float, factors: np.ndarray) -> np.ndarray:
    """One right answer with this many known closer items, and a random number more."""
    one = np.ones(1)
    entries = Entries(NONE, NONE, NONE[None], one, np.ones((4, 1)), NONE, NONE, one)
    value, own = expect(entries, np.array([[[known]]]), np.array([[[mean]]]), KINDS, CUTS, factors, 1)
    assert np.allclose(own[0, 0, 0], value[0, 0])
    return value[0, 0]


@pytest.mark.parametrize("mean", [0.0, 0.3, 4.0, 19.0, 30.0, 55.0, 300.0])
@pytest.mark.parametrize("known", [0, 3, 40])
def test_poisson(known: int, mean: float) -> None:
    more = np.arange(2000)
    true = discounts(1.0 + known + more) @ poisson.pmf(more, mean) if mean else discounts(np.array([1.0 + known]))[:, 0]
    assert one_answer(known, mean, np.ones(1)) == pytest.approx(true, abs=0.002)


@pytest.mark.parametrize("variance", [0.03, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("mean", [0.5, 5.0, 30.0])
def test_varying_mean(mean: float, variance: float) -> None:
    factors = mean_factors(variance)
    assert factors.mean() == pytest.approx(1)
    more = np.arange(5000)
    shape = 1 / variance
    true = discounts(1.0 + more) @ nbinom.pmf(more, shape, shape / (shape + mean))
    assert one_answer(0, mean, factors) == pytest.approx(true, abs=0.015)
