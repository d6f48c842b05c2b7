"""A hand-made results folder: three moments, with numbers that are easy to check."""

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from ray_backfill.compare.analyses.costs import CostRow
from ray_backfill.compare.tables import (
    FLIP_METRICS,
    FORMAT,
    CurvePoint,
    DifferenceRow,
    MergeTraits,
    MethodTraits,
    MomentPoint,
    OrderTraits,
    SummaryRow,
    Traits,
)
from ray_backfill.core.schema import NO, YES, block, frame, write_table
from tests.summary import summary_row

T = (0.0, 0.5, 1.0)
NAN = math.nan
# method: title, mAP at T, AUC, AUC (mean), gain, never falls, largest fall, starts at old, ends at new, negative flips
METHODS: dict[str, tuple[Any, ...]] = {
    "old": ("old", (0.30, 0.30, 0.30), 0.30, 0.30, 0.0, YES, 0.0, YES, NO, 0.0),
    "new": ("new", (0.50, 0.50, 0.50), 0.50, 0.50, 1.0, YES, 0.0, YES, YES, 0.02),
    "rm_naive": ("RM naive", (0.30, 0.28, 0.50), 0.34, 0.36, 0.2, NO, 0.02, YES, YES, 0.075),
    "rm": ("full RM", (0.40, 0.55, 0.62), 0.53, 0.5233, 1.15, YES, 0.0, YES, YES, 0.031),
    "bct": ("BCT", (0.25, 0.35, 0.45), 0.35, 0.35, 0.25, YES, 0.0, NO, NO, NAN),
}
SAFE = (YES, 0.0, YES, YES, 0.01)
SHIFT = {"mAP": 0.0, "CMC@1": 0.2}  # CMC@1 is mAP plus 20 points


def many_methods(count: int = 30) -> dict[str, tuple[Any, ...]]:
    """The five methods, and further ones whose AUC falls by 0.1 points from one to the next, from 33.9 %."""
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
    curves, moments = list[pd.DataFrame](), list[pd.DataFrame]()
    summary: list[SummaryRow] = []
    areas: dict[tuple[str, str, str, str], float] = {}
    half, ends = 0.01 if intervals else NAN, {**METHODS, **methods}
    for (late, order), (off, merge) in product(enumerate(orders), enumerate(merges)):
        for name, (title, values, auc, mean, gain, steady, fall, at_old, at_new, negative) in methods.items():
            if off and name in ("old", "new"):
                continue
            key = name, order, merge
            cost = 0.0 if name in ("old", "new") else 0.01 * late + 0.004 * off
            for metric, shift in SHIFT.items():
                curve = pd.Series(values) + shift
                curves.append(block(CurvePoint, *key, metric, T, curve, curve - half, curve + half))
                area, late_gain = auc + shift - cost, gain - 5 * cost
                areas[*key, metric] = area
                summary.append(
                    summary_row(
                        *key, **_gain_columns(late_gain), title=title, metric=metric, auc=area, auc_low=area - half,
                        auc_high=area + half, auc_mean=mean + shift - cost, old_auc=ends["old"][2] + shift,
                        new_auc=ends["new"][2] + shift, start=values[0] + shift, end=values[-1] + shift,
                        start_vs_old=values[0] - 0.3, start_vs_old_low=values[0] - 0.3 - half,
                        start_vs_old_high=values[0] - 0.3 + half, largest_fall=fall, largest_fall_low=fall - half,
                        largest_fall_high=fall + half, fall_start=0.0, fall_end=0.5, passes_old_at=0.0,
                        half_gain_at=0.5, passes_new_at=1.0, starts_at_old=at_old, ends_at_new=at_new,
                        negative_flips_max=negative, negative_flips_vs_old_max=2 * negative, never_falls=steady,
                    )
                )  # fmt: skip
                moments.append(block(MomentPoint, *key, metric, T, curve))
            for metric in FLIP_METRICS if flips else ():
                curves.append(block(CurvePoint, *key, metric, T, [0.1 * t for t in T], NAN, NAN))
    write_table(folder / "curves.parquet", pd.concat(curves))
    write_table(folder / "moments.parquet", pd.concat(moments))
    write_table(folder / "summary.parquet", frame(SummaryRow, summary))
    write_table(folder / "differences.parquet", frame(DifferenceRow, _differences(areas)))
    facts = MANIFEST | {"traits": asdict(made_traits(methods, orders, merges))} | manifest
    facts["settings"] = {"format": FORMAT} | facts["settings"]
    (folder / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


@contextmanager
def manifest_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The manifest of a results folder, to be changed."""
    file = folder / "manifest.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    yield facts
    file.write_text(json.dumps(facts), encoding="utf-8")


def printed(print_it: Callable[[Console], None], width: int = 200) -> str:
    """What is printed on a terminal of this width, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_it(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _gain_columns(gain: float) -> dict[str, Any]:
    return {f"gain{end}": gain + apart for end, apart in {"": 0.0, "_low": -0.1, "_high": 0.1}.items()}


def made_traits(methods: Iterable[str], orders: Iterable[str], merges: Iterable[str]) -> Traits:
    """The manifest's traits of these names; every name but raw and random has a glossary entry."""

    def glossary(name: str) -> dict[str, str]:
        return {} if name in (*METHODS, "raw", "random", "score") else {f"word of {name}": "its meaning"}

    return Traits(
        {
            m: MethodTraits(
                m,
                "family",
                m in ("old", "new", "offline"),
                m == "rm_naive",
                is_trained=m == "rm",
                glossary=glossary(m),
            )
            for m in methods
        },
        {o: OrderTraits(o, "oracle" in o, glossary(o)) for o in orders},
        {m: MergeTraits(m, m == "rrf", glossary(m)) for m in merges},
    )


def _differences(areas: Mapping[tuple[str, str, str, str], float]) -> list[DifferenceRow]:
    """All pairs that differ in one respect, and all with old and new of the same order."""
    rows = []
    for a, b in product(areas, areas):
        apart = [x != y for x, y in zip(a[:3], b[:3], strict=True)]
        is_reference = a[1] == b[1] and (a[0] in ("old", "new") or b[0] in ("old", "new"))
        if a[3] == b[3] and (sum(apart) == 1 or (is_reference and apart[0])):
            lead = areas[a] - areas[b]
            limits = lead - 0.02, lead + 0.02
            rows.append(DifferenceRow(*a[:3], *b, lead, *limits, *limits))
    return rows or [DifferenceRow("", "", "", "", "", "", "", *[NAN] * 5)]


def write_costs(folder: Path, query_backbone_macs: float = NAN) -> Path:
    """Add costs to existing results: 132,900 parameters; the backbone was not counted."""
    rows = [
        CostRow(name, made[0], "old + new", query_backbone_macs, 132_900, 131_072, 0, 1_800_000_000, "new", NAN)
        for name, made in METHODS.items()
    ]
    write_table(folder / "costs.parquet", frame(CostRow, rows))
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
    "margin": 0.005,
    "timings_s": {"replay": 1.25},
    "left_out": [{"kind": "method", "name": "fct", "reason": "needs a train table"}],
}
