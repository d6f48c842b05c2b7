"""Statistics of curves that are small enough to check by hand, and intervals against scipy."""

import numpy as np
import pytest
import scipy.stats

from ray_backfill.engine import statistics as stats
from ray_backfill.engine.replay import Curve


def test_area_gain_and_falls_by_hand() -> None:
    t, values = np.array([0.0, 0.5, 1.0]), np.array([0.2, 0.6, 0.5])
    assert stats.auc(t, values) == pytest.approx(0.2 * 0.25 + 0.6 * 0.5 + 0.5 * 0.25)
    assert stats.auc_mean(values) == pytest.approx(1.3 / 3)
    assert stats.auc(t, np.array([0.2, 0.2, 0.7]), is_step=True) == pytest.approx(0.2)
    assert stats.largest_fall(values) == pytest.approx((0.1, 1, 2))
    assert stats.largest_fall(np.array([0.1, 0.1, 0.3])).size == 0
    # 0.341 to 0.111 in steps of at most 0.1: a drawdown is not a drop between neighbours.
    assert stats.largest_fall(np.array([0.2, 0.341, 0.25, 0.26, 0.16, 0.111, 0.3])) == pytest.approx((0.23, 1, 5))
    assert [stats.settles(values, target) for target in (0.1, 0.5, 0.55)] == [0, 1, None]
    assert stats.gain(0.6, 0.2, 0.5) == pytest.approx(4 / 3)
    assert np.isnan(stats.gain(0.6, 0.5, 0.5))


def test_interval_equals_scipy_up_to_its_randomness() -> None:
    values_QT = np.random.default_rng(0).normal(size=(400, 1)) + 5
    low, high = stats.interval(stats.bootstrap_means(values_QT), 400)
    theirs = scipy.stats.bootstrap((values_QT[:, 0],), np.mean, method="percentile", n_resamples=4000, rng=1)
    assert low[0] == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert high[0] == pytest.approx(theirs.confidence_interval.high, abs=0.01)


def test_paired_difference_of_areas_equals_scipy_up_to_its_randomness() -> None:
    rng = np.random.default_rng(2)
    t = np.linspace(0, 1, 4)
    hard = rng.normal(size=(300, 1))  # the same queries are hard for both: an unpaired interval would be far wider
    wrong, scored = np.zeros((300, 4), bool), np.arange(300)
    a, b = (Curve(t, {"mAP": hard + 0.1 * rng.normal(size=(300, 4)) + x}, wrong, scored, 0) for x in (0.02, 0.0))
    found = a.difference(b, "mAP")
    areas = [np.trapezoid(c.per_query["mAP"], t, axis=1) for c in (a, b)]
    theirs = scipy.stats.bootstrap(
        areas, lambda x, y, axis: (x - y).mean(axis=axis), paired=True, method="percentile", n_resamples=4000, rng=1
    ).confidence_interval
    assert found.value == pytest.approx(areas[0].mean() - areas[1].mean())
    assert found.low == pytest.approx(theirs.low, abs=0.002)
    assert found.high == pytest.approx(theirs.high, abs=0.002)
    assert found.high - found.low < 0.05
    assert a.auc_interval("mAP")[1] - a.auc_interval("mAP")[0] > 0.1


def test_interval_of_the_gain_by_hand() -> None:
    """Old and new differ by the same step for every query, so the gain of a draw is the gain of its mean."""
    t, scored = np.linspace(0, 1, 2), np.arange(50)
    values = np.random.default_rng(3).normal(size=(50, 1)).repeat(2, axis=1)
    old, new, mine = (
        Curve(t, {"mAP": v}, np.zeros((50, 2), bool), scored, 0) for v in (values, values + 2, values * 2)
    )
    low, high = mine.gain_interval("mAP", old, new)
    expected = np.array(mine.auc_interval("mAP")) / 2 / 2
    assert (low, high) == pytest.approx(expected)
    assert np.isnan(mine.gain_interval("mAP", old, old)).all()
    noise = 0.1 * np.random.default_rng(4).normal(size=(50, 2))
    unsure = Curve(t, {"mAP": values + noise}, np.zeros((50, 2), bool), scored, 0)  # not significantly better than old
    assert np.isnan(mine.gain_interval("mAP", old, unsure)).all()


