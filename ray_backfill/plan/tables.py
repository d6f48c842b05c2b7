"""Tables of a plan: the row type of each. Every number of its page is in one of them, or follows from several.

``low`` and ``high`` of hours, dollars, point-days and quality are 10 and 90 % of the runs, not 95 % intervals.
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class AssumptionRow:
    """A number that the plan rests on. source: the file, the formula or the table."""

    name: str
    value: Annotated[float, "NaN: unknown"]
    unit: str
    origin: Annotated[str, "`measured`, `given`, `modelled`, `table` or `unknown`"]
    source: str
    spread: Annotated[float, "relative standard deviation"] = 0.0


@dataclass(frozen=True)
class OptionRow:
    """A way to upgrade."""

    policy: Annotated[
        str, "`added field`, `second collection`, `online`, `cascade`, `tenant by tenant` or `do nothing`"
    ]
    name: str
    method: Annotated[str, "empty without a method"]
    order: str
    merge: str
    hours_low: Annotated[float, "hours until only the new model serves, 10, 50 and 90 % of the runs; infinite: never"]
    hours: float
    hours_high: float
    dollars_low: Annotated[float, "NaN if a part is unknown"]
    dollars: float
    dollars_high: float
    extra_low: Annotated[float, "dollars that a switch does not cost"]
    extra: float
    extra_high: float
    point_days_low: Annotated[float, "percentage points above the old service x days, over the hours of the plan"]
    point_days: float
    point_days_high: float
    memory_gb: Annotated[float, "10^9 bytes of all vectors that are held at once, and of copied payloads; NaN: unknown"]
    needs_old: Annotated[bool, "whether queries need the old model until the end"]
    dominated_by: Annotated[str, "a way that costs no more and gives no less; empty without one"]


@dataclass(frozen=True)
class DollarRow:
    """A part of what a way costs."""

    name: Annotated[str, "of the way"]
    part: str
    low: float
    dollars: float
    high: float


@dataclass(frozen=True)
class HourRow:
    """Quality of a way at a moment."""

    name: Annotated[str, "of the way"]
    hour: Annotated[float, "since the start"]
    low: Annotated[float, "quality by the metric, a share"]
    value: float
    high: float


@dataclass(frozen=True)
class FlipRow:
    """An assumption, and the nearest value at which the verdict is another one."""

    name: str
    unit: str
    today: float
    value: float
    factor: Annotated[float, "value / today"]
    verdict: str


@dataclass(frozen=True)
class WhatIfRow:
    """The plan with another value of an assumption."""

    name: str
    value: float
    hours_low: float
    hours: float
    hours_high: float
    dollars: float
    point_days: Annotated[float, "that the best merge wins over a switch"]
    verdict: str
    sentence: str


TABLES = {
    "assumptions": AssumptionRow,
    "options": OptionRow,
    "dollars": DollarRow,
    "hours": HourRow,
    "flips": FlipRow,
    "what_if": WhatIfRow,
}
