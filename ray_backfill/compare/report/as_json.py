"""Results of a comparison for programs. docs/schema/simulate.json describes them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray_backfill.compare.report.answers import good_to_know, warnings
from ray_backfill.compare.report.verdict import (
    basis,
    conditions,
    decide,
    export_command,
    next_command,
    queries,
    verdict,
)
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.core.outcome import json_value

# Keys of a row that are columns of summary.parquet.
_SAME = (
    *("method", "title", "order", "merge", "metric", "gain", "gain_low", "gain_high", "start", "end"),
    *("largest_fall", "largest_fall_low", "largest_fall_high", "flips_as_new_at"),
    *(f"{name}{end}" for name in ("passes_old_at", "half_gain_at", "passes_new_at") for end in ("", "_low", "_high")),
)


def as_json(results: ResultsData, folder: Path) -> dict[str, Any]:
    """The verdict and the rows of ``summary.parquet`` as plain data; shares, 1.0 = 100 %. folder: of the results."""
    document = {
        "schema": 2,
        "decision": decide(results),
        "verdict": verdict(results),
        "basis": basis(results),
        "next": next_command(results),
        "export": export_command(results, folder),
        "warnings": warnings(results),
        "good_to_know": good_to_know(results),
        "primary_metric": results.primary,
        "queries": queries(results),
        "gallery_items": results.manifest.data["gallery_items"],
        "best": getattr(results.best(), "method", None),
        "results": [_row(results, row) for row in results.rows],
        "left_out": [asdict(missing) for missing in results.manifest.left_out],
        "folder": str(folder),
    }
    return {name: json_value(value) for name, value in document.items()}


def _row(results: ResultsData, row: Row) -> dict[str, Any]:
    starts, ends, falls = conditions(results, row)
    return {
        **{name: getattr(row, name) for name in _SAME},
        "average": row.auc,
        "average_low": row.auc_low,
        "average_high": row.auc_high,
        "starts_no_worse_than_old": starts,
        "ends_no_worse_than_new": ends,
        "never_falls": falls,
        "lost": row.negative_flips_vs_old_max,
    }
