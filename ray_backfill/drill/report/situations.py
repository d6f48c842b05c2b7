"""Latency before, during and after the backfill: medians over the seconds of the timeline."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.tables import SecondRow

BEFORE, DURING, AFTER, MEASURING = "before the first item", "during the backfill", "after the backfill", "measuring"
FEW_SECONDS = 3  # a median of fewer seconds is meaningless


@dataclass(frozen=True)
class Situation:
    """All seconds of one kind. p50_ms and p99_ms: medians over the seconds with answered queries."""

    name: str
    seconds: int
    p50_ms: float
    p99_ms: float
    queries_per_s: float
    items_per_s: float
    unanswered: int


def situations(drill: Drill) -> dict[str, Situation]:
    """The situations that occurred, by name: before the first item, during and after the backfill, measuring."""
    seconds = drill.timeline
    at_work = [i for i, second in enumerate(seconds) if second.items > 0]
    first, last = (at_work[0], at_work[-1]) if at_work else (len(seconds), len(seconds))
    serving = [(i, second) for i, second in enumerate(seconds) if not (second.is_measuring or second.is_warm_up)]
    kinds = {
        BEFORE: [second for i, second in serving if i < first],
        DURING: [second for i, second in serving if first <= i <= last],
        AFTER: [second for i, second in serving if i > last],
        MEASURING: [second for second in seconds if second.is_measuring],
    }
    return {name: _situation(name, of_kind) for name, of_kind in kinds.items() if of_kind}


def cost(drill: Drill) -> tuple[float, float] | None:
    """p99 of a typical second before and during the backfill, in ms; None if either has too few seconds."""
    found = situations(drill)
    before, during = found.get(BEFORE), found.get(DURING)
    if before is None or during is None or min(before.seconds, during.seconds) < FEW_SECONDS:
        return None
    both = before.p99_ms, during.p99_ms
    return both if np.isfinite(both).all() else None


def median(values: Iterable[float]) -> float:
    """The median of the finite values; NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else math.nan


def _situation(name: str, seconds: Sequence[SecondRow]) -> Situation:
    return Situation(
        name,
        len(seconds),
        median(s.p50_ms for s in seconds),
        median(s.p99_ms for s in seconds),
        float(np.mean([s.queries for s in seconds])),
        float(np.mean([s.items for s in seconds])),
        sum(s.unanswered for s in seconds),
    )
