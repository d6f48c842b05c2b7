"""Every number that a plan rests on, with where it comes from. Unknown is NaN, and stays so in what follows."""

import math
from collections.abc import Mapping
from datetime import date
from enum import StrEnum

from ray_backfill.core.errors import InputError
from ray_backfill.data.identity import short_name
from ray_backfill.plan.evidence import Evidence
from ray_backfill.plan.fleet import FleetSettings, ProviderSettings, traffic_of
from ray_backfill.plan.prices import find_price
from ray_backfill.plan.rates import Rates, build_seconds, read_rates
from ray_backfill.plan.tables import AssumptionRow


class Origin(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    GIVEN = "given"
    MODELLED = "modelled"
    TABLE = "table"
    UNKNOWN = "unknown"


Assumptions = dict[str, AssumptionRow]


def assume(
    evidence: Evidence, fleet: FleetSettings, today: date, changed: Mapping[str, float] | None = None
) -> Assumptions:
    """The assumptions of a plan, by name. changed: other values of some; what follows from these follows them.

    Raises:
        InputError: rates.json was measured with another model, or the provider's model is in no table.
    """
    known = {name: AssumptionRow(name, value, "", Origin.GIVEN, "changed") for name, value in (changed or {}).items()}
    rates, index, traffic = _rates_of(evidence, fleet), fleet.index, fleet.traffic
    pace, dims = rates.pace if rates else None, evidence.dims or (rates.dimensions if rates else 0)
    _put(known, "items", "items", fleet.items, evidence.items, "gallery of the results", Origin.MEASURED)
    _put(known, "inserted_per_day", "items per day", fleet.inserted_per_day)
    for group in fleet.workers:
        _put(known, f"{group.name}.number", "workers", group.number)
        rate, source, spread = math.nan, "", group.uncertainty
        if rates and pace and math.isnan(group.items_per_s):
            slowest = f"; alone, {rates.slowest.stage} is the slowest" if rates.slowest else ""
            rate, source = pace.items_per_s, f"rates.json: {pace.stage}{slowest}"
            spread = pace.spread if math.isnan(spread) else spread
        name, unit = f"{group.name}.items_per_s", "items per s and worker"
        _put(known, name, unit, group.items_per_s, rate, source, Origin.MEASURED, spread)
        _put(known, f"{group.name}.dollars_per_hour", "$ per h and worker", group.dollars_per_hour)
    if fleet.provider:
        _add_provider(known, fleet.provider, rates, today)
    _put(known, "share", "share of the time", fleet.share)
    _put(known, "limit_items_per_s", "items per s", fleet.limit_items_per_s)
    build_s, source = math.nan, ""
    if rates and index.kind:
        build_s = build_seconds(rates.builds, index.kind, dims, round(known["items"].value))[1]
        source = f"rates.json: {index.kind}, extrapolated by a power law"
    _put(known, "index.build_hours", "h", index.build_hours, build_s / 3600, source)
    _put(known, "index.dollars_per_hour", "$ per h", index.dollars_per_hour)
    source = f"{dims} dimensions of 4 bytes, without links of a graph" if dims else ""
    _put(known, "index.bytes_per_item", "bytes", index.bytes_per_item, 4.0 * dims or math.nan, source)
    _put(known, "index.payload_bytes_per_item", "bytes", index.payload_bytes_per_item)
    _put(known, "index.dollars_per_gb_month", "$ per GB and month", index.dollars_per_gb_month)
    per_day, source = (traffic_of(traffic.log)[1], traffic.log.name) if traffic.log else (math.nan, "")
    _put(known, "traffic.queries_per_day", "queries per day", traffic.queries_per_day, per_day, source, Origin.MEASURED)
    dollars, source = math.nan, ""
    if "provider.tokens_per_query" in known:
        dollars = known["provider.tokens_per_query"].value * known["provider.dollars_per_million_tokens"].value
        source = "tokens of a query x price"
    elif fleet.workers:
        first = fleet.workers[0].name
        dollars = 1e6 * known[f"{first}.dollars_per_hour"].value / 3600 / known[f"{first}.items_per_s"].value
        source = f"a query costs what an item costs on {first}"
    per_million = traffic.dollars_per_million_queries
    _put(known, "query.dollars_per_million", "$ per million queries", per_million, dollars, source)
    moved = [stage.items_per_s for stage in rates.stages if stage.stage in ("read", "write")] if rates else []
    rate, source = (min(moved), "rates.json: one worker reads and writes every vector") if moved else (math.nan, "")
    _put(known, "prepare.hours", "h", math.nan, known["items"].value / rate / 3600, source)
    _put(known, "value_per_point_day", "$ per point and day", fleet.value_per_point_day)
    _put(known, "setup_dollars", "$", fleet.setup_dollars)
    _put(known, "max_wait_hours", "h", fleet.max_wait_hours)
    return known


def _put(
    known: Assumptions, name: str, unit: str, given: float, other: float = math.nan, source: str = "",
    origin: Origin = Origin.MODELLED, spread: float = math.nan,
) -> None:  # fmt: skip
    """Add the number that is given, otherwise the other one, which has this source and origin."""
    given_by = "fleet.yaml"
    if name in known:  # a changed one
        given, given_by = known[name].value, known[name].source
    if not math.isnan(given):
        other, origin, source = given, Origin.GIVEN, given_by
    elif math.isnan(other):
        origin, source = Origin.UNKNOWN, source or "neither given nor measured"
    known[name] = AssumptionRow(name, float(other), unit, origin, source, 0.0 if math.isnan(spread) else spread)


def _rates_of(evidence: Evidence, fleet: FleetSettings) -> Rates | None:
    if fleet.rates is None:
        return None
    rates = read_rates(fleet.rates)
    measured = short_name(rates.identity) if rates.identity else ""
    sizes = (f"a model of {size} dimensions" if size else "" for size in (rates.dimensions, evidence.dims))
    for by, new in ((measured, evidence.model), tuple(sizes)):
        if by and new and by != new:
            of_results = f"the new model of {evidence.folder} is {new}"
            raise InputError(f"{fleet.rates} was measured with {by}, and {of_results}; measure that one")
    return rates


def _add_provider(known: Assumptions, provider: ProviderSettings, rates: Rates | None, today: date) -> None:
    """Items per second and dollars per item of a provider, from its limits, its price and the tokens of an item."""
    measured, source = (rates.tokens_per_item, "rates.json") if rates else (math.nan, "")
    _put(known, "provider.tokens_per_item", "tokens", provider.tokens_per_item, measured, source, Origin.MEASURED)
    price, source = math.nan, ""
    if math.isnan(provider.dollars_per_million_tokens):
        row = find_price(provider.model, today)
        price = row.dollars_per_million_tokens * (1 - (row.batch_discount if provider.batch else 0.0))
        source = f"{row.provider}, {row.date}: {row.source}"
        source = f"{source}; it states no discount of batches" if math.isnan(price) else source
        if row.is_old:
            price, source = math.nan, f"the table's price is older than 180 days, see {row.source}"
    name, given = "provider.dollars_per_million_tokens", provider.dollars_per_million_tokens
    _put(known, name, "$", given, price, source, Origin.TABLE)
    tokens = known["provider.tokens_per_item"].value
    per_s = min(
        provider.tokens_per_minute / 60 / tokens,
        provider.tokens_per_day / 86400 / tokens,
        provider.requests_per_minute / 60 * provider.items_per_request,
    )
    source = "the lowest limit of the account" if per_s < math.inf else "give a limit of the account: tokens_per_minute"
    _put(known, "provider.items_per_s", "items per s", math.nan, per_s if per_s < math.inf else math.nan, source)
    if not math.isnan(provider.tokens_per_query):
        _put(known, "provider.tokens_per_query", "tokens", provider.tokens_per_query)