def test_the_limits_of_a_milestone_by_hand() -> None:
    """Three points: surely below, in doubt, surely above; the milestone is the second or the third."""
    rng = np.random.default_rng(0)
    draws = np.array([-1.0, 0.0, 1.0]) + rng.normal(size=(1000, 3)) * 0.1
    assert stats.settle_limits(draws, 1000) == (1, 2)
    assert stats.settle_limits(draws - [0, 0, 1], 1000) == (1, np.inf), "perhaps never"
    assert stats.settle_limits(draws - 3, 1000) == (np.inf, np.inf)
    assert stats.settle_limits(draws + 3, 1000) == (0, 0)
    assert np.isnan(stats.settle_limits(draws * np.nan, 1)).all()


@pytest.mark.parametrize("kind", ["rises", "stays at its target", "dips", "never"])
def test_the_limits_of_a_milestone_keep_their_word(kind: str) -> None:
    """The limits contain the true milestone in 95 % of 200 samples; percentiles of draws do in 50 % of the second."""
    t = np.linspace(0, 1, 41)
    curves = {
        "rises": -0.05 + 0.25 * t,
        "stays at its target": np.full(41, 0.001),
        "dips": np.where(t < 0.6, -0.12 * np.sin(np.pi * t / 0.6), t - 0.6),
        "never": 0.1 - 0.2 * t,
    }
    true = next((i for i in range(41) if (curves[kind][i:] >= 0).all()), np.inf)
    rng, held = np.random.default_rng(1), 0
    for _ in range(200):
        turns, sizes = rng.random((100, 1)), rng.normal(size=(100, 2, 1))
        noise = 0.25 * sizes[:, 0] * (1 - t) + 0.5 * np.sign(sizes[:, 1]) * ((t >= turns) - t)
        low, high = stats.settle_limits(stats.bootstrap_means(curves[kind] + noise), 100)
        held += low <= true <= high
    assert held >= 190


@pytest.mark.parametrize("queries", [10, 30, 200, 5000])
def test_an_interval_of_normal_values_is_as_wide_as_students(queries: int) -> None:
    values = scipy.stats.norm.ppf((np.arange(queries) + 0.5) / queries)
    values /= values.std(ddof=1)
    low, high = stats.interval(stats.bootstrap_means(values[:, None], draws=20_000), queries)
    half = scipy.stats.t.ppf(0.975, queries - 1) / queries**0.5
    assert (low[0], high[0]) == pytest.approx((-half, half), rel=0.05)


def test_the_interval_of_a_gain_is_fiellers_where_the_upgrade_is_clear() -> None:
    rng, n = np.random.default_rng(5), 100_000
    common = rng.normal(0, 0.5, n)
    old, new = common, common + rng.normal(6, 1, n)
    mine = old + 0.4 * (new - old) + rng.normal(0, 0.5, n)
    gained, step = mine - old, new - old
    assert stats.is_upgrade(old, new, n)
    (va, shared), (_, vb) = np.cov(gained, step)
    a = step.mean() ** 2 - 1.96**2 * vb
    b, c = gained.mean() * step.mean() - 1.96**2 * shared, gained.mean() ** 2 - 1.96**2 * va
    root = (b * b - a * c) ** 0.5
    found = stats.interval(stats.gain_draws(mine, old, new), n)
    assert found == pytest.approx(((b - root) / a, (b + root) / a), rel=0.02)


def test_an_upgrade_that_is_not_clear_has_no_gain() -> None:
    rng = np.random.default_rng(5)
    old, new, mine = (rng.normal(mean, 0.3, size=1000) for mean in (0.0, 1.3, 0.6))
    new[0] = old[0]  # the ratio of this draw is infinite
    assert stats.is_upgrade(old, new, 1000)
    assert np.isfinite(stats.gain_limits(mine, old, new, 1000)).all()
    assert not stats.is_upgrade(new, old, 1000)
    better_on_average = old + np.where(np.arange(1000) < 100, -1, 1)
    assert not stats.is_upgrade(old, better_on_average, 1000)
    assert not stats.is_upgrade(old, old, 1000)


