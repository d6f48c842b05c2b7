"""Time and money of a backfill against formulas, and against workers that are simulated one by one by simpy."""

import json
import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from scipy.stats import ks_2samp

from ray_backfill.plan.capacity import Backfill, run_backfill
from ray_backfill.plan.fleet import BudgetSettings, FleetSettings, IndexSettings, ProviderSettings, WorkersSettings
from tests.plan.made import assumed, fleet

MONDAY = datetime(2026, 11, 30, 8, 0)
MINUTE = 60.0
# Two samples of one distribution are further apart once in a thousand times.
RARE = 0.001
Steps = Generator[simpy.Event, Any, None]


def backfilled(of: FleetSettings, start: datetime = MONDAY, **how: Any) -> Backfill:
    return run_backfill(assumed(of), of, start, **{"with_index": False} | how)


@dataclass
class Job:
    """Items that are left, new ones that wait, dollars spent, and when nothing was left."""

    env: simpy.Environment
    left: float
    waiting: float = 0.0
    spent: float = 0.0
    finished: Any = None
    workers: list[simpy.Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.finished = self.env.event()

    def embed(self, number: float) -> None:
        """New items first."""
        of_new = min(number, self.waiting)
        self.waiting -= of_new
        self.left -= number - of_new
        if self.left <= 1e-6 and not self.finished.triggered:
            self.finished.succeed()

    def ended(self) -> float:
        """Hours until nothing is left."""
        self.env.run(until=self.finished)
        return float(self.env.now) / 3600


def work(job: Job, rate: float, start_s: float, batch: float, dollars_per_s: float = 0.0) -> Steps:
    """A worker from its request to its end, which is an interrupt: it starts, then embeds batch after batch."""
    begin = job.env.now
    try:
        yield job.env.timeout(start_s)
        while True:
            begun = job.env.now
            yield job.env.timeout(batch / rate)
            job.embed(batch)
    except simpy.Interrupt:
        if job.env.now - begin >= start_s:  # what it has of its batch is written
            job.embed((job.env.now - begun) * rate)
    finally:
        job.spent += (job.env.now - begin) * dollars_per_s


def stop(workers: list[simpy.Process]) -> None:
    for worker in workers:
        if worker.is_alive:
            worker.interrupt()
    workers.clear()


def test_a_long_pause_is_no_end() -> None:
    of = fleet(2, 10, 1, items=1e6, pauses=("2026-12-01 00:00 to 2027-02-01 00:00",), inserted_per_day=1.0)
    assert backfilled(of, datetime(2026, 12, 1), runs=1, spans=20).finish[0] == pytest.approx(
        62 * 24 + 1e6 / 72000, abs=0.1
    )


def is_open(at: datetime, pause: tuple[datetime, datetime]) -> bool:
    """22:00 to 06:00 on every day, but for a pause."""
    return (at.hour >= 22 or at.hour < 6) and not pause[0] <= at < pause[1]


def by_night(start: datetime, pause: tuple[datetime, datetime], items: float, rate: float) -> float:
    """Hours of three workers of this rate, which start for ten minutes whenever the night or the pause lets them."""
    env = simpy.Environment()
    job = Job(env, items)

    def calendar() -> Steps:
        while True:
            at = start + timedelta(seconds=env.now)
            if is_open(at, pause) and not job.workers:
                job.workers += [env.process(work(job, rate, 10 * MINUTE, 60 * rate)) for _ in range(3)]
            elif not is_open(at, pause):
                stop(job.workers)
            yield env.timeout(MINUTE)

    env.process(calendar())
    return job.ended()


def test_nights_with_a_pause_and_uncertain_rates() -> None:
    pause = (datetime(2026, 12, 2, 1, 30), datetime(2026, 12, 2, 3, 15))
    group = WorkersSettings(3, items_per_s=10, uncertainty=0.25, start_minutes=10)
    of = FleetSettings(
        items=1.5e6, workers=(group,), hours="22:00-06:00", pauses=("2026-12-02 01:30 to 2026-12-02 03:15",)
    )
    ours = backfilled(of, spans=2000).finish
    rng, sigma = np.random.default_rng(1), math.sqrt(math.log(1 + 0.25**2))
    rates = 10 * np.exp(sigma * rng.normal(size=80))
    theirs = [by_night(MONDAY, pause, 1.5e6, rate) for rate in rates]
    assert ks_2samp(ours, theirs).pvalue > RARE
    # The same runs with rates that are certain, to the minute and a batch of each worker.
    for rate in (7.0, 10.0, 14.5):
        sure = replace(of, workers=(replace(group, items_per_s=rate, uncertainty=0.0),))
        alone = backfilled(sure, spans=2000, runs=1).finish[0]
        assert abs(alone - by_night(MONDAY, pause, 1.5e6, rate)) < 3 * MINUTE / 3600


def on_spot(traces: list[tuple[list[int], int, float]], items: float, begins: list[int], start_s: float) -> float:
    """Hours of groups of workers that come and go as a trace of 5-minute steps says, from these minutes of it on."""
    env = simpy.Environment()
    job = Job(env, items)

    def market(trace: list[int], number: int, rate: float, begin: int) -> Steps:
        workers: list[simpy.Process] = []
        minute = begin
        while True:
            there = min(trace[minute // 5 % len(trace)], number)
            stop([workers.pop() for _ in range(len(workers) - there)])  # who came last goes first
            workers += [env.process(work(job, rate, start_s, 60 * rate)) for _ in range(there - len(workers))]
            wait = 5 - minute % 5
            minute += wait
            yield env.timeout(wait * MINUTE)

    for (trace, number, rate), begin in zip(traces, begins, strict=True):
        env.process(market(trace, number, rate, begin))
    return job.ended()


def test_two_groups_on_spot_instances(tmp_path: Path) -> None:
    rng, groups, traces = np.random.default_rng(2), [], []
    for name, number, rate, most in (("small", 3, 4.0, 5), ("large", 2, 15.0, 2)):
        # Stays for half an hour on average, then any number.
        steps, levels = rng.random(500) < 1 / 6, rng.integers(0, most + 1, size=500)
        trace = [int(levels[place]) for place in np.maximum.accumulate(np.where(steps, np.arange(500), 0))]
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": trace}))
        groups.append(WorkersSettings(number, name, rate, start_minutes=12, uncertainty=0.0, spot=file))
        traces.append((trace, number, rate))
    of = FleetSettings(items=6e5, workers=tuple(groups))
    theirs = [on_spot(traces, 6e5, rng.integers(2500, size=2).tolist(), 12 * MINUTE) for _ in range(120)]
    assert ks_2samp(backfilled(of).finish, theirs).pvalue > RARE


def by_the_day(items: float, inserted_per_day: float, dollars_per_day: float) -> tuple[float, float]:
    """Hours and dollars of two workers that stop when a day has cost enough; items arrive every ten minutes."""
    env = simpy.Environment()
    job, rate, price = Job(env, items), 10.0, 3.6
    seconds = dollars_per_day / (2 * price / 3600)

    def arrive() -> Steps:
        while True:
            yield env.timeout(10 * MINUTE)
            job.waiting += inserted_per_day / 144

    def days() -> Steps:
        midnight = 16 * 3600.0  # the first day begins at 08:00
        while True:
            job.workers += [env.process(work(job, rate, 0.0, 10 * rate, price / 3600)) for _ in range(2)]
            yield env.timeout(min(seconds, midnight - env.now))
            stop(job.workers)
            yield env.timeout(midnight - env.now)
            midnight += 86400

    env.process(arrive())
    env.process(days())
    end = job.ended()
    stop(job.workers)
    env.run(until=env.now + 1e-3)  # they note what they cost
    return end, job.spent


@pytest.mark.parametrize("inserted_per_day", [0, 100_000])
def test_a_budget_for_each_day_with_items_that_arrive_meanwhile(inserted_per_day: float) -> None:
    of = fleet(2, 10, 3.6, items=1e6, inserted_per_day=inserted_per_day, budget=BudgetSettings(dollars_per_day=50))
    ours = backfilled(of, runs=1, spans=5000)
    hours, dollars = by_the_day(1e6, inserted_per_day, 50)
    assert abs(ours.finish[0] - hours) < 12 / 60
    assert abs(ours.dollars[0] - dollars) < 12 / 60 * 2 * 3.6


def test_a_provider_with_limits() -> None:
    provider = ProviderSettings(
        dollars_per_million_tokens=0.1, tokens_per_item=120, tokens_per_minute=60_000, requests_per_minute=40,
        items_per_request=10,
    )  # fmt: skip
    of = FleetSettings(items=200_000, provider=provider)
    env = simpy.Environment()
    job = Job(env, 200_000)

    def account() -> Steps:
        """Each minute allows so many tokens and requests."""
        while True:
            tokens, requests = 60_000, 40
            while requests and tokens >= 10 * 120:
                job.embed(10)
                tokens, requests = tokens - 10 * 120, requests - 1
            yield env.timeout(MINUTE)

    env.process(account())
    hours = job.ended()
    ours = backfilled(of, runs=3)
    assert np.ptp(ours.finish) == 0
    assert abs(ours.finish[0] - hours) <= 1 / 60 + 1e-9
    assert ours.dollars[0] == pytest.approx(200_000 * 120 * 0.1 / 1e6)
    assert ours.slowest == "the provider's limits"


def test_a_constant_fleet() -> None:
    ours = backfilled(fleet(3, 50, 2.5, items=2e6, share=0.8), runs=4)
    hours = 2e6 / (3 * 50 * 0.8 * 3600)
    assert ours.finish == pytest.approx(hours)
    assert ours.dollars == pytest.approx(3 * 2.5 * hours)
    assert ours.end == pytest.approx(1)
    # Half of the items after half of the time.
    assert np.interp(hours / 2, ours.hours, ours.share[0]) == pytest.approx(0.5, abs=1e-6)


def test_items_that_arrive_take_their_part_of_a_constant_fleet() -> None:
    ours = backfilled(fleet(2, 10, 1, items=1e6, inserted_per_day=864_000), runs=1)
    assert ours.finish == pytest.approx(1e6 / (20 - 10) / 3600)
    halfway = 1e6 / 10 / 3600 / 2
    assert np.interp(halfway, ours.hours, ours.share[0]) == pytest.approx((5e5 + 5e5) / (1e6 + 5e5), abs=1e-3)


@pytest.mark.parametrize(
    ("budget", "share"),
    [(BudgetSettings(items=0.3), 0.3), (BudgetSettings(dollars=20), 0.2), (BudgetSettings(20, items=0.1), 0.1)],
)
def test_a_budget_buys_a_share(budget: BudgetSettings, share: float) -> None:
    # A million items on one worker of 10 items per second: 27.8 hours, at 3.6 dollars 100 dollars.
    ours = backfilled(fleet(1, 10, 3.6, items=1e6, budget=budget), runs=2)
    assert ours.end == pytest.approx(share)
    assert ours.finish == pytest.approx(share * 1e6 / 36_000)
    assert ours.dollars == pytest.approx(share * 100)
    assert ours.share[:, -1] == pytest.approx(share, abs=1e-6)


def test_an_index_that_is_searched_meanwhile_sets_the_pace() -> None:
    of = fleet(2, 10, 3.6, items=1e6, index=IndexSettings(build_hours=30))
    assert backfilled(of, runs=1).finish == pytest.approx(1e6 / 20 / 3600)
    searched = backfilled(of, runs=1, with_index=True)
    assert searched.finish == pytest.approx(30)
    assert searched.dollars == pytest.approx(30 * 2 * 3.6)
    assert searched.slowest == "the index"


def test_a_limit_of_all_workers() -> None:
    ours = backfilled(fleet(2, 10, 3.6, items=1e6, limit_items_per_s=5), runs=1)
    assert ours.finish == pytest.approx(1e6 / 5 / 3600)
    assert ours.slowest == "limit_items_per_s"


@pytest.mark.parametrize("more", [{"inserted_per_day": 1.8e6}, {"budget": BudgetSettings(dollars_per_day=0)}])
def test_a_fleet_that_never_ends(more: dict[str, Any]) -> None:
    ours = backfilled(fleet(2, 10, 3.6, items=1e6, **more), runs=2, spans=1)
    assert np.isinf(ours.finish).all()
    assert ours.end == pytest.approx(0)


def test_what_is_unknown_stays_so() -> None:
    unknown = FleetSettings(items=1e6, workers=(WorkersSettings(2, dollars_per_hour=1),))
    assert np.isnan(backfilled(unknown).finish).all()
    assert np.isnan(backfilled(unknown).dollars).all()
    assert not backfilled(unknown).is_known
    free = FleetSettings(items=1e6, workers=(WorkersSettings(2, items_per_s=10),))
    assert backfilled(free, runs=1).finish == pytest.approx(1e6 / 20 / 3600)
    assert np.isnan(backfilled(free).dollars).all()
    # Without a price nobody knows what a sum pays for.
    assert not backfilled(replace(free, budget=BudgetSettings(dollars=5))).is_known


@pytest.mark.parametrize("uncertainty", [0.05, 0.5])
def test_rates_have_the_given_spread(uncertainty: float) -> None:
    of = FleetSettings(items=1e6, workers=(WorkersSettings(1, items_per_s=10, uncertainty=uncertainty),))
    rates = 1e6 / 3600 / backfilled(of, runs=4000, spans=50).finish
    assert np.median(rates) == pytest.approx(10, rel=0.05)
    assert rates.std() / rates.mean() == pytest.approx(uncertainty, rel=0.1)


def test_a_week_of_working_days() -> None:
    """From Friday evening on: one night, then no more before Monday."""
    of = fleet(1, 10, 1, items=1e6, hours="20:00-04:00", days=("mon", "tue", "wed", "thu", "fri"))
    # 27.8 hours: 8 on each of three nights, and 3.8 on the fourth, which is that of Wednesday.
    friday = datetime(2026, 12, 4, 20, 0)
    fourth = datetime(2026, 12, 9, 20, 0) + timedelta(hours=1e6 / 36_000 - 24)
    assert backfilled(of, friday, runs=1, spans=2000).finish[0] == pytest.approx(
        (fourth - friday).total_seconds() / 3600, abs=1 / 60
    )
