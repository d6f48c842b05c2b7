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

# Both switches hold two vectors of each item, and nobody sees the new ones before the end. A second collection copies
# payloads, too; so what a merge costs more is compared with an added field.
SWITCH, COLLECTION = "added field", "second collection"
ONLINE, CASCADE, TENANTS, NOTHING = "online", "cascade", "tenant by tenant", "do nothing"


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
            net = np.median(value_per_point_day * choice.point_days - choice.extra_dollars)
            return float(np.nan_to_num(net, nan=-math.inf))

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
    evidence: Evidence, known: Assumptions, fleet: FleetSettings, start: datetime, runs: int = 1000, spans: int = 500
) -> Options:
    """Evaluate every way. Cost: two simulations, and for each way a few arrays of runs x 200."""
    a = {name: quantity.value for name, quantity in known.items()}
    backfill = run_backfill(known, fleet, start, False, runs, spans)
    online = run_backfill(known, fleet, start, True, runs, spans) if a["index.build_hours"] > 0 else backfill
    switched = backfill.finish + np.nan_to_num(a["index.build_hours"])
    merged = np.maximum(online.finish, 0.0)
    ends = np.concatenate([switched, merged])
    last = float(np.quantile(ends[np.isfinite(ends)], 0.9)) if np.isfinite(ends).any() else math.nan
    hours = np.linspace(0.0, last, _MOMENTS) if last > 0 else np.empty(0)
    z = np.random.default_rng(1).normal(size=len(switched))
    weights = _weights(fleet, start, hours)
    is_whole = (backfill.end >= 1 - 1e-9) if backfill.is_known else np.full(len(switched), False)
    step = evidence.step.value + z * (evidence.step.high - evidence.step.low) / _WIDTH
    gb, payload_gb = (a["items"] * a[f"index.{name}"] / _GB for name in ("bytes_per_item", "payload_bytes_per_item"))
    gb_hour = a["index.dollars_per_gb_month"] / _MONTH_H

    # An index that is searched meanwhile may hold the workers for longer. A switch holds the second partition longer,
    # which is left out where its price is unknown.
    longer = np.zeros(len(merged))
    if online is not backfill:
        with np.errstate(invalid="ignore"):  # where neither ever ends
            longer = online.dollars - backfill.dollars + np.nan_to_num((merged - switched) * gb * gb_hour)
    choices = list[Choice]()

    def add(policy: str, name: str, of: Backfill, lead: Floats, extra: Mapping[str, Floats] | None = None,
            curve: Curve | None = None, copied_gb: float = gb) -> None:  # fmt: skip
        """A way whose items are embedded as in a backfill. copied_gb: what is held beside the index of old vectors."""
        until = switched if extra is None else merged
        dollars = {
            "embedding": of.dollars,
            "index": np.full(len(until), a["index.build_hours"] * a["index.dollars_per_hour"]),
            "second partition": until * (copied_gb * gb_hour),
            **(extra or {}),
        }
        # Where the budget pays a part of the items, the old model serves on.
        until = np.where(of.end < 1 - 1e-9, math.inf, until)
        more = np.zeros(len(until)) if extra is None else longer
        choices.append(Choice(
            policy, name, curve, until, dollars, tuple(extra or ()), more, lead, _summed(lead, weights, hours),
            gb + copied_gb, curve is None or curve.needs_old,
        ))  # fmt: skip

    after = step[:, None] * ((hours[None, :] >= switched[:, None]) & is_whole[:, None])
    add(SWITCH, "switch to an added field", backfill, after)
    add(COLLECTION, "switch to a second collection", backfill, after, copied_gb=gb + payload_gb)
    none = np.zeros(len(switched))
    choices.append(Choice(
        NOTHING, NOTHING, None, none, {"embedding": none}, (), none, 0 * after, _summed(0 * after, weights, hours), gb,
        True,
    ))  # fmt: skip
    share, setup = _shares(online, hours), {"setup": np.full(len(merged), a["setup_dollars"])}
    if fleet.tenants:
        free = np.zeros(len(merged)) if len(hours) else np.full(len(merged), math.nan)
        add(TENANTS, "each tenant when it is finished", online, step[:, None] * share, {"queries": free} | setup)
    queries_per_h = a["traffic.queries_per_day"] / 24
    for curve in evidence.curves:
        spread = (curve.lead.high - curve.lead.low) / _WIDTH
        lead = np.interp(share, curve.t, curve.value) - evidence.old + z[:, None] * spread
        extra = setup | {"queries": merged * queries_per_h * (a["query.dollars_per_million"] / 1e6)}
        if curve.maps_items:
            group = fleet.workers[0].name if fleet.workers else ""
            price = a["prepare.hours"] * a.get(f"{group}.dollars_per_hour", math.nan)
            extra["mapped vectors"] = np.full(len(merged), price)
        if curve.is_cascade:
            embedded = np.interp(share, curve.t, curve.per_query)
            often = np.trapezoid(embedded, hours, axis=1) if len(hours) else np.full(len(merged), math.nan)
            extra["re-ranking"] = often * queries_per_h * (online.dollars / a["items"])
        add(CASCADE if curve.is_cascade else ONLINE, curve.name, online, lead, extra, curve)
    return Options(tuple(choices), hours, backfill, online)


def _summed(lead: Floats, weights: Floats, hours: Floats) -> Floats:
    """(R,) percentage points x days of (R, M) leads; NaN without moments."""
    if not len(hours):
        return np.full(len(lead), math.nan)
    return np.asarray(100 * np.trapezoid(lead * weights, hours, axis=1) / 24)


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