def test_a_gain_without_a_limit_has_no_interval() -> None:
    """In 9 of 1,000 draws new equals old, which is just few enough for 10 queries."""
    old, new, mine = np.zeros(1000), np.where(np.arange(1000) < 9, 0.0, 1.0), np.full(1000, -0.5)
    assert stats.is_upgrade(old, new, 10)
    assert np.isnan(stats.gain_limits(mine, old, new, 10)).all()
    assert stats.gain_limits(mine * new, old, new, 10) == (-0.5, -0.5), "a draw in which nothing differs says nothing"


def test_limits_at_once_are_those_of_independent_values() -> None:
    """Of K independent normal values, the largest deviation has the quantile 0.95^(1 / K) of a single one."""
    draws = np.random.default_rng(0).normal(size=(40, 50_000)) * np.arange(1, 41)[:, None]
    assert stats.simultaneous_width(draws[:1], 10_000) == pytest.approx(1.96, abs=0.03)
    expected = scipy.stats.norm.ppf(1 - (1 - 0.95 ** (1 / 40)) / 2)
    assert stats.simultaneous_width(draws, 10_000) == pytest.approx(expected, abs=0.03)
    assert stats.simultaneous_width(np.vstack([draws, np.zeros((3, 50_000))]), 10_000) == pytest.approx(
        expected, abs=0.03
    )


def test_one_query_has_no_interval() -> None:
    assert np.isnan(stats.bootstrap_means(np.ones((1, 3)))).all()
    assert np.isnan(stats.fall_limits(stats.bootstrap_means(np.ones((1, 3))), np.ones(3))).all()


@pytest.mark.parametrize("points", [2, 3, 101, 102, 199, 200, 201, 202, 203, 301, 500, 1000, 1001])
def test_the_limits_see_the_largest_fall_of_any_number_of_moments(points: int) -> None:
    values = np.random.default_rng(points).normal(size=points).cumsum()
    largest = max([0.0, *(before - later for i, before in enumerate(values) for later in values[i + 1 :])])
    # Where no draw differs from the mean the limits are the fall itself.
    assert stats.fall_limits(np.tile(values, (5, 1)), values) == pytest.approx((largest, largest))


def test_no_number_of_moments_loses_a_fall_to_the_last_one_or_from_one_to_the_next() -> None:
    """`offline` under a harmful upgrade falls at the last moment: 614 of the numbers from 202 to 1,001 lost it."""
    rng = np.random.default_rng(9)
    for points in range(2, 1002):
        low_at_the_end = np.append(np.full(points - 1, 0.9), 0.03)
        peak = np.full(points, 0.5)
        peak[rng.integers(points)] = 0.75
        expected = 0.25 if peak[:-1].max() == 0.75 else 0.0
        for values, fall in ((low_at_the_end, 0.87), (peak, expected)):
            draws = values + 1e-3 * rng.normal(size=(20, points))
            low, high = stats.fall_limits(draws, values)
            assert fall - 0.02 < low <= fall <= high < fall + 0.02 or (not fall and low == 0 and high < 0.02), points


@pytest.mark.parametrize("fall", [0.0, 0.2])
def test_the_limits_of_the_largest_fall_keep_their_word(fall: float) -> None:
    """The limits contain the true largest fall in 95 % of 200 samples of 150 queries; and they tell a real fall."""
    true = np.concatenate([np.linspace(0.3, 0.7, 15), np.linspace(0.7 - fall, 0.9, 6)])
    rng = np.random.default_rng(6)
    inside, told = 0, 0
    for _ in range(200):
        level, wiggle = rng.normal(0, 0.3, size=(150, 1)), rng.normal(0, 0.1, size=(150, 21)).cumsum(axis=1)
        values = true + level + wiggle
        low, high = stats.fall_limits(stats.bootstrap_means(values), values.mean(axis=0))
        inside += low <= fall <= high
        told += low > 0
    assert inside >= 186  # 190 expected; fewer than 186 has a probability of 10 % at exactly 95 %
    assert told == (200 if fall else 0)
