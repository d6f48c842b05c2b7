"""A results folder made by hand: three points in time, numbers that can be checked in the head."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
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
SAFE = (True, 0.0, True, True, 0.01)
FLIPS = ("negative_flips", "positive_flips", "negative_flips_vs_old", "positive_flips_vs_old")
SHIFT = {"mAP": 0.0, "CMC@1": 0.2}  # CMC@1 is mAP plus 20 points


def many_methods(count: int = 30) -> dict[str, tuple[Any, ...]]:
    """The five methods, and so many others whose AUC falls by 0.1 points from one to the next, from 33.9 %."""
    extra = {f"m{i}": (f"method {i}", (0.3, 0.33, 0.4), 0.339 - 0.001 * i, 0.34, 0.19, *SAFE) for i in range(count)}
    return METHODS | extra


def write_results(
    folder: Path,
    methods: Mapping[str, tuple[Any, ...]] = METHODS,
    orders: Sequence[str] = ("score",),
    intervals: bool = True,
    flips: bool = True,
    merges: Sequence[str] = ("raw",),
    **manifest: Any,
) -> Path:
    """Write tables and manifest; each order after the first costs every method but old and new one point of AUC.

    Each merge after the first costs 0.4 points; old and new have the first one only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    curves: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    areas: dict[tuple[str, str, str, str], float] = {}
    for (late, order), (off, merge) in product(enumerate(orders), enumerate(merges)):
        for name, (title, values, auc, mean, gain, monotone, fall, at_old, at_new, negative) in methods.items():
            if off and name in ("old", "new"):
                continue
            key = {"method": name, "order": order, "merge": merge}
            cost = 0.0 if name in ("old", "new") else 0.01 * late + 0.004 * off
            for metric, shift in SHIFT.items():
                half = 0.01 if intervals else NAN
                for t, value in zip(T, values, strict=True):
                    point = {"metric": metric, "t": t, "value": value + shift}
                    curves.append(key | point | {"low": value + shift - half, "high": value + shift + half})
                area = auc + shift - cost
                numbers = {"auc": area, "auc_low": area - half, "auc_high": area + half}
                numbers |= {"auc_mean": mean + shift - cost, "gain": gain - 5 * cost}
                numbers |= {"gain_low": gain - 5 * cost - 0.1, "gain_high": gain - 5 * cost + 0.1}
                areas[name, order, merge, metric] = area
                ends = {"start": values[0] + shift, "end": values[-1] + shift, "largest_fall": fall}
                flags = {"monotone": monotone, "starts_at_old": at_old, "ends_at_new": at_new}
                row = key | {"title": title, "metric": metric} | numbers | ends | flags
                summary.append(row | {"negative_flips_max": negative})
            for metric in FLIPS if flips else ():
                curves += [key | {"metric": metric, "t": t, "value": 0.1 * t, "low": NAN, "high": NAN} for t in T]
    pd.DataFrame(curves).to_parquet(folder / "curves.parquet")
    pd.DataFrame(summary).to_parquet(folder / "summary.parquet")
    _differences(areas).to_parquet(folder / "differences.parquet")
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | manifest), encoding="utf-8")
    return folder


def _differences(areas: Mapping[tuple[str, str, str, str], float]) -> pd.DataFrame:
    """All pairs that differ in one thing, and all with old and new of the same order."""
    columns = ("method", "order", "merge", "other_method", "other_order", "other_merge", "metric")
    rows = []
    for a, b in product(areas, areas):
        apart = [x != y for x, y in zip(a[:3], b[:3], strict=True)]
        is_reference = a[1] == b[1] and (a[0] in ("old", "new") or b[0] in ("old", "new"))
        if a[3] == b[3] and (sum(apart) == 1 or (is_reference and apart[0])):
            lead = areas[a] - areas[b]
            rows.append((*a[:3], *b, lead, lead - 0.02, lead + 0.02))
    rows = rows or [("", "", "", "", "", "", "", NAN, NAN, NAN)]
    return pd.DataFrame(rows, columns=[*columns, "difference", "low", "high"])


def write_costs(folder: Path, methods: Sequence[str] = tuple(METHODS), **numbers: float) -> Path:
    """What a method costs, beside results that are there: 132,900 parameters, and nobody counted the backbone."""
    names = {"query_models": "old + new", "trained_models": "new"}
    counts = {"query_backbone_macs": NAN, "query_parameters": 132_900, "query_macs": 131_072, "gallery_macs": 0}
    counts |= {"training_flops": 1.8e9, "backbone_training_flops": NAN} | numbers
    rows = [{"method": name, "title": METHODS[name][0] if name in METHODS else name} for name in methods]
    pd.DataFrame([row | names | counts for row in rows]).to_parquet(folder / "costs.parquet")
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
