"""What happened when, from the journal and the events of the traffic. Times are seconds since the drill began."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.live.operations import NEW, NOWHERE, OLD, Checkpoint, DrillPlan
from ray_backfill.systems import IntArray

Entries = Sequence[Mapping[str, Any]]


def read_events(folder: Path) -> pd.DataFrame:
    """All requests of the traffic that reached the disk, by their scheduled time; empty without traffic."""
    files = sorted((folder / "events").glob("*.parquet"))
    tables = [pq.read_table(file).to_pandas() for file in files]
    if not tables:
        columns = ("scheduled_s", "latency_ms", "queries", "is_answered", "is_warm_up", "retries", "violations")
        return pd.DataFrame({name: np.empty(0) for name in columns}).astype({"is_answered": bool, "is_warm_up": bool})
    return pd.concat(tables, ignore_index=True).sort_values("scheduled_s", kind="stable", ignore_index=True)


def counts(
    plan: DrillPlan, checkpoint: Checkpoint, state: NDArray[np.uint8], broken: Mapping[int, IntArray]
) -> dict[str, Any]:
    """Where the items are at a checkpoint, and what has happened to the gallery so far."""
    done = plan.operations[: checkpoint.applied]
    lost = {o.number: len(broken.get(o.number, ())) for o in done}
    inserted = np.concatenate([np.empty(0, np.int64), *(o.positions for o in done if o.kind == "insert")])
    return {
        "moment": checkpoint.moment,
        "t": checkpoint.t,
        "phase": checkpoint.phase,
        "backfilled": sum(len(o.positions) - lost[o.number] for o in done if o.kind == "backfill"),
        "old_items": int((state == OLD).sum()),
        "new_items": int((state == NEW).sum()),
        "kept_old": sum(lost[o.number] for o in done if o.kind == "backfill"),
        "inserted": int((state[inserted] != NOWHERE).sum()),
        "deleted": sum(len(o.positions) for o in done if o.kind == "delete"),
    }


@dataclass(frozen=True)
class Stretch:
    """The time of one checkpoint: since the one before was measured, until its own measuring begins, and ends."""

    start_s: float
    began_s: float
    end_s: float


def served(events: pd.DataFrame, entries: Entries, stretch: Stretch) -> dict[str, Any]:
    """What users saw in the time of a checkpoint, and how fast the backfill went.

    Every request is counted in one stretch. Latencies and rates are without warm-ups, and without the time in which a
    checkpoint was measured: the driver's own queries are no traffic.
    """
    counted = events[(events.scheduled_s >= stretch.start_s) & (events.scheduled_s < stretch.end_s)]
    within = counted[(counted.scheduled_s < stretch.began_s) & ~counted.is_warm_up]
    seconds = stretch.began_s - stretch.start_s - _warm_up_s(entries, stretch)
    p50, p95, p99 = np.quantile(within.latency_ms, [0.5, 0.95, 0.99]) if len(within) else [np.nan] * 3
    items = sum(e["items"] for e in entries if _is_backfill(e) and stretch.start_s <= e["elapsed_s"] < stretch.began_s)
    is_first = stretch.start_s == 0
    return {
        "queries": int(counted.queries[counted.is_answered].sum()),
        "unanswered": int(counted.queries[~counted.is_answered].sum()),
        "retried": int(counted.retries.sum()),
        "violations": int(counted.violations.sum()),
        "queries_per_s": within.queries[within.is_answered].sum() / seconds if len(within) and seconds > 0 else np.nan,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "items_per_s": np.nan if is_first else items / max(stretch.began_s - stretch.start_s, 1e-3),
    }


def _warm_ups(entries: Entries) -> list[tuple[float, float]]:
    """When the traffic of each driver was warming up."""
    return [(e["elapsed_s"], e["elapsed_s"] + e["warm_up_s"]) for e in entries if e["kind"] == "started"]


def _warm_up_s(entries: Entries, stretch: Stretch) -> float:
    """Seconds of a stretch before its measuring that were warm-up."""
    return sum(max(0.0, min(b, stretch.began_s) - max(a, stretch.start_s)) for a, b in _warm_ups(entries))


def timeline(entries: Entries, events: pd.DataFrame) -> pd.DataFrame:
    """A row a second: queries, their latency, items backfilled, and whether a checkpoint was being measured."""
    end_s = max([entry["elapsed_s"] for entry in entries] + [events.scheduled_s.max() if len(events) else 0.0])
    table = pd.DataFrame({"elapsed_s": np.arange(int(end_s) + 1)})
    counted = events[~events.is_warm_up]
    of_second = counted.scheduled_s.astype(int)
    answered = counted.queries.where(counted.is_answered, 0)
    groups = {
        "queries": answered.groupby(of_second).sum(),
        "unanswered": (counted.queries - answered).groupby(of_second).sum(),
        "p50_ms": counted.latency_ms.groupby(of_second).quantile(0.5),
        "p99_ms": counted.latency_ms.groupby(of_second).quantile(0.99),
    }
    for name, values in groups.items():
        table[name] = table.elapsed_s.map(values)
    items = pd.Series({}, dtype=float)
    done = [(int(e["elapsed_s"]), e["items"]) for e in entries if _is_backfill(e)]
    if done:
        items = pd.DataFrame(done, columns=["second", "items"]).groupby("second")["items"].sum()
    table["items"] = table.elapsed_s.map(items).fillna(0).astype(int)
    for name in ("queries", "unanswered"):
        table[name] = table[name].fillna(0).astype(int)
    measuring = np.zeros(len(table), np.bool_)
    leg = np.zeros(len(table), np.int64)
    for entry in entries:
        if entry["kind"] == "checkpoint":
            measuring[int(entry["began_s"]) : int(entry["elapsed_s"]) + 1] = True
        if entry["kind"] == "started":
            leg[int(entry["elapsed_s"]) :] = entry["leg"]
    warm_up = np.zeros(len(table), np.bool_)
    for start_s, end_s in _warm_ups(entries):
        if end_s > start_s:
            warm_up[int(start_s) : math.ceil(end_s)] = True
    return table.assign(is_measuring=measuring, is_warm_up=warm_up, leg=leg)


def incidents(entries: Entries, broken: Mapping[int, IntArray]) -> pd.DataFrame:
    """What went wrong and when, and the items whose image could not be read."""
    applied_s = {e["applied"] - 1: e["elapsed_s"] for e in entries if e["kind"] == "applied"}
    rows = [(e["elapsed_s"], e["what"], e["detail"]) for e in entries if e["kind"] == "incident"]
    rows += [
        (applied_s.get(number, 0.0), "broken image", f"item {position}")
        for number, positions in broken.items()
        for position in positions
    ]
    rows += [(e["elapsed_s"], "rollback", "") for e in entries if e.get("operation") == "rollback"]
    return pd.DataFrame(sorted(rows), columns=["elapsed_s", "kind", "detail"])


def _is_backfill(entry: Mapping[str, Any]) -> bool:
    return entry["kind"] == "applied" and entry["operation"] == "backfill"
