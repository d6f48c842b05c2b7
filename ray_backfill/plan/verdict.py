"""What to do, by one inequality that is printed with its numbers, and what would change it."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

import numpy as np

from ray_backfill.core.outcome import Decision
from ray_backfill.core.progress import track
from ray_backfill.page.numbers import count, interval, listed, points
from ray_backfill.plan.assumptions import Assumptions, Origin
from ray_backfill.plan.capacity import run_backfill
from ray_backfill.plan.evidence import Evidence
from ray_backfill.plan.fleet import FleetSettings
from ray_backfill.plan.options import SWITCH, Choice, Options, find_options, quantiles
from ray_backfill.plan.tables import FlipRow
from ray_backfill.plan.words import dollars, hours

# Results that need more than so many times what they have are not worth asking for.
_MOST_MORE = 100
# Share of runs that must be in time.
_SURE = 0.9
# Of the search for what flips a verdict: runs, the factors that are tried, and how close the flip is found.
_RUNS, _SPANS, _FACTORS, _CLOSE = 100, 100, (1.25, 1.5, 2.0, 4.0, 10.0, 100.0), 1.02


class Verdict(Enum):
    """What a plan says."""

    SWITCH = "Rebuild beside the old index and switch"
    ONLINE = "Merge online"
    OPEN = "Open"
    EXPAND = "Measure more"
    STOP = "Do not upgrade"

    @property
    def decision(self) -> Decision:
        """Of a command that ends with it."""
        is_open = self in (Verdict.OPEN, Verdict.EXPAND)
        return Decision.STOP if self is Verdict.STOP else Decision.OPEN if is_open else Decision.GO


@dataclass(frozen=True)
class Judged:
    """A verdict. sentence: what to do. inequality: what it follows from. choice: the merge that it is about."""

    verdict: Verdict
    sentence: str
    inequality: str
    choice: Choice | None = None


def judge(evidence: Evidence, known: Assumptions, options: Options) -> Judged:
    """The verdict: the first of these inequalities that holds."""
    step, unit = evidence.step, evidence.more
    if math.isnan(step.value):
        said = f"Open: no quality was measured; a rebuild takes {hours(quantiles(options.of(SWITCH).finish)[1])}."
        return Judged(Verdict.OPEN, said, "Unknown: what the upgrade is worth; run simulate or forecast")
    limits = f"{points(step.value)} of {evidence.metric} (95 % interval {interval(step.low, step.high)})"
    if evidence.decision is Decision.STOP or step.high < 0:
        return Judged(Verdict.STOP, f"Do not upgrade: the new model is worse: {limits}.", f"{limits} is below 0")
    if step.low <= 0:
        # The width of an interval falls as one over the root of their number.
        needed = evidence.enough * ((step.high - step.low) / 2 / abs(step.value)) ** 2 if step.value else math.inf
        shown = f"{limits} contains 0, with {count(evidence.enough)} {unit}"
        if needed > _MOST_MORE * evidence.enough:
            return Judged(Verdict.OPEN, f"Open: the two models cannot be told apart: {limits}.", shown)
        more = f"some {count(max(needed - evidence.enough, 1))} more {unit}"
        return Judged(Verdict.EXPAND, f"Measure more: {more} would show whether the new model is better.", shown)
    if evidence.decision is Decision.OPEN:
        said = "Open: metrics contradict each other about the new model; the report of the results says how."
        return Judged(Verdict.OPEN, said, f"{limits} is above 0, and another metric is not")
    switch, value, wait = options.of(SWITCH), known["value_per_point_day"].value, known["max_wait_hours"].value
    best, (_, took, late), bill = options.best(value), quantiles(switch.finish), quantiles(switch.total)[1]
    took_words = "" if math.isnan(took) else f": {hours(took)}" + f" and {dollars(bill)}" * (not math.isnan(bill))
    rebuild = f"Rebuild beside the old index and switch{took_words}"
    lead = best.curve.lead if best and best.curve else None
    if best is None or lead is None or not lead.low > 0:
        shown, better = "no merge", "no merge is shown to serve better than the old service"
        if best and lead:
            shown = f"{best.name}: {points(lead.value)} above old, at least {points(lead.low)}"
        if took == math.inf:
            return Judged(Verdict.OPEN, f"Open: {better}, and in this fleet a switch never comes.", shown, best)
        return Judged(Verdict.SWITCH, f"{rebuild}; {better} meanwhile.", shown, best)
    unknown = [name for name, quantity in known.items() if quantity.origin is Origin.UNKNOWN]
    lacks = f"Unknown: {listed([name for name in unknown if name != 'value_per_point_day'] or ['rates'], 'and')}"
    if math.isnan(took):
        meanwhile = f"meanwhile {best.name} serves {points(lead.value)} more than the old service"
        said = f"Open: hours are unknown, which ray-backfill measure and --fleet tell; {meanwhile}."
        return Judged(Verdict.OPEN, said, lacks, best)
    won, price = best.point_days - switch.point_days, quantiles(best.extra_dollars)[1]
    low, gain, high = quantiles(won)
    gains = f"merging online with {best.name} would win {gain:,.1f} point-days ({low:,.1f} to {high:,.1f})"
    if math.isnan(value):
        if late <= wait:
            shown = f"{hours(late)} in 90 % of runs <= max_wait_hours {wait:g} h"
            return Judged(Verdict.SWITCH, f"{rebuild}; {gains}.", shown, best)
        # Not a guess of what quality is worth: the value from which on merging wins.
        even = f"it is worth it if a point-day is worth more than {dollars(price / gain if gain > 0 else math.inf)}"
        even = "what it costs is unknown" if math.isnan(price) else even
        ends = f"takes {hours(took)}" if took < math.inf else "never comes"
        shown = f"{hours(late)} in 90 % of runs > max_wait_hours {wait:g} h, and value_per_point_day is not given"
        return Judged(Verdict.OPEN, f"Open: a switch {ends}; {gains}, and {even}.", shown, best)
    worst, net, most = quantiles(value * won - best.extra_dollars)
    if math.isnan(net):
        return Judged(Verdict.OPEN, f"Open: {gains}, and what it costs is unknown.", lacks, best)
    sums = f"{dollars(value)} x {gain:,.1f} point-days - {dollars(price)} = {dollars(net)}"
    shown = f"{sums} ({dollars(worst)} to {dollars(most)})"
    if worst > 0:
        said = f"Merge online with {best.name}: worth {dollars(net)} more than a switch after {hours(took)}."
        return Judged(Verdict.ONLINE, said, f"{shown} is above 0", best)
    if most < 0:
        said = f"{rebuild}; {gains}, which costs more than it is worth."
        return Judged(Verdict.SWITCH, said, f"{shown} is below 0", best)
    said = f"Open: {gains}; that may be worth less than the {dollars(price)} it costs."
    return Judged(Verdict.OPEN, said, f"{shown} contains 0", best)


def find_flips(
    evidence: Evidence, assumed: Callable[[Mapping[str, float]], Assumptions], fleet: FleetSettings, start: datetime
) -> list[FlipRow]:
    """For each assumption the nearest value at which the verdict changes, the nearest first, up to a factor of 100.

    assumed: makes the assumptions with other values of some. Cost: some 20 plans of 100 runs for each assumption.
    """

    def verdict_at(name: str, factor: float) -> Verdict:
        changed = assumed({name: known[name].value * factor})
        return judge(evidence, changed, find_options(evidence, changed, fleet, start, _RUNS, _SPANS)).verdict

    def searched(name: str) -> Iterator[FlipRow]:
        for direction in (1, -1):
            inside = 1.0
            for size in _FACTORS:
                factor = size**direction
                if name == "share" and known[name].value * factor > 1:
                    break
                if (other := verdict_at(name, factor)) is not today:
                    while max(factor / inside, inside / factor) > _CLOSE:
                        middle = math.sqrt(factor * inside)
                        if (verdict := verdict_at(name, middle)) is today:
                            inside = middle
                        else:
                            factor, other = middle, verdict
                    quantity = known[name]
                    value = quantity.value
                    yield FlipRow(name, quantity.unit, value, value * factor, factor, other.value)
                    break
                inside = factor

    known = assumed({})
    today = judge(evidence, known, find_options(evidence, known, fleet, start, _RUNS, _SPANS)).verdict
    names = [name for name, quantity in known.items() if math.isfinite(quantity.value) and quantity.value]
    flips = [flip for name in track(names, "find what changes the verdict", "assumptions") for flip in searched(name)]
    return sorted(flips, key=lambda flip: abs(math.log(flip.factor)))


@dataclass(frozen=True)
class Deadline:
    """Before the old model ends. finishes: share of runs that are finished by then. latest: start with which 90 % are,
    None if none is. workers: smallest number, of all groups together, with which 90 % are; NaN if none or unknown.
    """

    ends: datetime
    finishes: float
    latest: datetime | None
    workers: float


def find_deadline(known: Assumptions, fleet: FleetSettings, start: datetime, build_hours: float) -> Deadline | None:
    """Whether a backfill is finished before the old model ends, and what would do it; None without an end or hours."""
    if (ends := fleet.old_model_ends) is None:
        return None

    def in_time(begin: datetime, factor: float = 1.0) -> float:
        names = [f"{group.name}.number" for group in fleet.workers]
        more = {name: replace(known[name], value=known[name].value * factor) for name in names}
        whole = run_backfill(known | more, fleet, begin, False, _RUNS, _SPANS).whole
        finish = whole + np.nan_to_num(build_hours)
        share = float(np.mean(finish <= (ends - begin).total_seconds() / 3600))
        return math.nan if np.isnan(finish).any() else share

    finished = in_time(start)
    if math.isnan(finished):
        return None
    latest, workers = None, math.nan
    if finished >= _SURE:
        all_hours = range(math.ceil((ends - start).total_seconds() / 3600))
        late = bisect_left(all_hours, True, key=lambda hour: in_time(start + timedelta(hours=hour)) < _SURE)
        latest = start + timedelta(hours=late - 1)
    if total := sum(known[f"{group.name}.number"].value for group in fleet.workers):
        most = next((factor for factor in (1, 2, 4, 8, 16, 32) if in_time(start, factor) >= _SURE), math.nan)
        if not math.isnan(most):
            numbers = range(1, math.ceil(total * most))
            workers = 1 + bisect_left(numbers, True, key=lambda number: in_time(start, number / total) >= _SURE)
    return Deadline(ends, finished, latest, workers)
