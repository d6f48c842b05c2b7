"""The model of other items, beside counting by brute force."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from ray_backfill.forecast.counts import count
from ray_backfill.forecast.models import CELLS, EXACT, PARTS, Calibration, fit_others


def test_probabilities_and_what_changes_without_a_part() -> None:
    rng = np.random.default_rng(0)
    n = 40_000
    stand_in = rng.random(n).astype(np.float32)
    old = (stand_in + 0.1 * rng.standard_normal(n)).astype(np.float32)
    # Far items err more than close ones: with half of all pairs in one bin, 18 % too many would be below 0.05.
    true = (stand_in + (0.02 + 0.1 * stand_in) * rng.standard_normal(n)).astype(np.float32)
    weight, part = rng.choice([1.0, 5.0], n), rng.integers(0, PARTS, n)
    model = fit_others(stand_in, old, true, weight, part, np.arange(n) % 100)
    at = np.array([0.05, 0.2, 0.5, 0.8], np.float32)
    found = model.cumulative(at)
    assert found.shape == (1 + PARTS, CELLS, 4)
    cell = model.cells.of(model.cells.predict(stand_in, old))
    for kept, of_part in [(np.ones(n, bool), found[0]), (part != 3, found[1 + 3])]:
        expected = np.bincount(cell[kept], weight[kept], CELLS) @ of_part
        observed = [weight[kept & (true < threshold)].sum() for threshold in at]
        assert expected == pytest.approx(observed, rel=0.01)


def test_a_gallery_has_items_that_are_predicted_closer_than_any_sampled_one() -> None:
    """A hundred times as many items as pairs, all normally distributed: how many are closer is known."""
    rng = np.random.default_rng(0)
    n, items = 200_000, 20_000_000
    stand_in, old = (rng.normal(1, 0.12, n).astype(np.float32) for _ in range(2))
    true = (stand_in + rng.normal(0, 0.05, n)).astype(np.float32)
    model = fit_others(stand_in, old, true, np.ones(n), np.arange(n) % PARTS, np.arange(n) % 100)
    quantiles = (np.arange(items // 10) + 0.5) / (items // 10)
    gallery = norm.ppf(quantiles, 1, 0.12).astype(np.float32)
    hidden = 10 * np.bincount(model.cells.of(model.cells.predict(gallery, np.ones_like(gallery))), minlength=CELLS)
    closer = np.array([10, 100, 1000])
    at = norm.ppf(closer / items, 1, np.hypot(0.12, 0.05)).astype(np.float32)
    assert hidden @ model.cumulative(at)[0] == pytest.approx(closer, rel=0.3)


def test_in_a_narrow_band_nothing_is_expected_closer_than_it_can_be() -> None:
    """New distances around 0.2, which old ones of a weak model say little about: how many are closer is counted."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        old, common = rng.lognormal(np.log(0.1), 0.8, n), rng.standard_normal(n)
        true = 0.2 * np.exp(0.2 * np.log(old / 0.1) + 0.15 * common) + 0.02 * rng.standard_normal(n)
        stand_in = 0.2 * np.exp(0.08 * common)
        return stand_in.astype(np.float32), old.astype(np.float32), true.astype(np.float32)

    n = 60_000
    model = fit_others(*draw(n), np.ones(n), np.arange(n) % PARTS, np.arange(n) % 100)
    stand_in, old, true = draw(2_000_000)
    hidden = np.bincount(model.cells.of(model.cells.predict(stand_in, old)), minlength=CELLS)
    closer = np.array([1, 10, 100, 1000, 10_000])
    found = hidden @ model.cumulative(np.sort(true)[closer])[0]
    assert found[2:] == pytest.approx(closer[2:], rel=0.3)
    assert (found[:2] < [2, 15]).all(), "a regression of distances themselves expected 32 and 37"


