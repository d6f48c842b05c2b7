"""Metrics on rankings small enough to do by hand, and the interval against scipy."""

import numpy as np
import pytest
import scipy.stats

from ray_backfill import metrics as m
from ray_backfill.errors import InputError


def values(ranks: list[int], name: str) -> float:
    out = np.empty(1)
    m.measure(np.array(ranks, np.int64), 3, *m.metric_codes([m.parse_metric(name)]), out)
    return float(out[0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mAP", (1 / 1 + 2 / 3 + 3 / 10) / 3),
        ("mAP@3", (1 / 1 + 2 / 3) / 3),
        ("mAP@2", 1 / 2),  # divided by min(P, k) = 2: the GLDv2 definition
        ("CMC@1", 1.0),
    ],
)
def test_values_by_hand(name: str, expected: float) -> None:
    assert values([1, 3, 10], name) == pytest.approx(expected)


def test_cmc_needs_the_first_positive_within_k() -> None:
    assert values([3, 4], "CMC@2") == 0
    assert values([1, 9], "CMC@2") == 1
    assert values([], "CMC@2") == 0


def test_area_gain_and_falls_by_hand() -> None:
    t, values = np.array([0.0, 0.5, 1.0]), np.array([0.2, 0.6, 0.5])
    assert m.auc(t, values) == pytest.approx(0.2 * 0.25 + 0.6 * 0.5 + 0.5 * 0.25)
    assert m.auc_mean(values) == pytest.approx(1.3 / 3)
    assert m.largest_fall(values) == pytest.approx(0.1)
    assert not m.is_monotone(values)
    assert m.is_monotone(np.array([0.1, 0.1, 0.3]))
    assert not m.is_monotone(np.array([0.1, 0.1 - 1e-9, 0.3]))
    assert m.gain(0.6, 0.2, 0.5) == pytest.approx(4 / 3)
    assert np.isnan(m.gain(0.6, 0.5, 0.5))


def test_interval_equals_scipy_up_to_its_randomness() -> None:
    values_QT = np.random.default_rng(0).normal(size=(400, 1)) + 5
    low, high = m.bootstrap_interval(values_QT, samples=4000)
    theirs = scipy.stats.bootstrap((values_QT[:, 0],), np.mean, method="percentile", n_resamples=4000, rng=1)
    assert low[0] == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert high[0] == pytest.approx(theirs.confidence_interval.high, abs=0.01)


@pytest.mark.parametrize("name", ["map", "CMC", "CMC@0", "mAP@", "mAP@-1", "CMC@1.5"])
def test_unknown_names_list_the_known_forms(name: str) -> None:
    with pytest.raises(InputError, match=r"mAP, mAP@k and CMC@k"):
        m.parse_metric(name)
