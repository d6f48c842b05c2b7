"""Results folders of several seeds made by hand: straight curves from a start to an end, old 30, new 50 per cent."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ray_backfill.compare.analyses.slices import GAP, SubgroupPoint
from ray_backfill.compare.tables import (
    AUC,
    END,
    FORMAT,
    CurvePoint,
    DifferenceRow,
    MomentPoint,
    QueryValues,
    ScoredQuery,
    SummaryRow,
)
from ray_backfill.core.schema import block, frame, write_table
from reproduction.runs import Case, Runs, SeedRun, read_runs
from tests.compare.report.folder import made_traits
from tests.summary import summary_row

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
    queries: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),
    **manifest: Any,
) -> Path:
    """Write one results folder; gaps by case become subgroups.parquet.

    queries: what each query has above the means; from one method to the next it moves on by one query.
    """
    curves: list[pd.DataFrame] = []
    moments: list[pd.DataFrame] = []
    summary: list[SummaryRow] = []
    cases = (REFERENCES if references else {}) | dict(made)
    for case, line in cases.items():
        for metric, shift in (("mAP", 0.0), ("CMC@1", CMC_ABOVE)):
            values = [v + shift for v in line.curve()]
            curves.append(block(CurvePoint, *case, metric, T, values, NAN, NAN))
            area = trapezoid(values)
            gain = (area - shift - OLD) / (NEW - OLD)
            summary.append(
                summary_row(
                    *case, title=case.method.replace("_", " "), metric=metric, auc=area,
                    auc_mean=sum(values) / len(values), gain=gain, start=values[0], end=values[-1],
                    largest_fall=line.fall, negative_flips_max=0.02, negative_flips_vs_old_max=0.05,
                )
            )  # fmt: skip
            moments.append(block(MomentPoint, *case, metric, T, values))
    write_queries(folder, cases, queries)
    write_table(folder / "curves.parquet", pd.concat(curves))
    write_table(folder / "moments.parquet", pd.concat(moments))
    write_table(folder / "summary.parquet", frame(SummaryRow, summary))
    nothing = DifferenceRow("", "", "", "", "", "", "", *[NAN] * 5)
    write_table(folder / "differences.parquet", frame(DifferenceRow, [nothing]))
    if gaps is not None:
        write_gaps(folder, gaps, gap_moments)
    traits = made_traits(*({case[part] for case in cases} for part in range(3)))
    (folder / "manifest.json").write_text(
        json.dumps(MANIFEST | {"traits": asdict(traits)} | manifest), encoding="utf-8"
    )
    return folder


def write_gaps(folder: Path, gaps: Mapping[Case, tuple[float, ...]], moments: tuple[float, ...]) -> None:
    rows = [
        SubgroupPoint(*case, metric, "group", group, 9, t, v * times, NAN, NAN)
        for case, values in gaps.items()
        for t, v in zip(moments, values, strict=True)
        # Neither women's own values nor mAP must be read as the gap in top-1 accuracy.
        for metric, group, times in (("mAP", GAP, 3), ("CMC@1", "women", 2), ("CMC@1", GAP, 1))
    ]
    write_table(folder / "subgroups.parquet", frame(SubgroupPoint, rows))


def write_queries(folder: Path, cases: Mapping[Case, Made], above: tuple[float, ...]) -> None:
    """What each query contributes to AUC and M_1."""
    rows = []
    for number, (case, line) in enumerate(case_line for case_line in cases.items() if case_line[0].merge == "raw"):
        curve = line.curve()
        order = "" if case.method in ("old", "new", "offline") else case.order
        own = [above[(i + number) % len(above)] for i in range(len(above))]
        for quantity, mean in ((AUC, trapezoid(curve)), (END, curve[-1])):
            values = np.array([mean + more for more in own], np.float32)
            rows.append(block(QueryValues, case.method, order, "mAP", quantity, [values]))
    write_table(folder / "query_values.parquet", pd.concat(rows))
    places = np.arange(len(above))
    write_table(folder / "queries.parquet", block(ScoredQuery, places.astype(str), places, 1.0))


def runs_of(tmp_path: Path, *seeds: Mapping[Case, Made], **options: Any) -> Runs:
    """One folder a mapping, read."""
    return read_runs(
        SeedRun(seed, write_seed(tmp_path / f"seed-{seed}", made, **options)) for seed, made in enumerate(seeds)
    )


MANIFEST: dict[str, Any] = {
    "settings": {"format": FORMAT},
    "primary_metric": "mAP",
    "versions": {"ray_backfill": "0.1.0", "numpy": "2.4.6"},
    "data": {"fingerprint": "sha256:abc", "gallery_items": 1936, "queries": 1936},
    "left_out": [{"kind": "method", "name": "fct_side", "reason": "no side information"}],
}
