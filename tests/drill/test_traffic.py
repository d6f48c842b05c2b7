"""The traffic: distribution, shares of actors and reproducibility of its schedule, and which of its events count."""

from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import arrow_table
from ray_backfill.data.write import write_parquet
from ray_backfill.drill.journal import Journal, Started, TrafficRestarted
from ray_backfill.drill.settings import TrafficSettings
from ray_backfill.drill.tables import EventRow
from ray_backfill.drill.traffic import Schedule, Sender, read_events

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
    [("rate_per_s", float("inf")), ("batch", 0), ("actors", 0), ("deadline_s", 0.0), ("arrivals", "bursts")],
)
def test_senseless_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"--live.traffic.{name.replace('_', '-')} must"):
        TrafficSettings(**{name: value})  # type: ignore[arg-type]


def test_traffic_without_queries_is_refused() -> None:
    with pytest.raises(InputError, match=r"no queries to send as traffic; set --live\.traffic\.rate-per-s to 0"):
        Schedule(TrafficSettings(), 0)


def write(drill: Path, sender: Sender, *scheduled_s: float) -> None:
    events = [EventRow(s, 5.0, 1, sender.incarnation > 0, False, 0, 0, 1, 1, 1, 1) for s in scheduled_s]
    write_parquet(sender.file(drill, 0), arrow_table(EventRow, events))


def test_an_incarnation_counts_until_the_next_one_takes_over(tmp_path: Path) -> None:
    """Actor 0 was replaced after 10 s and sent until 24 s; actor 1 was not replaced."""
    Journal(tmp_path).add(Started(0.0, 0, 0.0))
    Journal(tmp_path).add(TrafficRestarted(10.0, 0, 0, 1))
    write(tmp_path, Sender(0, 0), 1.0, 9.5, 10.0, 17.0, 24.0)
    write(tmp_path, Sender(0, 0, 1), 12.0, 20.0)
    write(tmp_path, Sender(0, 1), 2.5, 21.0)
    events = read_events(tmp_path)
    assert events.scheduled_s.tolist() == [1.0, 2.5, 9.5, 12.0, 20.0, 21.0]
    assert events.is_answered.tolist() == [False, False, False, True, True, False]


def test_what_is_left_of_an_earlier_driver_does_not_count(tmp_path: Path) -> None:
    Journal(tmp_path).add(Started(0.0, 0, 0.0))
    Journal(tmp_path).add(Started(8.25, 1, 0.0))
    write(tmp_path, Sender(0, 0), 1.0, 8.25, 9.0)
    write(tmp_path, Sender(1, 0), 8.5, 9.5)
    assert read_events(tmp_path).scheduled_s.tolist() == [1.0, 8.25, 8.5, 9.5]


def test_one_incarnation_writes(tmp_path: Path) -> None:
    first, second, other = Sender(0, 3), Sender(0, 3, 1), Sender(0, 4)
    assert not first.may_write(tmp_path)
    first.begin(tmp_path)
    assert [each.may_write(tmp_path) for each in (first, second, other)] == [True, False, False]
    second.begin(tmp_path)
    assert [each.may_write(tmp_path) for each in (first, second)] == [False, True]
    second.end(tmp_path)
    second.end(tmp_path)
    assert not second.may_write(tmp_path)
