"""The traffic schedule: its distribution, the actors' shares, and reproducibility."""

from dataclasses import replace
from itertools import islice, takewhile

import numpy as np
import pytest
from scipy import stats

from ray_backfill.core.errors import InputError
from ray_backfill.drill.schedule import Schedule, TrafficSettings

SETTINGS = TrafficSettings(rate_per_s=200, batch=2, actors=3, seed=5)


def times(settings: TrafficSettings, until_s: float) -> np.ndarray:
    """(requests,) times of all actors together, sorted."""
    streams = [Schedule(settings, 10, actor).requests() for actor in range(settings.actors)]
    return np.sort([t for stream in streams for t, _ in takewhile(lambda request: request[0] < until_s, stream)])


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_a_schedule_can_be_had_again_and_no_two_actors_share_one(arrivals: str) -> None:
    settings = replace(SETTINGS, arrivals=arrivals)  # type: ignore[arg-type]
    one, again, other = (list(islice(Schedule(settings, 10, actor).requests(), 3000)) for actor in (0, 0, 1))
    assert all(a[0] == b[0] and (a[1] == b[1]).all() for a, b in zip(one, again, strict=True))
    assert not any(a[0] == b[0] for a, b in zip(one, other, strict=True))
    assert sum((a[1] == b[1]).all() for a, b in zip(one, other, strict=True)) < 100, "1 in 100 by chance"
    time_s = np.array([t for t, _ in one])
    assert (np.diff(time_s) > 0).all(), "also from one chunk to the next"
    assert all(rows.shape == (2,) and rows.dtype == np.int64 for _, rows in one)


def test_together_the_actors_send_a_poisson_stream_of_the_rate() -> None:
    time_s = times(SETTINGS, 100)
    assert abs(len(time_s) - 20_000) < 4 * np.sqrt(20_000)
    assert stats.kstest(np.diff(time_s), "expon", args=(0, 1 / 200)).pvalue > 0.01
    counts = np.histogram(time_s, bins=1000, range=(0, 100))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15), "a Poisson variable's variance is its mean"


def test_constant_actors_take_turns_at_equal_distances() -> None:
    time_s = times(replace(SETTINGS, arrivals="constant"), 30)
    np.testing.assert_allclose(time_s, np.arange(6000) / 200, rtol=0, atol=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_queries_come_by_zipfs_law_and_all_actors_agree_which_are_popular(exponent: float) -> None:
    settings = replace(SETTINGS, popularity=exponent, batch=20)
    expected = np.array([rank**-exponent for rank in range(1, 31)])
    expected *= 40_000 / expected.sum()
    counts = np.zeros((2, 30))
    for actor in (0, 1):
        for _, rows in islice(Schedule(settings, 30, actor).requests(), 2000):
            np.add.at(counts[actor], rows, 1)
    if exponent:
        by_rank = np.argsort(-counts[0])
        assert not np.array_equal(by_rank, np.arange(30)), "the first query is not the most popular one"
        np.testing.assert_array_equal(by_rank[:3], np.argsort(-counts[1])[:3])
        counts = np.sort(counts, axis=1)[:, ::-1]
    for row in counts:
        assert stats.chisquare(row, expected).pvalue > 0.01


def test_one_query_is_asked_again_and_again() -> None:
    assert next(Schedule(TrafficSettings(), 1).requests())[1].tolist() == [0]


def test_no_traffic_at_rate_0() -> None:
    assert list(Schedule(TrafficSettings(rate_per_s=0), 10).requests()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate_per_s", -1.0),
        ("rate_per_s", float("inf")),
        ("rate_per_s", float("nan")),
        ("batch", 0),
        ("actors", 0),
        ("deadline_s", 0.0),
        ("warm_up_s", -1.0),
        ("popularity", -0.5),
        ("seed", -1),
        ("arrivals", "bursts"),
    ],
)
def test_senseless_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"--live.traffic.{name.replace('_', '-')} must"):
        TrafficSettings(**{name: value})  # type: ignore[arg-type]


def test_traffic_without_queries_is_refused() -> None:
    with pytest.raises(InputError, match=r"no queries to send as traffic; set --live\.traffic\.rate-per-s to 0"):
        Schedule(TrafficSettings(), 0)
