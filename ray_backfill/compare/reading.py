"""Reads and checks a results folder: tables and a manifest in, one typed, frozen ``ResultsData`` out."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ray_backfill.compare.analyses import all_analyses
from ray_backfill.compare.results import Line, Pair, ResultsData, Row, Tables, Trace, Variant, curves_of
from ray_backfill.compare.tables import FLIP_METRICS, SPINE, DifferenceRow, Manifest, SummaryRow, Traits
from ray_backfill.core.errors import InputError, local_path
from ray_backfill.core.schema import read_manifest, read_table, rows_of
from ray_backfill.page import Difference

# Read by those who compare methods query by query, not by reports: ten times as large as all others.
_BY_QUERY = ("queries", "query_values")
AGAIN = "run simulate again"


def read_data(folder: str | Path) -> ResultsData:
    """Read the results of a simulation. folder: the folder of the run (``--out``), or its folder ``results``.

    Raises:
        InputError: The folder, a file, a column or a key is missing, or the files contradict each other.
    """
    folder = local_path(folder)
    if not (folder / "manifest.json").exists() and (folder / "results").is_dir():
        folder = folder / "results"
    if not folder.is_dir():
        raise InputError(f"no results folder at {folder}: give the --out folder of a simulate run")
    found = {name: read_table(folder / f"{name}.parquet", kind, AGAIN) for name, kind in SPINE.items()
             if name not in _BY_QUERY}  # fmt: skip
    found |= {
        name: read_table(folder / f"{name}.parquet", kind, AGAIN, True, analysis.older)
        for analysis in all_analyses()
        for name, kind in analysis.tables.items()
        if analysis.is_read and (folder / f"{name}.parquet").exists()
    }
    results = results_of(found, _manifest(folder / "manifest.json"), folder / "manifest.json")
    _check(results, folder)
    return results


def results_of(
    tables: Mapping[str, pd.DataFrame], manifest: Manifest, path: Path = Path("manifest.json")
) -> ResultsData:
    """Results from tables in memory, by name. path: the manifest's path, for errors."""
    kinds = {name: kind for analysis in all_analyses() for name, kind in analysis.tables.items()}
    return ResultsData(
        _rows(tables["summary"], manifest.traits, path),
        curves_of(tables["curves"], Line),
        _differences(rows_of(DifferenceRow, tables["differences"])),
        curves_of(tables["moments"], Trace),
        manifest,
        Tables({name: (kind, tables[name]) for name, kind in kinds.items() if name in tables}),
    )


def _check(results: ResultsData, folder: Path) -> None:
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


def _differences(rows: list[DifferenceRow]) -> dict[Pair, Difference]:
    found: dict[Pair, Difference] = {}
    for row in rows:
        own = row.method, Variant(row.order, row.merge)
        other = row.other_method, Variant(row.other_order, row.other_merge)
        found[own, other, row.metric] = Difference(row.difference, row.low, row.high)
    return found
