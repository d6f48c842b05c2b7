"""A hand-made folder of a live drill: 11 checkpoints 20 s apart, 1,000 items, 50 queries per second."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.core.schema import frame, write_table
from ray_backfill.drill import tables

NAN = math.nan
ITEMS, STEP_S, WARM_S, MEASURE_S, QUERIES_PER_S = 1000, 20, 5, 3, 50
METRICS = {"mAP": (0.30, 0.50), "CMC@1": (0.45, 0.75)}
FACTS = tables.DrillFacts(
    command="python jobs/live.py --data shop --out runs/shop",
    created="2026-01-02T03:04:05+00:00",
    method="rm",
    title="full RM",
    order="score",
    merge="raw",
    primary_metric="mAP",
    metrics=("mAP", "CMC@1"),
    is_exact=True,
    data={"gallery_items": ITEMS, "queries": 60, "fingerprint": "sha256:abc"},
    versions={"ray_backfill": "0.1.0"},
    timings_s={"start": 1.25},
    seconds=230.0,
)
SETTINGS = {"shards": 2, "old_index": {"kind": "flat", "effort": None}, "traffic": {"rate": 50.0}}


def replayed_value(metric: str, t: float) -> float:
    """A rising curve, computed from the two constants."""
    old, new = METRICS[metric]
    return old + (new - old) * (0.6 * t + 0.4 * t * t)


def write_drill(
    folder: Path,
    points: int = 11,
    live_off: Mapping[tuple[str, int], float] | None = None,
    exact_off: float = 0.0,
    changed: Mapping[tuple[int, str], Any] | None = None,
    rollback_at: int | None = None,
    traffic: bool = True,
    incidents: Sequence[tuple[float, str, str]] = (),
    recall: float = 1.0,
    **manifest: Any,
) -> Path:
    """Write all tables and the manifest.

    live_off: added to live quality, by (metric, moment). exact_off: added to exact and live alike, as churn does.
    changed: cells of checkpoints.parquet, by (moment, column). rollback_at: the moment before the rollback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_checkpoint(i, i / (points - 1) if i else 0.0, recall, traffic) for i in range(points)]
    if rollback_at is not None:
        rows = [*rows[: rollback_at + 1], _rolled_back(rows[rollback_at])]
        manifest["rolled_back"] = True
    quality = []
    for row in rows:
        for metric, (old, _) in METRICS.items():
            exact = (old if row.is_rollback else replayed_value(metric, row.t)) + exact_off
            live = exact + (live_off or {}).get((metric, row.moment), 0.0)
            quality.append(tables.QualityRow(row.moment, row.t, metric, live, exact))
    for (moment, column), value in (changed or {}).items():
        rows[moment] = replace(rows[moment], **{column: value})
    write_table(folder / "checkpoints.parquet", frame(tables.CheckpointRow, rows))
    write_table(folder / "quality.parquet", frame(tables.QualityRow, quality))
    write_table(folder / "replayed.parquet", frame(tables.ReplayedRow, _replayed()))
    write_timeline(folder, int(rows[-1].elapsed_s) + 5, traffic)
    write_table(
        folder / "incidents.parquet",
        frame(tables.IncidentRow, [tables.IncidentRow(*incident) for incident in incidents]),
    )
    facts = asdict(FACTS) | {"settings": SETTINGS, "finished": True} | manifest
    facts["settings"] = {"format": tables.FORMAT} | facts["settings"]
    (folder / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def _checkpoint(index: int, t: float, recall: float, traffic: bool) -> tables.CheckpointRow:
    new, first = round(t * ITEMS), index == 0
    return tables.CheckpointRow(
        moment=index,
        t=t,
        phase="backfill",
        backfilled=new,
        old_items=ITEMS - new,
        new_items=new,
        kept_old=0,
        inserted=0,
        deleted=0,
        old_bytes=256_000 * (ITEMS - new),
        new_bytes=512_000 * new,
        elapsed_s=float(WARM_S + STEP_S * index),
        queries=QUERIES_PER_S * (WARM_S if first else STEP_S - MEASURE_S) if traffic else 0,
        unanswered=0,
        retried=0,
        violations=0,
        queries_per_s=float(QUERIES_PER_S) if traffic else NAN,
        p50_ms=10.0 + (0 if first else 4) if traffic else NAN,
        p95_ms=20.0 + (0 if first else 8) if traffic else NAN,
        p99_ms=30.0 + (0 if first else 11 + index) if traffic else NAN,
        items_per_s=NAN if first else ITEMS * 0.1 / STEP_S,
        old_recall=recall if new < ITEMS else NAN,
        new_recall=recall if new else NAN,
    )


def _rolled_back(last: tables.CheckpointRow) -> tables.CheckpointRow:
    return replace(
        last, moment=last.moment + 1, phase="rollback", elapsed_s=last.elapsed_s + 7.0, old_items=ITEMS, new_items=0,
        old_bytes=256_000 * ITEMS, new_bytes=0,
    )  # fmt: skip


def _replayed() -> list[tables.ReplayedRow]:
    return [
        tables.ReplayedRow(metric, i / 10, value, serving)
        for metric, (old, new) in METRICS.items()
        for i in range(11)
        for serving, value in (("backfill", replayed_value(metric, i / 10)), ("old", old), ("new", new))
    ]


def write_timeline(folder: Path, seconds: int, traffic: bool = True, killed_at: int | None = None) -> None:
    """Latency of 12 and 30 ms before the first item, 16 and 42 ms during the backfill; measuring for 3 s of each 20."""
    rows = []
    for s in range(seconds):
        is_measuring = s >= WARM_S and (s - WARM_S) % STEP_S < MEASURE_S
        at_work = WARM_S <= s < seconds - 5 and not is_measuring
        wave = 1 + 0.1 * float(np.sin(s))
        is_asked = traffic and not is_measuring
        rows.append(
            tables.SecondRow(
                elapsed_s=s,
                queries=QUERIES_PER_S if is_asked else 0,
                unanswered=0,
                p50_ms=(16.0 if at_work else 12.0) * wave if is_asked else NAN,
                p99_ms=(42.0 if at_work else 30.0) * wave if is_asked else NAN,
                items=6 if at_work else 0,
                is_measuring=is_measuring,
                is_warm_up=False,
                leg=0 if killed_at is None else int(s >= killed_at),
            )
        )
    write_table(folder / "timeline.parquet", frame(tables.SecondRow, rows))
    write_table(folder / "phases.parquet", frame(tables.PhaseRow, _phases(rows)))


def _phases(rows: Sequence[tables.SecondRow]) -> list[tables.PhaseRow]:
    """The phases of a timeline, by whole seconds."""
    of: dict[tables.Phase, list[tables.SecondRow]] = {}
    for row in rows:
        idle = tables.Phase.BEFORE if row.elapsed_s < WARM_S else tables.Phase.AFTER
        phase = tables.Phase.MEASURING if row.is_measuring else tables.Phase.DURING if row.items else idle
        of.setdefault(phase, []).append(row)
    found = []
    for phase in [phase for phase in tables.Phase if phase in of]:
        queries, items = (sum(getattr(row, name) for row in of[phase]) for name in ("queries", "items"))
        p50_ms, p99_ms = (float(np.median([getattr(row, name) for row in of[phase]])) for name in ("p50_ms", "p99_ms"))
        found.append(tables.PhaseRow(phase.value, float(len(of[phase])), queries, queries, 0, items, p50_ms, p99_ms))
    return found
