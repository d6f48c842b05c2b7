"""Latency before, during and after the backfill: medians over the timeline's seconds. The tables are not touched."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ray_backfill.report.live.reading import Drill, Floats

BEFORE, DURING, AFTER, MEASURING = "before the first item", "during the backfill", "after it", "measuring"
FEW_SECONDS = 3  # a median of fewer says nothing


@dataclass(frozen=True)
class Situation:
    """The seconds of one kind. p50_ms and p99_ms: the median over those seconds in which queries were answered."""

    name: str
    seconds: int
    p50_ms: float
    p99_ms: float
    queries_per_s: float
    items_per_s: float
    unanswered: int


def situations(drill: Drill) -> dict[str, Situation]:
    """By name, those that the drill was in: before the first item, during the backfill, after it, and measuring."""
    line = drill.timeline
    at_work = np.flatnonzero(line.items > 0)
    first, last = (at_work[0], at_work[-1]) if len(at_work) else (len(line.items), len(line.items))
    second = np.arange(len(line.items))
    serving = ~line.is_measuring & ~line.is_warm_up
    masks = {
        BEFORE: serving & (second < first),
        DURING: serving & (second >= first) & (second <= last),
        AFTER: serving & (second > last),
        MEASURING: line.is_measuring,
    }
    return {name: _situation(name, drill, mask) for name, mask in masks.items() if mask.any()}


def cost(drill: Drill) -> tuple[float, float] | None:
    """p99 of a typical second before and during the backfill, in ms; None where there is too little of either."""
    found = situations(drill)
    before, during = found.get(BEFORE), found.get(DURING)
    if before is None or during is None or min(before.seconds, during.seconds) < FEW_SECONDS:
        return None
    both = before.p99_ms, during.p99_ms
    return both if np.isfinite(both).all() else None


def median(values: Floats) -> float:
    """The median of the numbers among the values; NaN where there are none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _situation(name: str, drill: Drill, mask: npt.NDArray[np.bool_]) -> Situation:
    line = drill.timeline
    return Situation(
        name,
        int(mask.sum()),
        median(line.p50_ms[mask]),
        median(line.p99_ms[mask]),
        float(line.queries[mask].mean()),
        float(line.items[mask].mean()),
        int(line.unanswered[mask].sum()),
    )
