"""The folder of a live drill made by hand: 11 checkpoints 20 s apart, 1,000 items, 50 queries a second."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

NAN = math.nan
ITEMS, STEP_S, WARM_S, MEASURE_S, QUERIES_PER_S = 1000, 20, 5, 3, 50
METRICS = {"mAP": (0.30, 0.50), "CMC@1": (0.45, 0.75)}
MANIFEST: dict[str, Any] = {
    "kind": "live",
    "command": "python jobs/live.py --data shop --out runs/shop",
    "created": "2026-01-02T03:04:05+00:00",
    "method": "rm",
    "title": "full RM",
    "order": "score",
    "merge": "raw",
    "primary_metric": "mAP",
    "metrics": ["mAP", "CMC@1"],
    "settings": {"shards": 2, "old_index": {"kind": "flat", "effort": None}, "traffic": {"rate": 50.0}},
    "is_exact": True,
    "has_churn": False,
    "rolled_back": False,
    "data": {"gallery_items": ITEMS, "queries": 60, "fingerprint": "sha256:abc"},
    "versions": {"ray_backfill": "0.1.0"},
    "timings_s": {"start": 1.25},
    "seconds": 230.0,
    "legs": 1,
    "finished": True,
}
NO_INCIDENTS: tuple[tuple[float, str, str], ...] = ()


def replayed_value(metric: str, t: float) -> float:
    """A curve that rises, made of the two constants."""
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
    incidents: Sequence[tuple[float, str, str]] = NO_INCIDENTS,
    recall: float = 1.0,
    **manifest: Any,
) -> Path:
    """Write all tables and the manifest.

    live_off: added to live quality, by (metric, moment). exact_off: added to exact and live alike, as churn does.
    changed: cells of checkpoints.parquet, by (moment, column). rollback_at: the moment before the rollback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    t = [i / (points - 1) for i in range(points)] if points > 1 else [0.0]
    rows = [_checkpoint(i, x, recall, traffic) for i, x in enumerate(t)]
    if rollback_at is not None:
        rows = [*rows[: rollback_at + 1], _rolled_back(rows[rollback_at])]
        manifest["rolled_back"] = True
    quality = []
    for row in rows:
        for metric, (old, _) in METRICS.items():
            value = old if row["phase"] == "rollback" else replayed_value(metric, row["t"])
            live = value + exact_off + (live_off or {}).get((metric, row["moment"]), 0.0)
            quality.append(
                {"moment": row["moment"], "t": row["t"], "metric": metric, "live": live, "exact": value + exact_off}
            )
    for (moment, column), value in (changed or {}).items():
        rows[moment][column] = value
    pd.DataFrame(rows).to_parquet(folder / "checkpoints.parquet")
    pd.DataFrame(quality).to_parquet(folder / "quality.parquet")
    pd.DataFrame(_replayed()).to_parquet(folder / "replayed.parquet")
    write_timeline(folder, int(rows[-1]["elapsed_s"]) + 5, traffic)
    happened = pd.DataFrame(list(incidents), columns=["elapsed_s", "kind", "detail"])
    happened.astype({"elapsed_s": float}).to_parquet(folder / "incidents.parquet")
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | manifest), encoding="utf-8")
    return folder


def _checkpoint(index: int, t: float, recall: float, traffic: bool) -> dict[str, Any]:
    new = round(t * ITEMS)
    first = index == 0
    return {
        "moment": index,
        "t": t,
        "phase": "backfill",
        "elapsed_s": float(WARM_S + STEP_S * index),
        "backfilled": new,
        "old_items": ITEMS - new,
        "new_items": new,
        "kept_old": 0,
        "inserted": 0,
        "deleted": 0,
        "old_bytes": 256_000 * (ITEMS - new),
        "new_bytes": 512_000 * new,
        "queries": QUERIES_PER_S * (WARM_S if first else STEP_S - MEASURE_S) if traffic else 0,
        "unanswered": 0,
        "retried": 0,
        "violations": 0,
        "queries_per_s": float(QUERIES_PER_S) if traffic else NAN,
        "p50_ms": 10.0 + (0 if first else 4) if traffic else NAN,
        "p95_ms": 20.0 + (0 if first else 8) if traffic else NAN,
        "p99_ms": 30.0 + (0 if first else 11 + index) if traffic else NAN,
        "items_per_s": NAN if first else ITEMS * 0.1 / STEP_S,
        "old_recall": recall if new < ITEMS else NAN,
        "new_recall": recall if new else NAN,
    }


def _rolled_back(last: dict[str, Any]) -> dict[str, Any]:
    back = {"moment": last["moment"] + 1, "phase": "rollback", "elapsed_s": last["elapsed_s"] + 7.0}
    return last | back | {"old_items": ITEMS, "new_items": 0, "old_bytes": 256_000 * ITEMS, "new_bytes": 0}


def _replayed() -> list[dict[str, Any]]:
    rows = []
    for metric, (old, new) in METRICS.items():
        for i in range(11):
            for serving, value in (("backfill", replayed_value(metric, i / 10)), ("old", old), ("new", new)):
                rows.append({"t": i / 10, "metric": metric, "serving": serving, "value": value})
    return rows


def write_timeline(folder: Path, seconds: int, traffic: bool = True, killed_at: int | None = None) -> None:
    """Latency of 12 and 30 ms before the first item, 16 and 42 ms during the backfill; measuring for 3 s of each 20."""
    s = np.arange(seconds)
    measuring = (s >= WARM_S) & ((s - WARM_S) % STEP_S < MEASURE_S)
    at_work = (s >= WARM_S) & (s < seconds - 5) & ~measuring
    wave = 1 + 0.1 * np.sin(s)
    frame = pd.DataFrame(
        {
            "elapsed_s": s,
            "queries": np.where(measuring | (not traffic), 0, QUERIES_PER_S),
            "p50_ms": np.where(at_work, 16.0, 12.0) * wave,
            "p99_ms": np.where(at_work, 42.0, 30.0) * wave,
            "items": np.where(at_work, 6, 0),
            "unanswered": 0,
            "is_measuring": measuring,
            "is_warm_up": False,
            "leg": 0 if killed_at is None else (s >= killed_at).astype(int),
        }
    )
    frame.loc[frame["queries"] == 0, ["p50_ms", "p99_ms"]] = NAN
    frame.to_parquet(folder / "timeline.parquet")
