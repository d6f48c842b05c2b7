"""How far a backfill is at every hour, what it has cost, and when it is finished: one function of time, run many times.

The model is a fluid: in a short span of time every worker embeds its rate times the time that it serves. Capacity is
the smallest of what workers, a limit and the index take. Random are the workers' rates and where in a trace of spot
instances a run begins; everything else is as given. What a worker loses when it is taken away is its start.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import minimum_filter1d

from ray_backfill.plan.assumptions import Assumptions
from ray_backfill.plan.fleet import FleetSettings, Trace, open_minutes, pauses_of, read_traces

Floats = NDArray[np.float64]

# Minutes of a span: divisors of an hour, so that days begin with a span.
_SPANS = (1, 2, 5, 10, 15, 30, 60)
# The most spans that are computed: at an hour each, 11 years; and those that are computed at once.
_MOST, _BLOCK = 100_096, 256
# A backfill that gains nothing for so many minutes, two weeks, never ends: its hours and days repeat each week.
_STALLED = 2 * 10080


@dataclass(frozen=True, eq=False)
class Backfill:
    """R runs of a backfill.

    hours: (T,) moments since the start. share: (R, T) of the items that are backfilled or arrived since, float32.
    finish: (R,) hours until the items are embedded, or what the budget pays; infinite if it never is. end: (R,) share
    that is reached. dollars: (R,) for embedding. slowest: what limits it.
    """

    hours: Floats
    share: NDArray[np.float32]
    finish: Floats
    end: Floats
    dollars: Floats
    slowest: str

    @property
    def is_known(self) -> bool:
        """Whether anything about time is known."""
        return bool(len(self.hours))

    @property
    def whole(self) -> Floats:
        """(R,) hours until all items are embedded; infinite if the budget pays a part of them."""
        return np.where(self.end < 1 - 1e-9, math.inf, self.finish)


_NAN = np.full(1, math.nan)
UNKNOWN = Backfill(np.empty(0), np.empty((1, 0), np.float32), _NAN, _NAN, _NAN, "")


def run_backfill(
    known: Assumptions, fleet: FleetSettings, start: datetime, with_index: bool, runs: int = 1000, spans: int = 500
) -> Backfill:
    """Run a backfill many times; every call draws the same random numbers.

    with_index: whether items are inserted into a searched index as they are embedded, which may limit it. Time and
    dollars are NaN if a rate is unknown; dollars alone if a price is. spans: that an undisturbed backfill takes; a span
    is between a minute and an hour. Cost: grows with runs and spans.
    """
    a: Mapping[str, float] = {name: quantity.value for name, quantity in known.items()}
    items, inserted_per_h = a["items"], a["inserted_per_day"] / 24
    rng, groups, price_per_item = np.random.default_rng(0), [group.name for group in fleet.workers], 0.0
    numbers, prices = ([a[f"{group}.{name}"] for group in groups] for name in ("number", "dollars_per_hour"))
    # Lognormal, so that no rate is negative, with the rate as its median.
    rows = [known[f"{group}.items_per_s"] for group in groups]
    rates = [row.value * np.exp(math.sqrt(math.log1p(row.spread**2)) * rng.normal(size=runs)) for row in rows]
    of_provider = a.get("provider.items_per_s", math.nan)
    if fleet.provider:
        price_per_item = a["provider.tokens_per_item"] * a["provider.dollars_per_million_tokens"] / 1e6
    most = sum((number * rate for number, rate in zip(numbers, rates, strict=True)), np.zeros(runs))
    most = most * a["share"] + (np.nan_to_num(of_provider) if fleet.provider else 0.0)
    is_known = bool(groups) or not math.isnan(of_provider)
    is_priced = not any(map(math.isnan, (*prices, price_per_item)))
    has_budget = min(fleet.budget.dollars, fleet.budget.dollars_per_day) < math.inf
    if not is_known or np.isnan(most).any() or not most.max() > 0 or (has_budget and not is_priced):
        return UNKNOWN
    limits = {"limit_items_per_s": a["limit_items_per_s"]}
    if with_index and not math.isnan(a["index.build_hours"]) and a["index.build_hours"] > 0:
        limits["the index"] = items / a["index.build_hours"] / 3600
    limit, slowest = min((value, name) for name, value in limits.items())
    if limit >= np.median(most):
        slowest = "the provider's limits" if fleet.provider else "embedding"
    clock = _Clock(fleet, start, rng, runs)
    guess_h = items / (min(limit, float(np.median(most))) * 3600) / clock.mean_open
    span = max((minutes for minutes in _SPANS if minutes <= 60 * guess_h / spans), default=_SPANS[0])
    span_h, goal = span / 60, fleet.budget.items * items
    done, spent, of_day, waiting, arriving = *np.zeros((4, runs)), inserted_per_h * span_h
    finish, shares, hours = np.full(runs, math.inf), [np.zeros(runs, np.float32)], [0.0]
    day, most_done = start.date(), 0.0
    moved = max((round((end - start).total_seconds() / 60) for _, end in pauses_of(fleet)), default=0)
    for first in range(0, _MOST, _BLOCK):
        edges = span * np.arange(first, first + _BLOCK + 1)
        opened_B = np.diff(clock.opened(edges[-1])[edges]) / 60
        could_BR, cost_BR = np.zeros((_BLOCK, runs)), np.zeros((_BLOCK, runs))
        for place in range(len(groups)):
            served_BR, held_BR = clock.of_workers(place, edges)
            could_BR += numbers[place] * rates[place] * served_BR * (3600 * a["share"])
            cost_BR += numbers[place] * prices[place] * held_BR
        if fleet.provider:
            could_BR += of_provider * 3600 * opened_B[:, None]
        if limit < math.inf:
            could_BR = np.minimum(could_BR, limit * 3600 * opened_B[:, None])
        cost_BR += price_per_item * could_BR
        with np.errstate(divide="ignore", invalid="ignore"):
            for could, cost, number in zip(could_BR, cost_BR, range(first, first + _BLOCK), strict=True):
                # The part of the span until the items are done, or the money of the day or of the budget is. New items
                # come first, also those that wait since nothing ran.
                needed = np.where(could > arriving, (goal - done + waiting) / (could - arriving), math.inf)
                part = np.ones(runs)
                if has_budget:
                    if (now := (start + timedelta(minutes=number * span)).date()) != day:
                        day, of_day = now, np.zeros(runs)
                    allowed = np.minimum(fleet.budget.dollars - spent, fleet.budget.dollars_per_day - of_day)
                    part = np.where(cost > 0, np.minimum(part, np.maximum(allowed, 0.0) / cost), part)
                is_over, is_running = needed <= part, finish == math.inf
                part = np.where(is_running, np.minimum(part, needed), 0.0)
                waiting = waiting + arriving * np.where(is_over, part, is_running)
                of_new = np.minimum(part * could, waiting)
                done, waiting = done + part * could - of_new, waiting - of_new
                spent, of_day = spent + part * cost, of_day + part * cost
                is_over |= spent >= fleet.budget.dollars * (1 - 1e-12)
                finish = np.where(is_over & is_running, (number + part) * span_h, finish)
                hours.append((number + 1) * span_h)
                arrived = inserted_per_h * hours[-1]
                shares.append(((done + arrived - waiting) / (items + arrived)).astype(np.float32))
                if (finish < math.inf).all():
                    break
        if done.sum() > most_done:
            most_done, moved = done.sum(), max(moved, int(edges[-1]))
        if (finish < math.inf).all() or edges[-1] > moved + _STALLED:
            break
    paid = spent if is_priced else np.full(runs, math.nan)
    return Backfill(np.array(hours), np.stack(shares, axis=1), finish, done / items, paid, slowest)


class _Clock:
    """When the backfill may run, and which workers it has then, in hours of a span that begins at a minute."""

    def __init__(self, fleet: FleetSettings, start: datetime, rng: np.random.Generator, runs: int) -> None:
        self._week, self._pauses, self._start = open_minutes(fleet), pauses_of(fleet), start
        self._groups, self._open, self._served = fleet.workers, np.zeros(1), [np.zeros(1) for _ in fleet.workers]
        self._spot: list[tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None] = []
        mean_spot = []
        for group in fleet.workers:
            if group.spot is None:
                self._spot.append(None)
                continue
            minutes = [_in_minutes(trace, group.number) for trace in read_traces(group.spot)]
            serving = [_after_start(trace, group.start_minutes, is_ring=True) for trace in minutes]
            chosen = rng.integers(len(minutes), size=runs)
            lengths = np.array([len(trace) for trace in minutes])
            # Cumulated, one trace behind the other, each with a zero before it.
            of_held, of_served = (
                np.concatenate([np.concatenate([[0.0], np.cumsum(trace)]) for trace in traces])
                for traces in (minutes, serving)
            )
            firsts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])[chosen]
            offsets = rng.integers(lengths[chosen])
            self._spot.append((of_held, of_served, firsts, lengths[chosen], offsets))
            mean_spot.append(max(1e-3, float(np.mean([trace.mean() for trace in minutes]))))
        self.mean_open = max(float(self._week.mean()), 1e-3) * min(mean_spot, default=1.0)

    def opened(self, minute: int) -> Floats:
        """Minutes until each minute, up to this one at least, in which the backfill may run."""
        self._extend(minute)
        return self._open

    def of_workers(self, place: int, edges: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(B, 1) or (B, R) hours of each span between edges that a worker of a group embeds, and that it is held."""
        self._extend(int(edges[-1]))
        served, held = (np.diff(minutes[edges])[:, None] / 60 for minutes in (self._served[place], self._open))
        if (spot := self._spot[place]) is None:
            return served, held
        of_held, of_served, firsts, lengths, offsets = spot
        rounds, rest = np.divmod(offsets + edges[:, None], lengths)
        span = edges[1] - edges[0]
        of_span = (
            np.diff(rounds * sums[firsts + lengths] + sums[firsts + rest], axis=0) / span
            for sums in (of_served, of_held)
        )
        return served * next(of_span), held * next(of_span)

    def _extend(self, minute: int) -> None:
        """Make the sums reach a minute after the start."""
        if minute < len(self._open):
            return
        length = max(2 * minute, 4 * 10080)
        first = self._start.weekday() * 1440 + self._start.hour * 60 + self._start.minute
        is_open = self._week[(first + np.arange(length)) % len(self._week)].astype(np.float64)
        for begin, end in self._pauses:
            places = [max(0, round((at - self._start).total_seconds() / 60)) for at in (begin, end)]
            is_open[places[0] : places[1]] = 0.0
        self._open = np.concatenate([[0.0], np.cumsum(is_open)])
        self._served = [
            np.concatenate([[0.0], np.cumsum(_after_start(is_open, group.start_minutes, is_ring=False))])
            for group in self._groups
        ]


def _in_minutes(trace: Trace, number: float) -> Floats:
    """(M,) share of so many workers that a trace has at each minute.

    A trace that never shows as many says when all of them are there, in proportion to its largest number.
    """
    seconds = np.arange(0, len(trace.available) * trace.gap_s, 60.0)
    of_minute = trace.available[(seconds // trace.gap_s).astype(np.int64)]
    return np.minimum(of_minute, number) / min(number, trace.available.max())


def _after_start(available: Floats, start_minutes: float, is_ring: bool) -> Floats:
    """What serves of what is available: whoever comes serves after the minutes of its start."""
    length = math.ceil(start_minutes) + 1
    if length == 1:
        return available
    mode = "wrap" if is_ring else "constant"
    # The smallest number of the last minutes: of this one and those before it.
    smallest: Floats = minimum_filter1d(available, length, mode=mode, cval=0.0, origin=(length - 1) // 2)
    return smallest
