"""What a log of queries says about the hours of a week, and quality summed over them."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ray_backfill.plan.fleet import TrafficSettings, WorkersSettings, traffic_of
from ray_backfill.plan.options import ONLINE, SWITCH, find_options
from tests.plan.made import assumed, evidence, fleet

MONDAY = datetime(2026, 11, 30)


def log_of(per_hour: dict[int, int], hours: int, start: datetime = MONDAY) -> pd.DataFrame:
    """So many queries in each hour of the day, spread over it, through so many hours from a start on."""
    times = [
        start + timedelta(hours=hour, minutes=60 * (place + 0.5) / per_hour[(start.hour + hour) % 24])
        for hour in range(hours)
        for place in range(per_hour.get((start.hour + hour) % 24, 0))
    ]
    return pd.DataFrame({"time": times})


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_two_whole_weeks_are_counted(suffix: str, tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), tmp_path / f"log.{suffix}"
    begin, often = pd.Timestamp("2026-11-11"), rng.integers(1, 30, size=2 * 7 * 24)
    seconds = np.concatenate([3600 * (hour + (np.arange(queries) + 0.5) / 30) for hour, queries in enumerate(often)])
    table = pd.DataFrame({"time": begin + pd.to_timedelta(seconds, unit="s"), "query": "x"})
    table.to_parquet(file) if suffix == "parquet" else table.to_csv(file)
    weights, per_day = traffic_of(file)
    counted = table.groupby([table["time"].dt.day_of_week, table["time"].dt.hour]).size()
    by_hand = counted.reindex(pd.MultiIndex.from_product([range(7), range(24)]), fill_value=0) / len(table)
    np.testing.assert_allclose(weights, by_hand.to_numpy(), rtol=1e-12)
    assert weights.sum() == pytest.approx(1)
    assert per_day == pytest.approx(often.sum() / 14, rel=0.01)


def test_days_that_a_log_has_more_often_count_no_more(tmp_path: Path) -> None:
    """Ten days of the same day: each hour of the week has the share of its hour of the day."""
    file = tmp_path / "log.csv"
    per_hour = {hour: 2 + hour for hour in range(24)}
    log_of(per_hour, 240).to_csv(file)
    weights, per_day = traffic_of(file)
    assert weights.reshape(7, 24) == pytest.approx(np.tile(np.arange(2, 26), (7, 1)) / (7 * sum(range(2, 26))))
    assert per_day == pytest.approx(sum(range(2, 26)), rel=0.01)


def test_hours_without_a_log_count_as_the_average(tmp_path: Path) -> None:
    """Two days alone: those of the other five are unknown."""
    file = tmp_path / "log.csv"
    log_of({hour: 5 + 10 * (hour == 12) for hour in range(24)}, 48).to_csv(file)
    weights = traffic_of(file)[0].reshape(7, 24)
    assert weights[1, 12] == pytest.approx(3 * weights[1, 11])
    assert weights[2:] == pytest.approx(weights[:2].mean())


def test_missing_times_and_zones(tmp_path: Path) -> None:
    file, table = tmp_path / "log.parquet", log_of(dict.fromkeys(range(24), 3), 72)
    table.to_parquet(file)
    plain = traffic_of(file)
    pd.concat([table, pd.DataFrame({"time": [pd.NaT] * 9})]).to_parquet(file)
    assert traffic_of(file)[1] == plain[1]
    pd.DataFrame({"time": table["time"].dt.tz_localize("UTC")}).to_parquet(file)
    np.testing.assert_array_equal(traffic_of(file)[0], plain[0])


@pytest.mark.parametrize(("start", "hours"), [(MONDAY, 100), (MONDAY + timedelta(hours=57), 333)])
def test_point_days_count_hours_by_their_traffic(start: datetime, hours: int, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    per_hour = {hour: 20 if 8 <= hour < 18 else 2 for hour in range(24)}
    log_of(per_hour, 7 * 24).to_csv(file)
    group = WorkersSettings(1, items_per_s=10, dollars_per_hour=1)
    of = fleet(items=hours * 36_000, workers=(group,), traffic=TrafficSettings(log=file))
    options = find_options(evidence(), assumed(of), of, start, runs=3)
    merge = next(choice for choice in options.choices if choice.policy == ONLINE)
    # Minute by minute: the curve goes from 2 points above the old service to 10, by 6 halfway; 228 queries a day.
    minutes = np.arange(60 * hours)
    above = np.interp(minutes / len(minutes), [0, 0.5, 1], [2, 6, 10])
    often = [24 * per_hour[(start + timedelta(minutes=int(minute))).hour] / 228 for minute in minutes]
    assert merge.point_days == pytest.approx(float(np.mean(above * often)) * hours / 24, rel=0.02)
    # Nobody has the new model before the last of the moments that are compared.
    assert options.of(SWITCH).point_days == pytest.approx(0, abs=0.1)


def test_without_a_log_all_hours_count_the_same() -> None:
    of = fleet(1, 10, 1, items=36_000 * 48)
    options = find_options(evidence(), assumed(of), of, MONDAY, runs=2)
    merge = next(choice for choice in options.choices if choice.policy == ONLINE)
    assert merge.point_days == pytest.approx(6 * 2, rel=1e-3)  # 6 points on average, two days
