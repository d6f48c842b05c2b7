"""Verdicts on made evidence: their exit codes, and that each printed value is the one at which they change."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.outcome import Decision
from ray_backfill.page import parts
from ray_backfill.plan import run as plan_run
from ray_backfill.plan.evidence import Evidence
from ray_backfill.plan.fleet import BudgetSettings, FleetSettings, IndexSettings, TrafficSettings, WorkersSettings
from ray_backfill.plan.options import SWITCH, find_options
from ray_backfill.plan.sentences import answers
from ray_backfill.plan.verdict import Judged, Verdict, find_deadline, find_flips, judge
from tests.command import Command
from tests.plan.made import assumed, changed, curve, evidence, fleet

START = datetime(2026, 12, 1, 8, 0)
DAY_OF_ITEMS = 86_400 * 20  # of two workers


def judged(by: Evidence, of: FleetSettings, runs: int = 20) -> Judged:
    known = assumed(of, by)
    return judge(by, known, find_options(by, known, of, START, runs, spans=100))


# Two workers embed 20 items per second; a merge costs 120 dollars to set up and wins 6 point-days each day.
FAST, SLOW = (
    fleet(items=DAY_OF_ITEMS / 4),
    fleet(items=DAY_OF_ITEMS * 2, setup_dollars=120, traffic=TrafficSettings(0.0)),
)
CASES = {
    "harmful": (evidence(-0.1, 0.02), SLOW, Verdict.STOP, 11),
    "harmful by the results": (evidence(0.1, 0.02, Decision.STOP), SLOW, Verdict.STOP, 11),
    "equal": (evidence(0.0, 0.02), SLOW, Verdict.OPEN, 10),
    "contradicted": (evidence(0.1, 0.02, Decision.OPEN), SLOW, Verdict.OPEN, 10),
    "perhaps better": (evidence(0.01, 0.02), SLOW, Verdict.EXPAND, 10),
    "short": (evidence(0.1, 0.01), FAST, Verdict.SWITCH, 0),
    "no merge": (evidence(0.1, 0.01, curves=()), SLOW, Verdict.SWITCH, 0),
    "no merge that is shown": (evidence(curves=(curve((0.4, 0.5, 0.6), half=0.01),)), SLOW, Verdict.SWITCH, 0),
    "long": (evidence(0.1, 0.01), SLOW, Verdict.OPEN, 10),
    "long and of much worth": (evidence(0.1, 0.01), replace(SLOW, value_per_point_day=100), Verdict.ONLINE, 0),
    "long and of little worth": (evidence(0.1, 0.01), replace(SLOW, value_per_point_day=1), Verdict.SWITCH, 0),
    "long and of the worth of its price": (
        evidence(0.1, 0.04), replace(SLOW, value_per_point_day=120 / 12), Verdict.OPEN, 10,
    ),
    "of unknown hours": (evidence(0.1, 0.01), FleetSettings(), Verdict.OPEN, 10),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_five_verdicts_and_their_exit_codes(
    name: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, of, verdict, code = CASES[name]
    monkeypatch.setattr(plan_run, "read_evidence", lambda folder: by)
    monkeypatch.setattr(plan_run, "read_fleet", lambda file: of)
    monkeypatch.setattr(plan_run, "find_flips", lambda *plan: [])
    monkeypatch.setattr(parts, "write_pages", lambda *pages: None)  # drawn by tests of pages
    ended = command("plan", tmp_path, "--fleet", tmp_path, "--out", tmp_path / "out", "--exit-code")
    assert ended.code == code
    said = judged(by, of)
    assert said.verdict is verdict
    # Its first words are those of the verdict.
    assert said.sentence.startswith(verdict.value)


def test_the_number_of_queries_that_would_decide() -> None:
    """Half of an interval is 2 points with 100 queries, and 1 point with four times as many."""
    assert "some 300 more queries" in judged(evidence(0.01, 0.02), SLOW).sentence
    assert judged(evidence(0.0021, 0.02), SLOW).verdict is Verdict.EXPAND
    assert judged(evidence(0.0019, 0.02), SLOW).verdict is Verdict.OPEN  # more than a hundred times as many


@pytest.mark.parametrize("queries_per_day", [0, 1e6])
def test_the_printed_break_even_is_where_the_verdict_changes(queries_per_day: float) -> None:
    of = fleet(items=DAY_OF_ITEMS * 3, setup_dollars=500, traffic=TrafficSettings(queries_per_day))
    said = judged(evidence(), of)
    assert said.verdict is Verdict.OPEN
    even = float(re.findall(r"more than \$([\d.,]+)", said.sentence)[0].replace(",", ""))
    # A million queries on a worker of 3.6 dollars and 10 items per second: 100 dollars. 6 points through three days.
    assert even == pytest.approx((500 + 3 * queries_per_day / 1e6 * 100) / 18, rel=0.02)
    verdicts = [judged(evidence(), replace(of, value_per_point_day=even * factor)).verdict for factor in (0.9, 1.1)]
    assert verdicts == [Verdict.SWITCH, Verdict.ONLINE]


def test_the_dollars_of_a_merge_beyond_a_switch_are_the_difference_of_both() -> None:
    """An index that is searched meanwhile holds the workers for longer."""
    of = fleet(
        items=DAY_OF_ITEMS, setup_dollars=50, traffic=TrafficSettings(1e5),
        index=IndexSettings(build_hours=72, dollars_per_hour=1, bytes_per_item=100, dollars_per_gb_month=10),
    )  # fmt: skip
    known = assumed(of)
    options = find_options(evidence(), known, of, START, 5, spans=100)
    merge = options.best()
    assert merge is not None
    assert merge.total - options.of(SWITCH).total == pytest.approx(merge.extra_dollars)


@pytest.mark.parametrize(
    ("value_per_point_day", "queries_per_day", "names"),
    [
        (math.nan, 1e4, {"items", "workers.number", "workers.items_per_s", "max_wait_hours"}),
        pytest.param(100.0, 1e4, {"value_per_point_day", "setup_dollars"}, marks=pytest.mark.full),
        # What a query costs follows from the workers, so their price and rate decide.
        (300.0, 1e7, {"value_per_point_day", "workers.items_per_s", "workers.dollars_per_hour"}),
    ],
)
def test_verdicts_change_at_the_printed_values(
    value_per_point_day: float, queries_per_day: float, names: set[str]
) -> None:
    of = replace(SLOW, value_per_point_day=value_per_point_day, traffic=TrafficSettings(queries_per_day))
    today = judged(evidence(), of).verdict
    flips = find_flips(evidence(), lambda changed: assumed(of, changed=changed), of, START)
    assert names <= {flip.name for flip in flips}
    assert [abs(math.log(flip.factor)) for flip in flips] == sorted(abs(math.log(flip.factor)) for flip in flips)
    for flip in flips:
        back = flip.value * (1.03 if flip.factor < 1 else 1 / 1.03)
        if "query" in flip.name:  # follows from others where it is not given
            flip = replace(flip, name="traffic.dollars_per_million_queries")
        assert judged(evidence(), changed(of, flip.name, flip.value)).verdict.value == flip.verdict, flip
        assert judged(evidence(), changed(of, flip.name, back)).verdict is today, flip
        assert flip.name != "share" or flip.value <= 1


def finished_by(items: float, number: int, begin: datetime, is_open: Callable[[datetime], bool]) -> datetime:
    """When so many workers of 10 items per second are done, minute by minute."""
    at = begin
    while items > 1e-6:
        items -= 600 * number * is_open(at)
        at += timedelta(minutes=1)
    return at


@pytest.mark.parametrize("hours", ["00:00-24:00", "22:00-06:00"])
@pytest.mark.parametrize(("number", "build"), [(1, 0.0), (2, 5.0), (3, 2.5)])
def test_the_latest_start_and_the_smallest_fleet_of_a_deadline(hours: str, number: int, build: float) -> None:
    ends = START + timedelta(hours=101)
    of = fleet(number, items=1e6, old_model_ends=ends, hours=hours)

    def is_open(at: datetime) -> bool:
        return hours == "00:00-24:00" or at.hour >= 22 or at.hour < 6

    def in_time(workers: int, begin: datetime) -> bool:
        return finished_by(1e6, workers, begin, is_open) + timedelta(hours=build) <= ends

    deadline = find_deadline(assumed(of), of, START, build)
    assert deadline is not None
    assert deadline.workers == next(workers for workers in range(1, 30) if in_time(workers, START))
    starts = [hour for hour in range(101) if in_time(number, START + timedelta(hours=hour))]
    assert deadline.latest == (START + timedelta(hours=starts[-1]) if starts else None)
    assert deadline.finishes == bool(starts)


def test_a_deadline_that_nothing_makes_and_one_without_hours() -> None:
    soon = fleet(1, items=1e8, old_model_ends=START + timedelta(hours=24))
    deadline = find_deadline(assumed(soon), soon, START, math.nan)
    assert deadline is not None
    assert (deadline.finishes, deadline.latest, math.isnan(deadline.workers)) == (0, None, True)
    unknown = replace(soon, workers=(WorkersSettings(1),))
    assert find_deadline(assumed(unknown), unknown, START, math.nan) is None
    assert find_deadline(assumed(FAST), FAST, START, 0) is None


def test_part_of_the_items_is_no_switch() -> None:
    part = replace(SLOW, items=DAY_OF_ITEMS / 2, budget=BudgetSettings(items=0.3), old_model_ends=START + timedelta(9))
    known = assumed(part)
    options = find_options(evidence(), known, part, START, 5, spans=100)
    assert np.isinf(options.of(SWITCH).finish).all()
    said = judge(evidence(), known, options)
    assert said.verdict is not Verdict.SWITCH
    told = answers(evidence(), known, part, START, options, said, None)
    assert "never comes" in said.sentence
    assert "never" in told["When is it nearly done?"]
    assert "after" not in told["When is it nearly done?"]
    deadline = find_deadline(known, part, START, 0)
    assert deadline is not None
    assert deadline.finishes == 0


def test_a_wait_is_kept_in_nine_of_ten_runs() -> None:
    """Half of the runs end within it, which is not enough."""
    by, of = evidence(0.1, 0.01), FAST
    workers = (replace(of.workers[0], uncertainty=0.5),)
    known = assumed(replace(of, workers=workers), by)
    finish = find_options(by, known, replace(of, workers=workers), START, 200, spans=100).of(SWITCH).finish
    middle, late = np.quantile(finish, (0.5, 0.9))
    for wait, verdict in ((math.sqrt(middle * late), Verdict.OPEN), (1.1 * late, Verdict.SWITCH)):
        assert judged(by, replace(of, workers=workers, max_wait_hours=float(wait)), runs=200).verdict is verdict


@pytest.mark.parametrize(("first", "word"), [(0.45, "below"), (0.55, "above")])
def test_the_worst_time_is_below_or_above_the_old_service(first: float, word: str) -> None:
    by = evidence(0.1, 0.01, curves=(curve((first, first, first, 0.9, 0.9)),))
    known = assumed(SLOW, by)
    options = find_options(by, known, SLOW, START, 20, spans=100)
    told = answers(by, known, SLOW, START, options, judge(by, known, options), None)
    assert f"of mAP@10 {word} the old service" in told["Which time is worst?"]
