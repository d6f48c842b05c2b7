"""The interval of an estimate, part by part, beside formulas by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from ray_backfill.forecast.estimate import (
    SampledAnswers,
    Units,
    area_weights,
    fall,
    gain,
    items_to_halve,
    jackknife,
    moment_weights,
    structural_errors,
)
from ray_backfill.forecast.models import PARTS

ONE = np.ones(1)


def sampled_of(*each: tuple[np.ndarray, int]) -> SampledAnswers:
    """Of each query the contributions of its sampled answers, and the number of its answers."""
    query = np.repeat(np.arange(len(each)), [len(contribution) for contribution, _ in each])
    return SampledAnswers(np.concatenate([given for given, _ in each]), query, np.array([number for _, number in each]))


def nothing(points: int) -> SampledAnswers:
    """Ten queries without sampled answers."""
    return sampled_of(*[(np.zeros((0, points)), 0)] * 10)


def units(
    value: np.ndarray, shift: dict[str, float], queries: int = 40, part: float = 0.0,
    sampled: tuple[np.ndarray, int] = (np.zeros((0, 1)), 0),
) -> Units:  # fmt: skip
    """Queries 0, 1, ... of ``queries`` are chosen; each is its own group, and all start at 0.

    part: change if the first part of the items is left out.
    """
    m = len(value)
    shifts = {name: np.full((1, 1), size) for name, size in shift.items()}
    without = np.zeros((m, PARTS, 1))
    without[:, 0] = part
    start, chosen = np.zeros((queries, 1)), np.arange(m)
    return Units(start, chosen, chosen, queries, value[:, None], without, shifts, sampled_of(*[sampled] * m))


VALUE = np.random.default_rng(0).random(10)


def test_variance_of_choosing_queries() -> None:
    found = units(VALUE, {}).mean(ONE)
    # Simple random sampling without replacement; residuals are divided by 1 - 1/10, their leverage.
    assert found.of_queries == pytest.approx(VALUE.var(ddof=1) / 0.9**2 / 10 * (1 - 10 / 40))
    assert found.value == pytest.approx(VALUE.mean())


def test_all_queries_leave_no_error_of_choosing() -> None:
    assert units(VALUE, {}, queries=10).mean(ONE).of_queries == 0


def test_variance_of_choosing_answers() -> None:
    contribution = np.array([[0.2], [0.4], [0.9]])
    found = units(VALUE, {}, queries=10, sampled=(contribution, 12)).mean(ONE)
    expected = (1 - 3 / 12) * contribution.var(ddof=1) / 3 / 10 * 12**2
    assert found.of_answers == pytest.approx(expected)
    # Of two stages: the spread between chosen queries has the share of those that are not chosen in it already.
    found = units(VALUE, {}, queries=40, sampled=(contribution, 12)).mean(ONE)
    assert found.of_answers == pytest.approx(10 / 40 * expected)


def test_a_query_with_one_sampled_answer_has_the_spread_of_the_others() -> None:
    contribution = np.array([[0.2], [0.4], [0.9]])
    three, one = (contribution, 12), (contribution[:1], 6)
    given = replace(units(VALUE[:2], {}, queries=2), sampled=sampled_of(three, one))
    spread = contribution.var(ddof=1) * 12**2
    expected = (1 - 3 / 12) * spread / 3 + (1 - 1 / 6) * spread
    assert given.mean(ONE).of_answers == pytest.approx(expected / 2**2)


def test_a_query_of_which_no_answer_could_be_embedded_has_the_spread_of_the_others() -> None:
    contribution = np.array([[0.2], [0.4], [0.9]])
    given = replace(units(VALUE[:2], {}, queries=2), sampled=sampled_of((contribution, 12), (np.zeros((0, 1)), 6)))
    spread = contribution.var(ddof=1) * 12**2
    assert given.mean(ONE).of_answers == pytest.approx(((1 - 3 / 12) * spread / 3 + spread) / 2**2)


def test_degrees_of_freedom() -> None:
    # Choosing 10 queries leaves 10 - 1 - 1; the jackknife's 7 count where it is what errs.
    assert units(VALUE, {}).mean(ONE).freedom == pytest.approx(8)
    assert units(VALUE, {}, queries=10, part=0.1).mean(ONE).freedom == pytest.approx(PARTS - 1)
    assert units(VALUE, {"new": 0.1}, queries=10).mean(ONE).quantile() == pytest.approx(1.96, abs=1e-3)


def test_errors_of_one_system_cancel_and_those_of_two_add() -> None:
    one, same, other = units(VALUE, {"new": 0.03}), units(VALUE, {"new": 0.02}), units(VALUE, {"rm": 0.02})
    assert one.mean(ONE).of_model == pytest.approx(0.03**2)
    assert one.plus(same, -1.0).mean(ONE).of_model == pytest.approx(0.01**2)
    assert one.plus(other, -1.0).mean(ONE).of_model == pytest.approx(0.03**2 + 0.02**2)
    assert one.mean(ONE).half_width() > units(VALUE, {}).mean(ONE).half_width()


def test_the_jackknife() -> None:
    rng = np.random.default_rng(1)
    parts = rng.standard_normal((PARTS, 50))
    without = np.array([np.delete(parts, i, axis=0).mean() - parts.mean() for i in range(PARTS)])
    # Of a mean over equal parts, it is the variance of the mean of their means.
    assert jackknife(without) == pytest.approx(parts.mean(axis=1).var(ddof=1) / PARTS)
    one, other = units(VALUE, {}, part=0.03), units(VALUE, {}, part=0.01)
    assert one.mean(ONE).of_model == pytest.approx((PARTS - 1) / PARTS * 0.03**2)
    assert one.plus(other, -1.0).mean(ONE).of_model == pytest.approx((PARTS - 1) / PARTS * 0.02**2)


def test_weights_of_areas_and_moments() -> None:
    t, values = np.array([0.0, 0.5, 1.0]), np.array([1.0, 3.0, 4.0])
    assert values @ area_weights(t) == pytest.approx(np.trapezoid(values, t))
    assert values @ moment_weights(3, 1) == 3


def test_errors_of_area_and_end_that_cancel_leave_the_gain_exact() -> None:
    # The curve is a straight line, and its error is a straight line: the area is half of the end, whatever the error.
    value, everyone = np.tile([0.2, 0.6], (10, 1)), np.arange(10)
    shift = {"new": np.array([[0.0, 0.05]])}
    curves = Units(value[:, :1], everyone, everyone, 10, value, np.zeros((10, PARTS, 2)), shift, nothing(2))
    found = gain(curves, curves, np.array([0.0, 1.0]))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_structural_errors_of_distant_moments_do_not_cancel() -> None:
    """With changes of 0, 1 and 2 they have these standard deviations, and correlate by exp(-distance)."""
    errors = structural_errors(np.tile([0.0, 1.0, 2.0], (10, 1)))
    covariance = errors.T @ errors
    assert np.sqrt(np.diag(covariance)) == pytest.approx([0, 1, 2])
    assert covariance[1, 2] / 2 == pytest.approx(np.exp(-0.5))


def test_gain_without_an_error_and_without_an_upgrade() -> None:
    t, everyone = np.array([0.0, 1.0]), np.arange(10)
    start = np.zeros((10, 1))

    def exact(end: float) -> Units:
        value = np.stack([np.zeros(10), np.full(10, end)], axis=1)
        return Units(start, everyone, everyone, 10, value, np.zeros((10, PARTS, 2)), {}, nothing(2))

    found = gain(exact(0.4), exact(0.5), t)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))
    assert np.isnan(gain(exact(0.4), exact(-0.1), t).value)


def test_items_that_halve_an_interval() -> None:
    # Only choosing queries errs, 10 of very many groups: four times the sample.
    found = units(VALUE, {}, queries=1_000_000).mean(ONE)
    assert items_to_halve(found, 1_000_000, 100, 10**9) == pytest.approx(300, abs=5)
    # All queries are chosen; only the model errs, by the sample on which it is fitted.
    found = units(VALUE, {}, queries=10, part=0.1).mean(ONE)
    assert items_to_halve(found, 10, 100, 10**9) == pytest.approx(300, abs=5)
    # In a gallery of 1,000, 733 of 900 items remain unknown after 167 more: (733 / 900)^2 / 2.67 = 1 / 4.
    assert items_to_halve(found, 10, 100, 1000) == pytest.approx(167, abs=2)
    assert np.isnan(items_to_halve(found, 10, 150, 400)), "more than half of the gallery"
    # A structural error stays.
    assert np.isnan(items_to_halve(units(VALUE, {"new": 5.0}).mean(ONE), 40, 100, 10**9))


def test_the_largest_fall_has_simultaneous_limits() -> None:
    # Three moments; the second one is lower than the first by 0.2 on average, and all queries are chosen.
    value = np.stack([np.full(10, 0.5), np.full(10, 0.3), np.full(10, 0.6)], axis=1)
    shift = {"new": np.array([[0.0, 0.05, 0.1]])}
    everyone = np.arange(10)
    curves = Units(value[:, :1], everyone, everyone, 10, value, np.zeros((10, PARTS, 3)), shift, nothing(3))
    found, start, end = fall(curves, np.array([0.0, 0.5, 1.0]))
    assert (start, end) == (0.0, 0.5)
    assert found.value == pytest.approx(0.2)
    half = norm.ppf(1 - 0.05 / 3 / 2) * 0.05  # three pairs
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half))
    rising = replace(curves, value=value[:, ::-1] * 0 + np.array([0.1, 0.2, 0.9]))
    assert fall(rising, np.array([0.0, 0.5, 1.0]))[0].low == 0
