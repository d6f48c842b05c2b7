"""Measured rates: what one worker does in a second, how long indexes take to build, and the file that holds both.

``docs/schema/rates.json`` describes the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from math import exp, inf, isnan, log, nan, sqrt
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.outcome import json_value
from ray_backfill.core.stages import read_json, write_json

# The stages of an embedding actor, in their order.
STAGES = ("read", "prepare", "embed", "write")
# All of them as an actor runs them: the next batch is prepared while the model computes.
TOGETHER = "together"
SCHEMA = 1
# Bytes of an item in an index while it is built, besides four for each dimension: its neighbours. Those of pgvector's
# graph of 16 neighbours are as PostgreSQL says in benchmarks/index_builds.py; other indexes have less.
GRAPH_BYTES = 715
# Logarithm of the longest time, which no float exceeds.
_LONGEST = 700.0
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
        """The slowest of the stages alone; None without stages."""
        alone = (rate for rate in self.stages if rate.stage != TOGETHER)
        return min(alone, key=lambda rate: rate.items_per_s, default=None)

    @property
    def pace(self) -> Rate | None:
        """What one worker reaches: all stages together if they were measured, otherwise the slowest one."""
        return next((rate for rate in self.stages if rate.stage == TOGETHER), self.slowest)


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
            if rate.stage not in (*STAGES, TOGETHER):
                raise unknown_name("stage", rate.stage, (*STAGES, TOGETHER))
        if len({rate.stage for rate in rates.stages}) < len(rates.stages):
            raise InputError("a stage is there twice")
    except InputError as error:
        raise InputError(f"{file}: {error}; make it again: ray-backfill measure") from error
    return rates


def _row(kind: type[RowT], given: Any, place: str) -> RowT:
    """A dataclass of these values, each checked by its type. Numbers are above 0; null is nan where that is allowed."""
    if not isinstance(given, dict):
        raise InputError(f"{place} must be an object")
    hints, optional = get_type_hints(kind), {f.name for f in fields(kind) if f.default is not MISSING}  # type: ignore[arg-type]
    if unknown := given.keys() - hints.keys():
        raise unknown_name(f"name in {place}", min(unknown), hints)
    if missing := hints.keys() - given.keys() - optional:
        raise InputError(f"{place} lacks {min(missing)}")
    values = {name: nan if name in optional and value is None else value for name, value in given.items()}
    for name, value in values.items():
        wants, is_right = _KINDS.get(hints[name], ("", lambda _: True))
        if not (is_right(value) or (name in optional and value != value)):
            raise InputError(f"{name} of {place} must be {wants}, not {value!r}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    float: ("a finite number above 0", _is_rate),
    int: ("a finite whole number above 0", lambda value: _is_rate(value) and isinstance(value, int)),
    str: ("a text", lambda value: isinstance(value, str)),
    tuple[float, ...]: ("a list of such numbers", lambda value: isinstance(value, list) and all(map(_is_rate, value))),
    Mapping[str, Any]: ("an object", lambda value: isinstance(value, dict)),
}


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
        return nan, exp(min(middle, _LONGEST)), nan
    from scipy.special import stdtrit

    noise = sqrt(float(((y - start - slope * x) ** 2).sum()) / free)
    far = (log(items) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = float(stdtrit(free, 0.975)) * noise * sqrt(1 + 1 / len(same) + far)
    low, middle, high = (exp(min(power, _LONGEST)) for power in (middle - half, middle, middle + half))
    return low, middle, high


def _fits(dimensions: int, items: int, memory_bytes: float) -> bool:
    return isnan(memory_bytes) or items * (4 * dimensions + GRAPH_BYTES) <= memory_bytes
