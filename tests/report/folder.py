"""A results folder made by hand: three points in time, numbers that can be checked in the head."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

T = (0.0, 0.5, 1.0)
NAN = math.nan
# method: title, mAP at T, AUC, AUC (mean), gain, monotone, largest fall, starts_at_old, ends_at_new, negative flips
METHODS: dict[str, tuple[Any, ...]] = {
    "old": ("old", (0.30, 0.30, 0.30), 0.30, 0.30, 0.0, True, 0.0, True, False, NAN),
    "new": ("new", (0.50, 0.50, 0.50), 0.50, 0.50, 1.0, True, 0.0, True, True, NAN),
    "rm_naive": ("RM naive", (0.30, 0.28, 0.50), 0.34, 0.36, 0.2, False, 0.02, True, True, 0.075),
    "rm": ("full RM", (0.40, 0.55, 0.62), 0.53, 0.5233, 1.15, True, 0.0, True, True, 0.031),
    "bct": ("BCT", (0.25, 0.35, 0.45), 0.35, 0.35, 0.25, True, 0.0, False, False, NAN),
}
FLIPS = ("negative_flips", "positive_flips", "negative_flips_vs_old", "positive_flips_vs_old")
SHIFT = {"mAP": 0.0, "CMC@1": 0.2}  # CMC@1 is mAP plus 20 points


def write_results(
    folder: Path,
    methods: Mapping[str, tuple[Any, ...]] = METHODS,
    orders: Sequence[str] = ("score",),
    intervals: bool = True,
    flips: bool = True,
    **manifest: Any,
) -> Path:
    """Write the three files; each order after the first costs every method but old and new one point of AUC."""
    folder.mkdir(parents=True, exist_ok=True)
    curves: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    areas: dict[tuple[str, str, str], float] = {}
    for late, order in enumerate(orders):
        for name, (title, values, auc, mean, gain, monotone, fall, at_old, at_new, negative) in methods.items():
            key = {"method": name, "order": order, "merge": "raw"}
            cost = 0.0 if name in ("old", "new") else 0.01 * late
            for metric, shift in SHIFT.items():
                half = 0.01 if intervals else NAN
                for t, value in zip(T, values, strict=True):
                    point = {"metric": metric, "t": t, "value": value + shift}
                    curves.append(key | point | {"low": value + shift - half, "high": value + shift + half})
                area = auc + shift - cost
                numbers = {"auc": area, "auc_low": area - half, "auc_high": area + half}
                numbers |= {"auc_mean": mean + shift - cost, "gain": gain - 5 * cost}
                numbers |= {"gain_low": gain - 5 * cost - 0.1, "gain_high": gain - 5 * cost + 0.1}
                areas[name, order, metric] = area
                ends = {"start": values[0] + shift, "end": values[-1] + shift, "largest_fall": fall}
                flags = {"monotone": monotone, "starts_at_old": at_old, "ends_at_new": at_new}
                row = key | {"title": title, "metric": metric} | numbers | ends | flags
                summary.append(row | {"negative_flips_max": negative})
            for metric in FLIPS if flips else ():
                curves += [key | {"metric": metric, "t": t, "value": 0.1 * t, "low": NAN, "high": NAN} for t in T]
    pd.DataFrame(curves).to_parquet(folder / "curves.parquet")
    pd.DataFrame(summary).to_parquet(folder / "summary.parquet")
    differences = [
        {"method": a[0], "order": a[1], "other_method": b[0], "other_order": b[1], "merge": "raw", "metric": a[2]}
        | {"difference": areas[a] - areas[b], "low": areas[a] - areas[b] - 0.02, "high": areas[a] - areas[b] + 0.02}
        for a in areas
        for b in areas
        if a != b and a[2] == b[2] and (a[0] == b[0] or a[1] == b[1])
    ]
    nothing = [key | {"difference": NAN, "low": NAN, "high": NAN, "other_method": "", "other_order": "", "metric": ""}]
    pd.DataFrame(differences or nothing).to_parquet(folder / "differences.parquet")
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | manifest), encoding="utf-8")
    return folder


MANIFEST: dict[str, Any] = {
    "kind": "simulation",
    "command": "python jobs/simulate.py --data shop --out runs/shop",
    "created": "2026-01-02T03:04:05+00:00",
    "settings": {"simulate": {"points": 3, "metrics": ["mAP", "CMC@1"]}, "heads": {"rm": {"tau": 0.1}}},
    "versions": {"ray_backfill": "0.1.0", "numpy": "2.4.6"},
    "seed": 7,
    "data": {
        "fingerprint": "sha256:abc",
        "gallery_items": 12345,
        "queries": 678,
        "queries_skipped": 9,
        "old_dim": 64,
        "new_dim": 128,
        "broken_images": 0,
        "notes": ["old was stored as float16"],
    },
    "primary_metric": "mAP",
    "timings_s": {"replay": 1.25},
    "left_out": {"fct": "needs a train table"},
}
