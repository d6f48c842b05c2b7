"""Weights of queries in means, areas, flips, intervals and differences."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import ray_backfill as rb
from ray_backfill.engine import statistics as stats
from tests.engine.replay.cases import METRICS, random_pair, random_truth


def weighted_curve(seed: int, weights: np.ndarray | None, repeated: np.ndarray | None = None) -> rb.Curve:
    """A curve of 30 queries. repeated: how often each query is asked."""
    rng = np.random.default_rng(seed)
    pair, truth = random_pair(rng, 30, 80, tied=True), random_truth(rng, 30, 80, graded=True)
    order = rng.permutation(80)
    if repeated is not None:
        rows = np.repeat(np.arange(30), repeated).tolist()
        old, new = (rb.RetrievalSystem(each.query[rows], each.gallery) for each in (pair.backward, pair.forward))
        pair = rb.UpgradePair(old, new)
        positives, ignored = ([of(q) for q in rows] for of in (truth.positives_of, truth.ignored_of))
        assert truth.grades is not None
        grades = [truth.grades[slice(*truth.positive_starts[[q, q + 1]])] for q in rows]
        truth = rb.GroundTruth.from_positives(positives, ignored, n_gallery=80, grades=grades)
    return rb.replay(pair, truth.with_weights(weights), order, 6, METRICS)


def test_a_query_of_weight_2_counts_as_if_it_was_asked_twice() -> None:
    times = np.random.default_rng(0).integers(1, 4, 30)
    weighted, repeated = weighted_curve(1, times * 0.7), weighted_curve(1, None, times)
    for metric in METRICS:
        np.testing.assert_allclose(weighted.values(metric), repeated.values(metric), rtol=1e-13)
        assert weighted.auc(metric) == pytest.approx(repeated.auc(metric), rel=1e-13)
        assert weighted.largest_fall(metric)[1:] == repeated.largest_fall(metric)[1:]
    np.testing.assert_allclose(weighted.negative_flips(), repeated.negative_flips(), rtol=1e-13)
    np.testing.assert_allclose(weighted.positive_flips(), repeated.positive_flips(), rtol=1e-13)
    assert not np.allclose(weighted.values("mAP"), weighted_curve(1, None).values("mAP"))
    mask = np.arange(30) % 3 == 0
    some, those = weighted.of_queries(mask), repeated.of_queries(np.repeat(mask, times))
    np.testing.assert_allclose(some.values("nDCG"), those.values("nDCG"), rtol=1e-13)
    assert repr(weighted).startswith("Curve: 6 points, 30 queries, weighted\n")


def test_equal_weights_change_no_bit() -> None:
    plain, equal = weighted_curve(2, None), weighted_curve(2, np.full(30, 0.3))
    assert equal.weights is None
    assert repr(equal) == repr(plain)
    for metric in METRICS:
        np.testing.assert_array_equal(equal.values(metric), plain.values(metric))
        np.testing.assert_array_equal(equal.interval(metric), plain.interval(metric))
    weights = np.where(np.arange(30) < 20, 2.0, 1.0)
    part = weighted_curve(2, weights).of_queries(np.arange(30) < 20)
    assert part.weights is None
    np.testing.assert_array_equal(part.values("mAP"), plain.of_queries(np.arange(30) < 20).values("mAP"))


def test_bootstrap_draws_are_weighted_means_of_the_drawn_queries() -> None:
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=(40, 3)), rng.uniform(0.1, 5, 40)
    draws, again = stats.bootstrap_means(values, weights, seed=8), np.random.default_rng(8)
    assert draws.shape == (stats.DRAWS, 3)
    for draw in draws:
        drawn = again.integers(40, size=40)
        np.testing.assert_allclose(draw, np.average(values[drawn], axis=0, weights=weights[drawn]), atol=1e-13)
    np.testing.assert_array_equal(stats.bootstrap_means(values, seed=8), stats.bootstrap_means(values, None, 8))


def test_a_weighted_interval_equals_scipy_up_to_its_randomness() -> None:
    rng = np.random.default_rng(4)
    values, weights = rng.normal(size=300) + 5, rng.uniform(0.1, 5, 300)
    low, high = stats.interval(stats.bootstrap_means(values[:, None], weights), 300)
    theirs = scipy.stats.bootstrap(
        (values, weights), lambda v, w, axis: (v * w).sum(axis) / w.sum(axis), paired=True, method="percentile",
        n_resamples=4000, rng=1,
    ).confidence_interval  # fmt: skip
    assert low[0] == pytest.approx(theirs.low, abs=0.01)
    assert high[0] == pytest.approx(theirs.high, abs=0.01)


def test_differences_and_gains_are_weighted_and_paired() -> None:
    weights = np.random.default_rng(5).uniform(0.2, 3, 30)
    a, b = weighted_curve(6, weights), weighted_curve(7, weights)
    b = replace(b, per_query={metric: a.per_query[metric] - 0.1 for metric in METRICS})
    assert a.difference(b, "mAP") == pytest.approx((0.1, 0.1, 0.1)), "the same for every query"
    per_query = np.trapezoid(a.per_query["nDCG"], a.t, axis=1)
    assert a.auc("nDCG") == pytest.approx(np.average(per_query, weights=weights))
    with pytest.raises(rb.InputError, match="the two curves have different weights of queries"):
        a.difference(replace(b, weights=None), "mAP")
