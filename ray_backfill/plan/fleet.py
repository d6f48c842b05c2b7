"""What a user says about the service and the machines: ``fleet.yaml``, read strictly. It has no guessed values.

Times are local times of the fleet, without a time zone. Money is in dollars.
"""

import json
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.yamls import as_number, local_time, read_yaml

_NAN = math.nan
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# Numbers that must be greater than 0; all others must not be negative.
_POSITIVE = {
    *("items", "number", "items_per_s", "limit_items_per_s", "tokens_per_item", "share"),
    *("tokens_per_minute", "requests_per_minute", "items_per_request", "max_wait_hours", "tokens_per_day"),
}


@dataclass(frozen=True)
class WorkersSettings:
    """Workers of one kind that embed side by side. spot: a file of spot instances, or a folder of files."""

    number: float
    name: str = "workers"
    items_per_s: float = _NAN  # of one worker; by default that of all stages together in rates
    uncertainty: float = _NAN  # relative standard deviation; by default that of the measured windows
    dollars_per_hour: float = _NAN  # of one worker, while it is held
    start_minutes: float = 0.0  # from a request for a worker to its first item
    spot: Path | None = None  # as SkyPilot's: {"metadata": {"gap_seconds": 300}, "data": [8, 8, 0, ...]}


@dataclass(frozen=True)
class ProviderSettings:
    """A service that embeds for money, and the limits of an account."""

    model: str = ""  # in the table of prices
    dollars_per_million_tokens: float = _NAN  # by default that of the table, unless it is older than 180 days
    batch: bool = False  # by its batch interface, at the discount of the table
    tokens_per_item: float = _NAN  # by default measured
    tokens_per_query: float = _NAN
    tokens_per_minute: float = math.inf
    tokens_per_day: float = math.inf
    requests_per_minute: float = math.inf
    items_per_request: float = 1.0


@dataclass(frozen=True)
class BudgetSettings:
    """What the backfill may use. items: the share that is embedded."""

    dollars: float = math.inf  # in all, for embedding
    dollars_per_day: float = math.inf  # the backfill pauses until midnight when a day has cost that much
    items: float = 1.0


@dataclass(frozen=True)
class IndexSettings:
    """The index of the new vectors. dollars_per_hour: of the machine that builds it."""

    kind: str = ""  # that rates has build times of, such as pgvector-hnsw
    build_hours: float = _NAN  # over all items; by default extrapolated from rates
    dollars_per_hour: float = _NAN
    bytes_per_item: float = _NAN  # its vector and its place in the index
    payload_bytes_per_item: float = _NAN  # what is stored beside the vectors, which a second collection copies
    dollars_per_gb_month: float = _NAN  # of 10^9 of these bytes, for 30 days


@dataclass(frozen=True)
class TrafficSettings:
    """The queries of the service. log: a table with a column time, for the hours of the week and queries per day."""

    queries_per_day: float = _NAN
    dollars_per_million_queries: float = _NAN  # to embed them by the new model; by default the price of the provider
    log: Path | None = None


@dataclass(frozen=True)
class FleetSettings:
    """A fleet, the service and what the user wants of both; docs/plan.md describes the keys. What is not given is
    unknown.
    """

    items: float = _NAN  # by default those of the results
    inserted_per_day: float = 0.0  # the new model embeds them first
    start: datetime | None = None  # by default the next full hour
    old_model_ends: datetime | None = None  # after that it embeds no query
    rates: Path | None = None
    workers: tuple[WorkersSettings, ...] = ()
    provider: ProviderSettings | None = None
    share: float = 1.0  # of their time that workers may embed
    limit_items_per_s: float = math.inf  # of the backfill as a whole
    hours: str = "00:00-24:00"  # of the day at which the backfill may run
    days: tuple[str, ...] = _DAYS  # on which these hours begin
    pauses: tuple[str, ...] = ()  # "2026-12-24 00:00 to 2026-12-27 00:00"
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    tenants: bool = False  # whether each query searches the items of one tenant only
    value_per_point_day: float = _NAN
    setup_dollars: float = 0.0  # what it costs to build and run the merge, beyond machines
    max_wait_hours: float = 24.0  # a backfill that is finished within so many hours is not worth a merge


