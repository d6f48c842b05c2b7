"""Every way to upgrade, over the same hours: its quality, dollars by part, memory, and which ways are dominated.

Ways differ in when users get the new model. Embedding, index and second partition cost the same in all of them, unless
the index holds up a merge; so what a merge costs more than a switch is mostly known also where those are not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from ray_backfill.plan.assumptions import Assumptions
from ray_backfill.plan.capacity import Backfill, run_backfill
from ray_backfill.plan.evidence import Curve, Evidence
from ray_backfill.plan.fleet import FleetSettings, traffic_of

Floats = NDArray[np.float64]

# Quantiles of whatever is random.
QUANTILES = (0.1, 0.5, 0.9)
# Standard deviations in a 95 % interval.
_WIDTH = 2 * 1.959964
_GB, _MONTH_H = 1e9, 720.0
# Moments of a plan at most: more are not drawn.
_MOMENTS = 200

SWITCH, ONLINE, CASCADE, TENANTS, NOTHING = "switch", "online", "cascade", "tenant by tenant", "do nothing"
# Both hold two vectors of each item, and nobody sees the new ones before the end.
_SWITCH = "second collection or added field, then switch"


@dataclass(frozen=True, eq=False)
class Choice:
    """A way to upgrade, in R runs.

    finish: (R,) hours until only the new model serves. dollars: part -> (R,), NaN if unknown. extra: the parts that a
    switch does not pay. longer: (R,) what the other parts cost more than those of a switch. lead: (R, M) quality minus
    the old service at the plan's moments. point_days: (R,) its sum over the plan's time, in percentage points x days,
    weighted by traffic. memory_gb: largest, NaN if unknown.
    """

    policy: str
    name: str
    curve: Curve | None
    finish: Floats
    dollars: Mapping[str, Floats]
    extra: tuple[str, ...]
    longer: Floats
    lead: Floats
    point_days: Floats
    memory_gb: float
    needs_old: bool

    @property
    def total(self) -> Floats:
        """(R,) dollars; NaN if a part is unknown."""
        return np.sum(list(self.dollars.values()), axis=0)

    @property
    def extra_dollars(self) -> Floats:
        """(R,) dollars that a switch does not cost."""
        return self.longer + sum(self.dollars[part] for part in self.extra)


@dataclass(frozen=True, eq=False)
class Options:
    """All ways, and the moments (M,) in hours over which they are compared. backfill: of a switch. online: of a merge,
    whose index is searched meanwhile.
    """

    choices: tuple[Choice, ...]
    hours: Floats
    backfill: Backfill
    online: Backfill

    def best(self, value_per_point_day: float = math.nan) -> Choice | None:
        """The merge to advise: that of the report, or the one that wins most dollars if a value is given."""
        merges = [choice for choice in self.choices if choice.policy == ONLINE]
        merges = [choice for choice in merges if choice.curve and choice.curve.lead.low > 0] or merges
        if math.isnan(value_per_point_day):
            return next(iter(merges), None)

        def won(choice: Choice) -> float:
            return float(
                np.nan_to_num(np.median(value_per_point_day * choice.point_days - choice.extra_dollars), nan=-math.inf)
            )

        return max(merges, key=won, default=None)

    def of(self, policy: str) -> Choice:
        """The only way of this policy."""
        return next(choice for choice in self.choices if choice.policy == policy)


def quantiles(values: Floats) -> tuple[float, float, float]:
    """10, 50 and 90 % of runs; NaN if unknown, infinite where runs never end."""
    if np.isnan(values).any():
        return math.nan, math.nan, math.nan
    low, middle, high = np.quantile(values, QUANTILES, method="inverted_cdf")
    return float(low), float(middle), float(high)


def find_options(
    evidence: Evidence, known: Assumptions, fleet: FleetSettings, start: datetime, runs: int = 1000, seed: int = 0,
    spans: int = 500,
) -> Options:  # fmt: skip
    """Evaluate every way. Cost: two simulations, and for each way a few arrays of runs x 200."""
    a = {name: quantity.value for name, quantity in known.items()}
    backfill = run_backfill(known, fleet, start, False, runs, seed, spans)
    online = run_backfill(known, fleet, start, True, runs, seed, spans) if a["index.build_hours"] > 0 else backfill
    of_index = np.nan_to_num(a["index.build_hours"])
    switched = backfill.finish + of_index
    merged = np.maximum(online.finish, 0.0)
    ends = np.concatenate([switched, merged])
    last = float(np.quantile(ends[np.isfinite(ends)], 0.9)) if np.isfinite(ends).any() else math.nan
    hours = np.linspace(0.0, last, _MOMENTS) if last > 0 else np.empty(0)
    z = np.random.default_rng(seed + 1).normal(size=len(switched))
    weights = _weights(fleet, start, hours)
    is_whole = (backfill.end >= 1 - 1e-9) if backfill.is_known else np.full(len(switched), False)
    step = evidence.step.value + z * (evidence.step.high - evidence.step.low) / _WIDTH
    price = a["query.dollars_per_million"] / 1e6
    queries_per_h = a["traffic.queries_per_day"] / 24
    gb = a["items"] * a["index.bytes_per_item"] / _GB
    per_hour = gb * a["index.dollars_per_gb_month"] / _MONTH_H

    # An index that is searched meanwhile may hold the workers for longer. A switch holds the second partition longer,
    # which is left out where its price is unknown.
    longer = np.zeros(len(merged))
    if online is not backfill:
        longer = online.dollars - backfill.dollars + np.nan_to_num((merged - switched) * per_hour)

    def shared(of: Backfill, until: Floats) -> dict[str, Floats]:
        return {
            "embedding": of.dollars,
            "index": np.full(len(until), a["index.build_hours"] * a["index.dollars_per_hour"]),
            "second partition": until * per_hour,
        }

    def choice(policy: str, name: str, curve: Curve | None, until: Floats, dollars: dict[str, Floats], lead: Floats,
               extra: tuple[str, ...] = (), memory: float = 2 * gb, needs_old: bool = True) -> Choice:  # fmt: skip
        """With the quality summed over time, and traffic."""
        sums: Floats = np.full(len(until), math.nan)
        if len(hours):
            sums = np.asarray(100 * np.trapezoid(lead * weights, hours, axis=1) / 24)
        # Where the budget pays a part of the items, the old model serves on.
        never = ((backfill if policy == SWITCH else online).end < 1 - 1e-9) & (policy != NOTHING)
        until = np.where(never, math.inf, until)
        more = longer if extra else np.zeros(len(until))
        return Choice(policy, name, curve, until, dollars, extra, more, lead, sums, memory, needs_old)

    is_new = (hours[None, :] >= switched[:, None]) & is_whole[:, None]
    after = step[:, None] * is_new
    choices = [
        choice(SWITCH, _SWITCH, None, switched, shared(backfill, switched), after),
        choice(
            NOTHING,
            "do nothing",
            None,
            np.zeros(len(switched)),
            {"embedding": np.zeros(len(switched))},
            0 * after,
            memory=gb,
        ),
    ]
    share = _shares(online, hours)
    if fleet.tenants:
        of_tenants = step[:, None] * share
        meanwhile = np.mean(share, axis=1) if len(hours) else np.full(len(merged), math.nan)
        dollars = shared(online, merged) | {
            "queries": 0.0 * meanwhile,
            "setup": np.full(len(merged), a["setup_dollars"]),
        }
        choices.append(
            choice(TENANTS, "each tenant when it is finished", None, merged, dollars, of_tenants, ("queries", "setup"))
        )
    for curve in evidence.curves:
        spread = (curve.lead.high - curve.lead.low) / _WIDTH
        lead = np.interp(share, curve.t, curve.value) - evidence.old + z[:, None] * spread
        dollars = shared(online, merged) | {"setup": np.full(len(merged), a["setup_dollars"])}
        dollars["queries"] = merged * queries_per_h * price
        extra = ["setup", "queries"]
        if curve.maps_items:
            group = fleet.workers[0].name if fleet.workers else ""
            dollars["mapped vectors"] = np.full(
                len(merged), a["prepare.hours"] * a.get(f"{group}.dollars_per_hour", math.nan)
            )
            extra.append("mapped vectors")
        if curve.is_cascade:
            of_item = online.dollars / a["items"]
            embedded = np.interp(share, curve.t, curve.per_query)
            often = np.trapezoid(embedded, hours, axis=1) if len(hours) else np.full(len(merged), math.nan)
            dollars["re-ranking"] = often * queries_per_h * of_item
            extra.append("re-ranking")
        policy = CASCADE if curve.is_cascade else ONLINE
        choices.append(
            choice(policy, curve.name, curve, merged, dollars, lead, tuple(extra), needs_old=curve.needs_old)
        )
    return Options(tuple(choices), hours, backfill, online)


def _shares(backfill: Backfill, hours: Floats) -> Floats:
    """(R, M) share that is backfilled at each moment."""
    if not len(hours):
        return np.empty((len(backfill.finish), 0))
    place = np.clip(np.searchsorted(backfill.hours, hours, side="right") - 1, 0, len(backfill.hours) - 2)
    begin, end, finish = backfill.hours[place], backfill.hours[place + 1], backfill.finish[:, None]
    # Within a span the share grows evenly, until the run is finished.
    until = np.where((finish > begin) & (finish < end), finish, end)
    weight = np.clip((hours - begin) / (until - begin), 0.0, 1.0)
    share = backfill.share.astype(np.float64)
    between: Floats = share[:, place] * (1 - weight) + share[:, place + 1] * weight
    return between


def _weights(fleet: FleetSettings, start: datetime, hours: Floats) -> Floats:
    """(M,) traffic at each moment relative to its mean, by the hour of the week; 1 without a log of queries."""
    if fleet.traffic.log is None or not len(hours):
        return np.ones(len(hours))
    of_week, _ = traffic_of(fleet.traffic.log)
    first = start.weekday() * 24 + start.hour + start.minute / 60
    return 168 * of_week[(first + hours).astype(np.int64) % 168]


def dominated(options: Options) -> dict[str, str]:
    """Way -> another one that costs no more and gives no less, and is better in one; among those fully known."""
    both = {c.name: (quantiles(c.total)[1], quantiles(c.point_days)[1]) for c in options.choices}
    known = {name: numbers for name, numbers in both.items() if not np.isnan(numbers).any()}
    return {
        name: other
        for name, (cost, gives) in known.items()
        for other, (its_cost, its_gives) in known.items()
        if its_cost <= cost and its_gives >= gives and (its_cost, its_gives) != (cost, gives)
    }