@pytest.mark.parametrize(("shift", "scale"), [(0.3, 0.0), (0.0, 0.12), (0.25, 0.1), (0.0, 0.0)])
def test_how_queries_differ_is_told_by_far_items_and_holds_for_near_ones(shift: float, scale: float) -> None:
    """Queries have normal distances, shifted and scaled. 160 items of each are sampled, 20,000 are counted."""
    rng = np.random.default_rng(0)
    queries, sampled = 400, 160
    shifts, scales = shift * rng.standard_normal(queries), np.exp(scale * rng.standard_normal(queries))

    def draw(items: int) -> NDArray[np.float32]:
        normal = shifts[:, None] + scales[:, None] * rng.standard_normal((queries, items))
        return (1 + 0.1 * normal).astype(np.float32)

    true, all_items = draw(sampled).ravel(), np.sort(draw(20_000), axis=1)
    nothing, pairs = np.ones(len(true), np.float32), np.arange(len(true))
    model = fit_others(nothing, nothing, true, np.ones(len(true)), pairs % PARTS, pairs // sampled)
    pooled = np.sort(all_items, axis=None)
    for share in (0.0005, 0.005, 0.05):
        closer = (all_items < pooled[int(share * pooled.size)]).sum(axis=1)
        true_variance = (closer.var() - closer.mean()) / closer.mean() ** 2
        found = model.variance(np.array([share]))[0]
        assert found == pytest.approx(max(true_variance, 0.01), rel=0.5, abs=0.02), share


def test_expected_numbers_are_corrected_at_each_distance_and_at_most_all_items() -> None:
    rng, n = np.random.default_rng(0), 20_000
    true = (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
    nothing, pairs = np.ones(n, np.float32), np.arange(n)
    model = fit_others(nothing, nothing, true, np.ones(n), pairs % PARTS, pairs % 100)
    (cell,) = set(model.cells.of(model.cells.predict(nothing, nothing)).tolist())
    cells = np.zeros((1, CELLS, 4), np.int64)
    cells[0, cell, :3] = 2000  # items of which a third is backfilled at each of three moments
    at, nowhere = np.array([0.75, 0.9, 1.5], np.float32), np.zeros((1, 4, 4), np.int64)
    corrected = Calibration(1.0, np.array([0.1, 0.05]), np.diag([0.01, 0.02]))
    plain, found = (
        count(nowhere, cells, np.zeros((1, 0), np.int64), np.empty(0, np.float32), model, at, calibration)
        for calibration in (EXACT, corrected)
    )
    assert plain.expected[0, :, -1] == pytest.approx(6000 * norm.cdf([-2.5, -1, 5]), rel=0.25)
    share = plain.expected[0, :2, -1] / 6000
    quantile = norm.ppf(share)
    mills = norm.pdf(quantile) / share
    factor = np.exp(0.1 * mills - 0.05 * quantile * mills)
    assert found.expected[0, :2] == pytest.approx(plain.expected[0, :2] * factor[:, None])
    assert found.expected[0, 2] == pytest.approx([2000, 4000, 6000]), "not more than there are"
    assert found.variance == pytest.approx(model.variance(plain.expected[0, :, -1] / 6000))
    expected, error = found.expected[0, :2, -1], mills * np.sqrt(0.01 + 0.02 * quantile**2)
    assert found.changes[0, 0, :2, -1] == pytest.approx(np.hypot(0.03, error) * expected + 0.15 * np.sqrt(expected))


def test_chance_is_what_the_predictions_leave() -> None:
    """Stand-ins tell nearly all: as independent items, numbers of closer ones would vary more, and nothing be left."""
    rng, queries, sampled = np.random.default_rng(0), 400, 160
    query = np.repeat(np.arange(queries), sampled)
    stand_in = rng.normal(1, 0.1, len(query)).astype(np.float32)
    shift = 0.01 * rng.standard_normal(queries)
    true = (stand_in + 0.01 * rng.standard_normal(len(query)) + shift[query]).astype(np.float32)
    ones = np.ones(len(query))
    model = fit_others(stand_in, ones.astype(np.float32), true, ones, np.arange(len(query)) % PARTS, query)
    # Residuals contain the shift, so that chance is taken to be larger than it is, and the shift is underestimated.
    assert 0.5 < model.between_queries.sum() / (shift.std() / true.std()) ** 2 < 1.1
