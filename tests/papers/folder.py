"""Results folders of several seeds made by hand: straight curves from a start to an end, old 30, new 50 per cent."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from papers.runs import Case, Runs, SeedRun, read_runs

T = (0.0, 0.25, 0.5, 0.75, 1.0)
NAN = math.nan
OLD, NEW = 0.30, 0.50
ORDER = "classifier_score"
CMC_ABOVE = 0.2  # CMC@1 is mAP plus 20 points


class Made(NamedTuple):
    """A straight line from start to end; at the last but one moment it stands ``fall`` below the moment before."""

    start: float
    end: float
    fall: float = 0.0

    def curve(self) -> list[float]:
        line = [self.start + t * (self.end - self.start) for t in T]
        if self.fall:
            line[3] = line[2] - self.fall
        return line


def flat(area: float) -> Made:
    """A constant curve, whose AUC is its height."""
    return Made(area, area)


REFERENCES = {Case("old", ORDER): flat(OLD), Case("new", ORDER): flat(NEW), Case("offline", ORDER): flat(0.31)}


def trapezoid(values: list[float], t: tuple[float, ...] = T) -> float:
    """AUC as one would compute it on paper."""
    steps = zip(t, t[1:], values, values[1:], strict=False)
    return sum((after - before) * (left + right) / 2 for before, after, left, right in steps)


def write_seed(
    folder: Path,
    made: Mapping[Case, Made],
    references: bool = True,
    gaps: Mapping[Case, tuple[float, ...]] | None = None,
    gap_moments: tuple[float, ...] = T,
    **manifest: Any,
) -> Path:
    """Write one results folder; gaps by case become subgroups.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    curves: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for case, line in ((REFERENCES if references else {}) | dict(made)).items():
        for metric, shift in (("mAP", 0.0), ("CMC@1", CMC_ABOVE)):
            key = case._asdict() | {"metric": metric}
            values = [v + shift for v in line.curve()]
            curves += [key | {"t": t, "value": v, "low": NAN, "high": NAN} for t, v in zip(T, values, strict=True)]
            area = trapezoid(values)
            gain = (area - shift - OLD) / (NEW - OLD)
            unknown = dict.fromkeys(("auc_low", "auc_high", "gain_low", "gain_high"), NAN)
            numbers = {"auc": area, "auc_mean": sum(values) / len(values), "gain": gain, "start": values[0]}
            numbers |= {"end": values[-1], "largest_fall": line.fall, "negative_flips_max": 0.05}
            flags = {"monotone": line.fall == 0, "starts_at_old": line.start >= OLD, "ends_at_new": line.end >= NEW}
            summary.append(key | {"title": case.method.replace("_", " ")} | numbers | unknown | flags)
    pd.DataFrame(curves).to_parquet(folder / "curves.parquet")
    pd.DataFrame(summary).to_parquet(folder / "summary.parquet")
    names = ("method", "order", "merge", "other_method", "other_order", "other_merge", "metric")
    nothing = dict.fromkeys(names, "") | dict.fromkeys(("difference", "low", "high"), NAN)
    pd.DataFrame([nothing]).to_parquet(folder / "differences.parquet")
    if gaps is not None:
        fixed = {"metric": "mAP", "low": NAN, "high": NAN, "queries": 9}
        rows = [
            case._asdict() | fixed | {"t": t, "value": v * times, "group": group}
            for case, values in gaps.items()
            for t, v in zip(gap_moments, values, strict=True)
            for group, times in (("women", 2), ("(gap)", 1))  # women's own values must not be read as the gap
        ]
        pd.DataFrame(rows).to_parquet(folder / "subgroups.parquet")
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | manifest), encoding="utf-8")
    return folder


def runs_of(tmp_path: Path, *seeds: Mapping[Case, Made], **options: Any) -> Runs:
    """One folder a mapping, read."""
    return read_runs(
        SeedRun(seed, write_seed(tmp_path / f"seed-{seed}", made, **options)) for seed, made in enumerate(seeds)
    )


MANIFEST: dict[str, Any] = {
    "primary_metric": "mAP",
    "versions": {"ray_backfill": "0.1.0", "numpy": "2.4.6"},
    "data": {"fingerprint": "sha256:abc", "gallery_items": 1936, "queries": 1936},
    "left_out": {"fct_side": "no side information"},
}