def read_fleet(file: Path) -> FleetSettings:
    """Read and check fleet.yaml. Paths in it are relative to its folder.

    Raises:
        InputError: The file cannot be read, has an unknown key, a value is impossible, or values contradict each other.
    """
    fleet = read_yaml(file, FleetSettings, "--fleet", _POSITIVE)
    names = [group.name for group in fleet.workers]
    if len({*names}) < len(names):
        raise InputError(f"two groups of workers are called {max(names, key=names.count)}; give each its own name")
    if fleet.workers and fleet.provider:
        raise InputError("give workers or a provider, not both: one of them embeds the items")
    if fleet.provider and not fleet.provider.model and math.isnan(fleet.provider.dollars_per_million_tokens):
        raise InputError("provider: give its model, or dollars_per_million_tokens")
    for name, value in (("share", fleet.share), ("budget.items", fleet.budget.items)):
        if not 0 < value <= 1:
            raise InputError(f"{name} is a share above 0 and up to 1, not {value:g}")
    if fleet.old_model_ends and fleet.start and fleet.old_model_ends <= fleet.start:
        raise InputError(f"old_model_ends {fleet.old_model_ends} is not after the start {fleet.start}")
    if unknown := [day for day in fleet.days if day not in _DAYS]:
        raise unknown_name("day", unknown[0], _DAYS)
    open_minutes(fleet)
    pauses_of(fleet)
    return fleet


def number_of(where: str, value: Any) -> float:
    """The number of a setting. Raises ValueError, which says what number it must be."""
    return as_number(value, where.split(".")[-1] in _POSITIVE)


def open_minutes(fleet: FleetSettings) -> NDArray[np.bool_]:
    """(10080,) the minutes of a week from Monday on at which the backfill may run. Raises InputError for its hours."""
    words = re.fullmatch(r"(\d\d?):([0-5]\d) *- *(\d\d?):([0-5]\d)", fleet.hours.strip())
    if words is None:
        raise InputError(f"hours are written as 22:00-06:00, not {fleet.hours!r}")
    first, last = (60 * int(words[place]) + int(words[place + 1]) for place in (1, 3))
    if not (0 <= first < 1440 and 0 <= last <= 1440) or first == last:
        raise InputError(f"hours {fleet.hours} hold no time of a day; write them as 22:00-06:00")
    length, is_open = (last - first) % 1440 or 1440, np.zeros(7 * 1440, np.bool_)
    for day in fleet.days:
        begin = 1440 * _DAYS.index(day) + first
        is_open[np.arange(begin, begin + length) % len(is_open)] = True
    return is_open


def pauses_of(fleet: FleetSettings) -> list[tuple[datetime, datetime]]:
    """Begin and end of each pause. Raises InputError for others."""
    pauses = []
    for text in fleet.pauses:
        try:
            begin, end = map(local_time, text.split(" to "))
        except ValueError:
            raise InputError(f"a pause is written as 2026-12-24 00:00 to 2026-12-27 00:00, not {text!r}") from None
        if end <= begin:
            raise InputError(f"the pause {text} ends before it begins")
        pauses.append((begin, end))
    return pauses


@dataclass(frozen=True)
class Trace:
    """Available spot instances over time. available: (T,) counts, one for each ``gap_s`` seconds."""

    gap_s: float
    available: NDArray[np.float64]


@cache
def read_traces(path: Path) -> list[Trace]:
    """The traces of a file, or of all files below a folder. Raises InputError for anything else."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    traces = []
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            trace = Trace(float(content["metadata"]["gap_seconds"]), np.array(content["data"], np.float64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is no spot trace (metadata.gap_seconds and data): {error!r}") from error
        if not (0 < trace.gap_s < math.inf and trace.available.ndim == 1 and trace.available.max(initial=0) > 0):
            raise InputError(f"{file} is no spot trace: no instance is ever available in it")
        if not (np.isfinite(trace.available) & (trace.available >= 0)).all():
            raise InputError(f"{file} is no spot trace: numbers of instances are not negative")
        traces.append(trace)
    if not traces:
        raise InputError(f"{path} holds no spot traces (*.json)")
    return traces


def traffic_of(file: Path) -> tuple[NDArray[np.float64], float]:
    """From a log of queries: (168,) the share of each hour of the week from Monday on, and queries per day.

    Raises InputError if it cannot be read or covers less than a day.
    """
    try:
        table = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
        times = pd.to_datetime(table["time"], format="ISO8601").dropna()
    except (OSError, ValueError, KeyError) as error:
        why = str(error).partition("\n")[0]
        raise InputError(f"{file} is no log of queries with a column time: {why}") from error
    days = (times.max() - times.min()).total_seconds() / 86400 if len(times) else 0.0
    if days < 1:
        raise InputError(f"{file} covers less than a day; give a longer log, or traffic.queries_per_day")
    hour = times.dt.day_of_week * 24 + times.dt.hour
    counted = np.bincount(hour, minlength=168).astype(np.float64)
    # A log that does not hold whole weeks has some hours more often than others.
    begin = times.min().floor("h")
    covered = pd.date_range(begin, times.max(), freq="h")
    often = np.bincount(covered.day_of_week * 24 + covered.hour, minlength=168)
    per_hour = np.where(often > 0, counted / np.maximum(often, 1), np.nan)
    per_hour = np.where(np.isnan(per_hour), np.nanmean(per_hour), per_hour)
    return per_hour / per_hour.sum(), len(times) / days
