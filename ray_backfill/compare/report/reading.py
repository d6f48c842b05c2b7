"""Reads and checks a results folder: five tables and a manifest in, one typed, frozen ``Results`` out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ray_backfill.compare.report.results import Line, Pair, Results, Row, Trace, Variant
from ray_backfill.compare.tables.checks import CheckRow
from ray_backfill.compare.tables.cutoffs import CutoffRow
from ray_backfill.compare.tables.queries import ShownQuery
from ray_backfill.compare.tables.results import (
    FLIP_METRICS,
    OPTIONAL,
    TABLES,
    CostRow,
    DifferenceRow,
    Manifest,
    SummaryRow,
    Traits,
)
from ray_backfill.compare.tables.slices import SliceRow
from ray_backfill.core.errors import InputError, local_path
from ray_backfill.core.printable import printable
from ray_backfill.core.schema import read_manifest, read_table, rows_of
from ray_backfill.page import Difference

# Read by those who compare methods query by query, not by reports: ten times as large as all others.
_BY_QUERY = ("queries", "query_values", "flips")
LineT = TypeVar("LineT", Line, Trace)
AGAIN = "run simulate again"
# Table -> what its older versions did not say.
_OLDER = {"subgroups": {"slice": "group"}, "shown": {"merge": "raw"}}


def read_results(folder: str | Path) -> Results:
    """Read the results of a simulation.

    Args:
        folder: The folder of the run (``--out``), or its folder ``results``.

    Returns:
        Curves, summary and differences; subgroups and costs if the folder has them.

    Raises:
        InputError: The folder, a file, a column or a key is missing, or the files contradict each other.
    """
    folder = local_path(folder)
    if not (folder / "manifest.json").exists() and (folder / "results").is_dir():
        folder = folder / "results"
    if not folder.is_dir():
        raise InputError(f"no results folder at {folder}: give the --out folder of a simulate run")
    found = {
        name: read_table(folder / f"{name}.parquet", row_type, AGAIN, older=_OLDER.get(name))
        for name, row_type in TABLES.items()
        if name not in _BY_QUERY and (name not in OPTIONAL or (folder / f"{name}.parquet").exists())
    }
    results = results_of(found, _manifest(folder / "manifest.json"), folder / "manifest.json")
    _check(results, folder)
    return results


def results_of(tables: Mapping[str, pd.DataFrame], manifest: Manifest, path: Path = Path("manifest.json")) -> Results:
    """Results from tables in memory. tables: by name as in ``TABLES``. path: the manifest's path, for errors."""
    return Results(
        _rows(tables["summary"], manifest.traits, path),
        _curves(tables["curves"], Line),
        _differences(rows_of(DifferenceRow, tables["differences"])),
        _groups(tables["subgroups"]) if "subgroups" in tables else {},
        _curves(tables["moments"], Trace),
        manifest,
        tuple(rows_of(CostRow, tables["costs"])) if "costs" in tables else (),
        tuple(rows_of(CheckRow, tables["checks"])) if "checks" in tables else (),
        tuple(rows_of(SliceRow, tables["slices"])) if "slices" in tables else (),
        tuple(rows_of(ShownQuery, tables["shown"])) if "shown" in tables else (),
        tuple(rows_of(CutoffRow, tables["cutoffs"])) if "cutoffs" in tables else (),
    )


def _check(results: Results, folder: Path) -> None:
    if not any(row.metric == results.primary for row in results.rows):
        raise InputError(
            f"{folder / 'summary.parquet'} has no rows for the primary metric {results.primary!r}: {AGAIN}"
        )
    for row in results.rows:
        if row.metric not in FLIP_METRICS and results.line(row) is None:
            raise InputError(
                f"{folder / 'curves.parquet'} has no curve for {row.method}, {row.order} order, "
                f"{row.merge} merge, {row.metric}, which summary.parquet lists: {AGAIN}"
            )


def _manifest(path: Path) -> Manifest:
    found = read_manifest(path, ("primary_metric", "traits"), AGAIN)
    try:
        return Manifest.from_json(found)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} was written by another version ({error}): {AGAIN} with this version") from error


def _rows(table: pd.DataFrame, traits: Traits, path: Path) -> tuple[Row, ...]:
    for column, known in (("method", traits.methods), ("order", traits.orders), ("merge", traits.merges)):
        unknown = [name for name in table[column].unique() if name not in known]
        if unknown:
            raise InputError(f"{path} has no traits of the {column} {unknown[0]}, which summary.parquet lists: {AGAIN}")
    rows = []
    for row in rows_of(SummaryRow, table):
        method, is_oracle = traits.methods[row.method], traits.orders[row.order].is_oracle
        rows.append(
            Row(**vars(row), is_reference=method.is_reference, is_baseline=method.is_baseline, is_oracle=is_oracle)
        )
    return tuple(rows)


def _curves(table: pd.DataFrame, kind: type[LineT]) -> dict[tuple[str, Variant, str], LineT]:
    # Sort once and slice by position: handling hundreds of curves one by one takes minutes.
    ordered = table.sort_values("t", kind="stable")
    arrays = [ordered[name].to_numpy(dtype=np.float64) for name in kind._fields]
    lines = {}
    groups: dict[Any, Any] = ordered.groupby(["method", "order", "merge", "metric"], sort=False).indices
    for key, places in groups.items():
        method, order, merge, metric = (str(name) for name in key)
        lines[method, Variant(order, merge), metric] = kind(*(array[places] for array in arrays))
    return lines


def _differences(rows: list[DifferenceRow]) -> dict[Pair, Difference]:
    found: dict[Pair, Difference] = {}
    for row in rows:
        own = row.method, Variant(row.order, row.merge)
        other = row.other_method, Variant(row.other_order, row.other_merge)
        found[own, other, row.metric] = Difference(row.difference, row.low, row.high)
    return found


def _groups(table: pd.DataFrame) -> dict[tuple[str, Variant, str], dict[str, Line]]:
    """The curves of the groups of the first slice."""
    table = table[table["slice"] == table["slice"].iloc[0]]
    found: dict[tuple[str, Variant, str], dict[str, Line]] = {}
    for group, part in table.groupby("group", sort=False):
        for key, line in _curves(part, Line).items():
            found.setdefault(key, {})[printable(str(group))] = line
    return found
