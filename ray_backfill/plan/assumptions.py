"""Every number that a plan rests on, with where it comes from. Unknown is NaN, and stays so in what follows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum

from ray_backfill.core.errors import InputError
from ray_backfill.data.identity import short_name
from ray_backfill.plan.evidence import Evidence
from ray_backfill.plan.fleet import FleetSettings, ProviderSettings, traffic_of
from ray_backfill.plan.prices import find_price
from ray_backfill.plan.rates import Rates, build_seconds, read_rates


class Origin(Enum):
    """Where a number comes from."""

    MEASURED = "measured"
    GIVEN = "given"
    MODELLED = "modelled"
    TABLE = "table"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Quantity:
    """A number of a plan. spread: its relative standard deviation. source: the file, the formula or the table."""

    name: str
    value: float
    unit: str
    origin: Origin
    source: str
    spread: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)


Assumptions = dict[str, Quantity]


def assume(
    evidence: Evidence, fleet: FleetSettings, today: date, changed: Mapping[str, float] | None = None
) -> Assumptions:
    """The assumptions of a plan, by name. changed: other values of some; what follows from these follows them.

    Raises:
        InputError: rates.json was measured with another model, or the provider's model is in no table.
    """
    known = {name: Quantity(name, value, "", Origin.GIVEN, "changed") for name, value in (changed or {}).items()}
    rates, index, traffic = _rates_of(evidence, fleet), fleet.index, fleet.traffic
    pace, dims = rates.pace if rates else None, evidence.dims or (rates.dimensions if rates else 0)
    if math.isnan(fleet.items):
        _put(known, "items", evidence.items, "items", "gallery of the results", Origin.MEASURED)
    else:
        _put(known, "items", fleet.items, "items")
    _put(known, "inserted_per_day", fleet.inserted_per_day, "items per day")
    for group in fleet.workers:
        _put(known, f"{group.name}.number", group.number, "workers")
        name, unit, spread = f"{group.name}.items_per_s", "items per s and worker", group.uncertainty
        if rates and pace and math.isnan(group.items_per_s):
            slowest = f"; alone, {rates.slowest.stage} is the slowest" if rates.slowest else ""
            source = f"rates.json: {pace.stage}{slowest}"
            spread = pace.spread if math.isnan(spread) else spread
            _put(known, name, pace.items_per_s, unit, source, Origin.MEASURED, spread)
        else:
            _put(known, name, group.items_per_s, unit, spread=spread)
        _put(known, f"{group.name}.dollars_per_hour", group.dollars_per_hour, "$ per h and worker")
    if fleet.provider:
        _add_provider(known, fleet.provider, rates, today)
    _put(known, "share", fleet.share, "share of the time")
    _put(known, "limit_items_per_s", fleet.limit_items_per_s, "items per s")
    if rates and index.kind and math.isnan(index.build_hours):
        middle_s = build_seconds(rates.builds, index.kind, dims, round(known["items"].value))[1]
        source = f"rates.json: {index.kind}, extrapolated by a power law"
        _put(known, "index.build_hours", middle_s / 3600, "h", source, Origin.MODELLED)
    else:
        _put(known, "index.build_hours", index.build_hours, "h")
    _put(known, "index.dollars_per_hour", index.dollars_per_hour, "$ per h")
    if dims and math.isnan(index.bytes_per_item):
        source = f"{dims} dimensions of 4 bytes, without links of a graph"
        _put(known, "index.bytes_per_item", 4.0 * dims, "bytes", source, Origin.MODELLED)
    else:
        _put(known, "index.bytes_per_item", index.bytes_per_item, "bytes")
    _put(known, "index.payload_bytes_per_item", index.payload_bytes_per_item, "bytes")
    _put(known, "index.dollars_per_gb_month", index.dollars_per_gb_month, "$ per GB and month")
    if traffic.log and math.isnan(traffic.queries_per_day):
        per_day = traffic_of(traffic.log)[1]
        _put(known, "traffic.queries_per_day", per_day, "queries per day", traffic.log.name, Origin.MEASURED)
    else:
        _put(known, "traffic.queries_per_day", traffic.queries_per_day, "queries per day")
    name, unit = "query.dollars_per_million", "$ per million queries"
    if "provider.tokens_per_query" in known and math.isnan(traffic.dollars_per_million_queries):
        dollars = known["provider.tokens_per_query"].value * known["provider.dollars_per_million_tokens"].value
        _put(known, name, dollars, unit, "tokens of a query x price", Origin.MODELLED)
    elif fleet.workers and math.isnan(traffic.dollars_per_million_queries):
        first = fleet.workers[0].name
        dollars = 1e6 * known[f"{first}.dollars_per_hour"].value / 3600 / known[f"{first}.items_per_s"].value
        _put(known, name, dollars, unit, f"a query costs what an item costs on {first}", Origin.MODELLED)
    else:
        _put(known, name, traffic.dollars_per_million_queries, unit)
    moved = [stage.items_per_s for stage in rates.stages if stage.stage in ("read", "write")] if rates else []
    rate, source = (min(moved), "rates.json: one worker reads and writes every vector") if moved else (math.nan, "")
    _put(known, "prepare.hours", known["items"].value / rate / 3600, "h", source, Origin.MODELLED)
    _put(known, "value_per_point_day", fleet.value_per_point_day, "$ per point and day")
    _put(known, "setup_dollars", fleet.setup_dollars, "$")
    _put(known, "max_wait_hours", fleet.max_wait_hours, "h")
    return known


def _put(
    known: Assumptions, name: str, value: float, unit: str, source: str = "fleet.yaml", origin: Origin = Origin.GIVEN,
    spread: float = 0.0,
) -> None:  # fmt: skip
    if name in known:  # a changed one
        value, origin, source = known[name].value, known[name].origin, known[name].source
    if math.isnan(value):
        origin, source = Origin.UNKNOWN, "neither given nor measured" if source in ("", "fleet.yaml") else source
    known[name] = Quantity(name, float(value), unit, origin, source, 0.0 if math.isnan(spread) else spread)


def _rates_of(evidence: Evidence, fleet: FleetSettings) -> Rates | None:
    if fleet.rates is None:
        return None
    rates = read_rates(fleet.rates)
    measured = short_name(rates.identity) if rates.identity else ""
    if evidence.model and measured and evidence.model != measured:
        raise InputError(
            f"{fleet.rates} was measured with {measured}, and the new model of {evidence.folder} is {evidence.model}; "
            "measure that one"
        )
    if evidence.dims and rates.dimensions and evidence.dims != rates.dimensions:
        raise InputError(
            f"{fleet.rates} was measured with a model of {rates.dimensions} dimensions, and the new model of "
            f"{evidence.folder} has {evidence.dims}; measure that one"
        )
    return rates


def _add_provider(known: Assumptions, provider: ProviderSettings, rates: Rates | None, today: date) -> None:
    """Items per second and dollars per item of a provider, from its limits, its price and the tokens of an item."""
    tokens, price, name = provider.tokens_per_item, provider.dollars_per_million_tokens, "provider.tokens_per_item"
    if rates and math.isnan(tokens):
        tokens = rates.tokens_per_item
        _put(known, name, tokens, "tokens", "rates.json", Origin.MEASURED)
    else:
        _put(known, name, tokens, "tokens")
    name = "provider.dollars_per_million_tokens"
    if math.isnan(price):
        row = find_price(provider.model, today)
        price = row.dollars_per_million_tokens * (1 - (row.batch_discount if provider.batch else 0.0))
        source = f"{row.provider}, {row.date}: {row.source}"
        source = f"{source}; it states no discount of batches" if math.isnan(price) else source
        if row.is_old:
            price, source = math.nan, f"the table's price is older than 180 days, see {row.source}"
        _put(known, name, price, "$", source, Origin.TABLE)
    else:
        _put(known, name, price, "$")
    tokens = known["provider.tokens_per_item"].value
    per_s = min(
        provider.tokens_per_minute / 60 / tokens,
        provider.tokens_per_day / 86400 / tokens,
        provider.requests_per_minute / 60 * provider.items_per_request,
    )
    source = "the lowest limit of the account" if per_s < math.inf else "give a limit of the account: tokens_per_minute"
    _put(known, "provider.items_per_s", per_s if per_s < math.inf else math.nan, "items per s", source, Origin.MODELLED)
    if not math.isnan(provider.tokens_per_query):
        _put(known, "provider.tokens_per_query", provider.tokens_per_query, "tokens")
