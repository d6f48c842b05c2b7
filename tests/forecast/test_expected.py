"""Expected metrics, beside sums over the Poisson and the negative binomial distribution."""

import numpy as np
import pytest
from scipy.stats import nbinom, poisson

from ray_backfill.forecast.counts import CloserCounts
from ray_backfill.forecast.expected import Entries, Expectation, SumMetric, expect

KINDS = np.array([0, 0, 1, 2])
CUTS = np.array([1 << 40, 20, 20, 20])
NONE = np.zeros(1, np.int64)


def discounts(rank: np.ndarray) -> np.ndarray:
    kept = rank <= 20
    return np.stack([1 / rank, kept / rank, kept.astype(float), kept / np.log2(1 + rank)])


def found(entries: Entries, known: list[int], mean: list[float], variance: float, changes: float = 0.0) -> Expectation:
    """known, mean: of each threshold."""
    expected = np.array(mean)[None, :, None]
    counts = CloserCounts(np.arange(len(mean), dtype=np.float32), np.array(known)[None, :, None], expected,
                    np.full(len(mean), variance), np.full((1, 1, len(mean), 1), changes))  # fmt: skip
    return expect(entries, counts, KINDS, CUTS, 1)


def one_answer(known: int, mean: float, variance: float) -> np.ndarray:
    """One right answer with this many known closer items, and a random number more."""
    one, ones = np.ones(1), np.ones((4, 1))
    of = found(Entries(NONE, NONE, NONE[None], one, 0 * one, one, ones, NONE, NONE, one), [known], [mean], variance)
    assert np.allclose(of.own[0, 0, 0], of.value[0, 0])
    return of.value[0, 0]


@pytest.mark.parametrize("mean", [0.0, 0.3, 4.0, 19.0, 30.0, 55.0, 300.0])
@pytest.mark.parametrize("known", [0, 3, 40])
def test_poisson(known: int, mean: float) -> None:
    more = np.arange(2000)
    true = discounts(1.0 + known + more) @ poisson.pmf(more, mean) if mean else discounts(np.array([1.0 + known]))[:, 0]
    assert one_answer(known, mean, 0.0) == pytest.approx(true, abs=2e-4, rel=2e-3)


@pytest.mark.parametrize("variance", [0.03, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("mean", [0.5, 5.0, 30.0, 400.0])
def test_negative_binomial(mean: float, variance: float) -> None:
    more = np.arange(20_000)
    shape = 1 / variance
    true = discounts(1.0 + more) @ nbinom.pmf(more, shape, shape / (shape + mean))
    assert one_answer(0, mean, variance) == pytest.approx(true, abs=2e-4, rel=5e-3)


def test_an_answer_raises_the_metric_by_itself_and_by_preceding_another() -> None:
    places, first = np.array([0, 1]), np.array([0, -1])
    ones, both = np.ones(2), np.ones((4, 2))
    entries = Entries(places, places, np.zeros((1, 2), np.int64), ones, 0 * ones, ones, both, places, first, ones)
    own = found(entries, [2, 4], [0.0, 0.0], 0.0).own[0, 0, 0]
    # It is third; the other one is sixth with it, and fifth without it. Precision of a third answer there is 3 / 7.
    assert own[0] == pytest.approx(1 / 3 + (3 / 7 - 2 / 6))
    assert own[2] == pytest.approx(1)


def test_half_of_the_answers_that_an_entry_stands_for_precede_it() -> None:
    five, both = np.full(1, 5.0), np.ones((4, 1))
    entries = Entries(NONE, NONE, NONE[None], five, np.full(1, 2.0), five, both, NONE, NONE - 1, 0 * five)
    value = found(entries, [7], [0.0], 0.0).value[0, 0]
    # Five answers, tenth on average: precision 3 / 10.
    assert value == pytest.approx([5 * 0.3, 5 * 0.3, 5, 5 / np.log2(11)])


def test_an_answer_pushes_one_other_beyond_the_cut() -> None:
    places, first = np.array([0, 1]), np.array([0, -1])
    shares = np.array([1.0, 10.0])
    entries = Entries(
        places, places, np.zeros((1, 2), np.int64), shares, 0 * shares, shares, np.ones((4, 2)), places, first,
        np.ones(2),
    )  # fmt: skip
    own = found(entries, [0, 18], [0.0, 0.0], 0.0).own[0, 0, 0]
    # Recall: it is found itself; of the ten answers at the cut, 20, one is not.
    assert own[2] == pytest.approx(1 - 1)


def test_a_change_of_counts() -> None:
    one, ones = np.ones(1), np.ones((4, 1))
    entries = Entries(NONE, NONE, NONE[None], one, 0 * one, one, ones, NONE, NONE, one)
    change = found(entries, [0], [10.0], 0.0, 0.1).changes[0, 0, 0]
    # The slope is that of a step of a tenth.
    assert change == pytest.approx(0.1 * (one_answer(0, 11.0, 0.0) - one_answer(0, 10.0, 0.0)), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "of_twenty"),
    [("mAP@100", 20), ("AP@100", 20), ("recall@100", 20), ("P@100", 100), ("mAP@10", 10), ("AP@10", 20)],
)
def test_what_a_sum_over_right_answers_is_divided_by(name: str, of_twenty: int) -> None:
    assert SumMetric.of(name).largest(np.ones(20)) == of_twenty
