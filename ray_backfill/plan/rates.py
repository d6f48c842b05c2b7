"""Measured rates: what one worker does in a second, how long indexes take to build, and the file that holds both.

``docs/schema/rates.json`` describes the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from math import exp, inf, isfinite, isnan, log, nan, sqrt
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.outcome import json_value
from ray_backfill.core.stages import read_json, write_json

# The stages of an embedding actor, in their order.
STAGES = ("read", "prepare", "embed", "write")
SCHEMA = 1
# Bytes of an item in an index while it is built, besides four for each dimension: its neighbours. Those of pgvector's
# graph of 16 neighbours are as PostgreSQL says in benchmarks/index_builds.py; other indexes have less.
GRAPH_BYTES = 715
_NAN: dict[str, Any] = {"memory_bytes": nan, "characters_per_item": nan, "tokens_per_item": nan}
RowT = TypeVar("RowT")
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Rate:
    """Items per second of a stage of one worker. windows: the same of consecutive windows of about five seconds."""

    stage: str
    items_per_s: float
    windows: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Standard deviation of the windows as a share of their mean; nan for fewer than two."""
        if len(self.windows) < 2:
            return nan
        return float(np.std(self.windows, ddof=1) / np.mean(self.windows))


@dataclass(frozen=True)
class Build:
    """Seconds to build an index. kind: such as hnsw, ivf, pgvector-hnsw or pgvector-ivfflat.

    memory_bytes: that the build was allowed to use; nan: no limit.
    """

    kind: str
    dimensions: int
    items: int
    seconds: float
    memory_bytes: float = nan

    @property
    def fits(self) -> bool:
        """Whether the index fits into the memory of its build."""
        return _fits(self.dimensions, self.items, self.memory_bytes)


@dataclass(frozen=True)
class Search:
    """Queries per second of an index that is asked one at a time for its ten nearest."""

    kind: str
    dimensions: int
    items: int
    queries_per_s: float


@dataclass(frozen=True)
class Rates:
    """What was measured of a model. identity: what determines its vectors. machine: where it was measured.

    created: UTC, ISO 8601. command: as typed. The last two are nan where the items have none.
    """

    model: str
    identity: Mapping[str, Any]
    modality: str
    dimensions: int
    stages: tuple[Rate, ...]
    builds: tuple[Build, ...]
    searches: tuple[Search, ...]
    machine: Mapping[str, Any]
    created: str
    command: str
    characters_per_item: float = nan
    tokens_per_item: float = nan

    @property
    def slowest(self) -> Rate | None:
        """The stage that sets the pace of the pipeline, whose stages run at the same time; None without stages."""
        return min(self.stages, key=lambda rate: rate.items_per_s, default=None)


def write_rates(file: Path, rates: Rates) -> None:
    """Write the file whole or not at all, without secrets. Raises InputError if it cannot be written."""
    write_json(file, {"schema": SCHEMA} | json_value(asdict(rates)))


def read_rates(file: Path) -> Rates:
    """Read what ``write_rates`` wrote.

    Raises:
        InputError: The file is missing, is of another schema, or holds a value that cannot be measured.
    """
    given = read_json(file)
    if (schema := given.pop("schema", None)) != SCHEMA:
        raise InputError(f"{file} has the schema {schema!r}, not {SCHEMA}; make it again: ray-backfill measure")
    try:
        for name, kind in (("stages", Rate), ("builds", Build), ("searches", Search)):
            if not isinstance(rows := given.get(name), list):
                raise InputError(f"{name} must be a list")
            given[name] = tuple(_row(kind, row, f"{name}[{place}]") for place, row in enumerate(rows))
        rates = _row(Rates, given, "the file")
        for rate in rates.stages:
            if rate.stage not in STAGES:
                raise unknown_name("stage", rate.stage, STAGES)
        if len({rate.stage for rate in rates.stages}) < len(rates.stages):
            raise InputError("a stage is there twice")
    except InputError as error:
        raise InputError(f"{file}: {error}; make it again: ray-backfill measure") from error
    return rates


def _row(kind: type[RowT], given: Any, place: str) -> RowT:
    """A dataclass of these values, each checked by its type. Numbers are above 0; null is nan where that is allowed."""
    if not isinstance(given, dict):
        raise InputError(f"{place} must be an object")
    hints, values = get_type_hints(kind), dict[str, Any]()
    settings = {setting.name: setting for setting in fields(kind)}  # type: ignore[arg-type]
    if unknown := given.keys() - settings.keys():
        raise unknown_name(f"name in {place}", min(unknown), settings)
    for name, setting in settings.items():
        if name not in given and setting.default is MISSING:
            raise InputError(f"{place} lacks {name}")
        value, hint = given.get(name), hints[name]
        if hint is float and value is None and name in _NAN:
            value = nan
        elif hint is float or hint is int:
            _check_number(value, hint, f"{name} of {place}")
        elif hint is str and not isinstance(value, str):
            raise InputError(f"{name} of {place} must be a text")
        elif hint == tuple[float, ...]:
            if not isinstance(value, list):
                raise InputError(f"{name} of {place} must be a list of numbers")
            for number in value:
                _check_number(number, float, f"{name} of {place}")
            value = tuple(value)
        elif hint == Mapping[str, Any] and not isinstance(value, dict):
            raise InputError(f"{name} of {place} must be an object")
        values[name] = value
    return kind(**values)


def _check_number(value: Any, kind: type, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)) or not 0 < value < inf:
        whole = "whole " if kind is int else ""
        raise InputError(f"{what} must be a finite {whole}number above 0, not {value!r}")


def build_seconds(builds: Sequence[Build], kind: str, dimensions: int, items: int) -> Interval:
    """Seconds to build an index of so many items: lower limit, middle and upper limit of a 95 % prediction interval.

    A power law of the size is fitted to builds of this kind and these dimensions, by least squares of the logarithms.
    An index that does not fit into the memory of its build follows a law of its own, fitted to such builds alone; the
    memory of the build that is asked for is the largest one given. Of two builds the interval is unknown: nan limits.
    All three are nan for fewer than two builds of the same sort or of one size, as how time grows with dimensions, or
    beyond a limit of memory that no build has reached, is not known.
    """
    same = [build for build in builds if (build.kind, build.dimensions) == (kind, dimensions)]
    memory = max((build.memory_bytes for build in same), key=lambda given: inf if isnan(given) else given, default=nan)
    same = [build for build in same if build.fits == _fits(dimensions, items, memory)]
    x, y = np.log([build.items for build in same]), np.log([build.seconds for build in same])
    if len({build.items for build in same}) < 2:
        return nan, nan, nan
    slope, start = np.polyfit(x, y, 1)
    middle, free = start + slope * log(items), len(same) - 2
    if not free:
        return nan, exp(middle), nan
    from scipy.special import stdtrit

    noise = sqrt(float(((y - start - slope * x) ** 2).sum()) / free)
    far = (log(items) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = float(stdtrit(free, 0.975)) * noise * sqrt(1 + 1 / len(same) + far)
    return (exp(middle - half), exp(middle), exp(middle + half)) if isfinite(half) else (nan, exp(middle), nan)


def _fits(dimensions: int, items: int, memory_bytes: float) -> bool:
    return isnan(memory_bytes) or items * (4 * dimensions + GRAPH_BYTES) <= memory_bytes
