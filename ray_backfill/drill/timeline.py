"""Timeline of a drill, from its journal and traffic events. Times are seconds since the drill began."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.drill.journal import Applied, CheckpointMeasured, Entry, Incident, Started, of_type
from ray_backfill.drill.operations import NEW, NOWHERE, OLD, DrillPlan, positions_of
from ray_backfill.drill.tables import Checkpoint, IncidentRow, ItemCounts, SecondRow, ServedQueries
from ray_backfill.engine.systems import IntArray


def counts(
    plan: DrillPlan,
    checkpoint: Checkpoint,
    state: NDArray[np.uint8],
    broken: Mapping[int, IntArray],
    measured: CheckpointMeasured,
) -> ItemCounts:
    """Item counts at a checkpoint: partition sizes and the changes to the gallery so far."""
    done = plan.operations[: checkpoint.applied]
    backfilled, inserted, deleted = (
        positions_of(o for o in done if o.kind == kind) for kind in ("backfill", "insert", "delete")
    )
    kept_old = sum(len(broken.get(o.number, ())) for o in done if o.kind == "backfill")
    return ItemCounts(
        moment=checkpoint.moment,
        t=checkpoint.t,
        phase=checkpoint.phase,
        backfilled=len(backfilled) - kept_old,
        old_items=int((state == OLD).sum()),
        new_items=int((state == NEW).sum()),
        kept_old=kept_old,
        inserted=int((state[inserted] != NOWHERE).sum()),
        deleted=len(deleted),
        old_bytes=measured.old_bytes,
        new_bytes=measured.new_bytes,
        elapsed_s=measured.elapsed_s,
    )


@dataclass(frozen=True)
class Stretch:
    """A checkpoint's time: from the end of the previous measurement to the start and the end of its own."""

    start_s: float
    began_s: float
    end_s: float


def served(events: pd.DataFrame, entries: Sequence[Entry], stretch: Stretch) -> ServedQueries:
    """Traffic and backfill rate during a checkpoint's stretch of time.

    Every request counts in exactly one stretch. Latencies and rates exclude warm-ups and the time in which a checkpoint
    was measured, as the driver's own queries are not traffic.
    """
    counted = events[(events.scheduled_s >= stretch.start_s) & (events.scheduled_s < stretch.end_s)]
    within = counted[(counted.scheduled_s < stretch.began_s) & ~counted.is_warm_up]
    seconds = stretch.began_s - stretch.start_s - _warm_up_s(entries, stretch)
    p50, p95, p99 = np.quantile(within.latency_ms, [0.5, 0.95, 0.99]) if len(within) else [np.nan] * 3
    items = sum(e.items for e in backfills(entries) if stretch.start_s <= e.elapsed_s < stretch.began_s)
    is_first = stretch.start_s == 0
    return ServedQueries(
        queries=int(counted.queries[counted.is_answered].sum()),
        unanswered=int(counted.queries[~counted.is_answered].sum()),
        retried=int(counted.retries.sum()),
        violations=int(counted.violations.sum()),
        queries_per_s=within.queries[within.is_answered].sum() / seconds if len(within) and seconds > 0 else np.nan,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        items_per_s=np.nan if is_first else items / max(stretch.began_s - stretch.start_s, 1e-3),
    )


def backfills(entries: Sequence[Entry]) -> list[Applied]:
    """The applied backfill operations, without churn and rollback."""
    return [entry for entry in of_type(entries, Applied) if entry.operation == "backfill"]


def _warm_ups(entries: Sequence[Entry]) -> list[tuple[float, float]]:
    """(start, end) of the warm-up of each driver's traffic."""
    return [(e.elapsed_s, e.elapsed_s + e.warm_up_s) for e in of_type(entries, Started)]


def _warm_up_s(entries: Sequence[Entry], stretch: Stretch) -> float:
    """Seconds of warm-up in a stretch before its measurement begins."""
    return sum(max(0.0, min(b, stretch.began_s) - max(a, stretch.start_s)) for a, b in _warm_ups(entries))


def timeline(entries: Sequence[Entry], events: pd.DataFrame) -> list[SecondRow]:
    """One row per second: queries, latency, items backfilled, and whether a checkpoint was being measured."""
    end_s = max([entry.elapsed_s for entry in entries] + [events.scheduled_s.max() if len(events) else 0.0])
    counted = events[~events.is_warm_up]
    of_second = counted.scheduled_s.astype(int)
    answered = counted.queries.where(counted.is_answered, 0)
    queries = answered.groupby(of_second).sum()
    unanswered = (counted.queries - answered).groupby(of_second).sum()
    p50_ms, p99_ms = (counted.latency_ms.groupby(of_second).quantile(q) for q in (0.5, 0.99))
    items = np.zeros(int(end_s) + 1, np.int64)
    is_measuring, is_warm_up = np.zeros(len(items), np.bool_), np.zeros(len(items), np.bool_)
    leg = np.zeros(len(items), np.int64)
    for done in backfills(entries):
        items[int(done.elapsed_s)] += done.items
    for measured in of_type(entries, CheckpointMeasured):
        is_measuring[int(measured.began_s) : int(measured.elapsed_s) + 1] = True
    for started in of_type(entries, Started):
        leg[int(started.elapsed_s) :] = started.leg
    for start_s, until_s in _warm_ups(entries):
        if until_s > start_s:
            is_warm_up[int(start_s) : math.ceil(until_s)] = True
    return [
        SecondRow(
            elapsed_s=second,
            queries=int(queries.get(second, 0)),
            unanswered=int(unanswered.get(second, 0)),
            p50_ms=p50_ms.get(second, math.nan),
            p99_ms=p99_ms.get(second, math.nan),
            items=int(items[second]),
            is_measuring=bool(is_measuring[second]),
            is_warm_up=bool(is_warm_up[second]),
            leg=int(leg[second]),
        )
        for second in range(len(items))
    ]


def incidents(entries: Sequence[Entry], broken: Mapping[int, IntArray]) -> list[IncidentRow]:
    """Incidents by time, those of one moment as they were recorded; also unreadable images, and rollbacks."""
    applied = of_type(entries, Applied)
    applied_s = {entry.applied - 1: entry.elapsed_s for entry in applied}
    rows = [IncidentRow(entry.elapsed_s, entry.what, entry.detail) for entry in of_type(entries, Incident)]
    rows += [
        IncidentRow(applied_s.get(number, 0.0), "broken image", f"item {position}")
        for number, positions in sorted(broken.items())
        for position in sorted(positions.tolist())
    ]
    rows += [IncidentRow(entry.elapsed_s, "rollback", "") for entry in applied if entry.operation == "rollback"]
    return sorted(rows, key=lambda row: row.elapsed_s)
