"""Results for readers: what ``simulate`` returns, curves.png, report.html, tables in the terminal. Recomputes nothing.

Reading results needs neither numba nor matplotlib nor jinja2 nor rich: the functions that write and print import them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from ray_backfill.compare.analyses import all_analyses
from ray_backfill.compare.results import DifferenceKey, Line, ResultsData, Row, Tables, Trace, Variant, curves_of
from ray_backfill.compare.tables import FLIP_METRICS, FORMAT, SPINE, CurvePoint, DifferenceRow, Manifest, SummaryRow
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.schema import block, frame, read_manifest, read_table, rows_of
from ray_backfill.core.store_path import path_of
from ray_backfill.page import Compared, Difference, Differences, html_table, make_differences

if TYPE_CHECKING:
    from rich.console import Console

    from ray_backfill.compare.analyses.checks import CheckRow
    from ray_backfill.compare.analyses.costs import CostRow
    from ray_backfill.compare.analyses.cutoffs import CutoffRow
    from ray_backfill.compare.analyses.shown import ShownQuery
    from ray_backfill.compare.analyses.slices import SliceRow
    from ray_backfill.page.drawing import Figure


__all__ = ["REPORT_FILES", "Results", "print_first_table", "print_table", "read_results", "write_report"]

# What ``write_report`` writes.
REPORT_FILES = ("curves.png", "report.html")
AGAIN = "run simulate again"
FigureName = Literal["curves", "gain", "orders", "flips", "subgroups"]


@dataclass(frozen=True, repr=False)
class Results(ResultsData):
    """What ``simulate`` returns and ``read_results`` reads; shows itself as a table in a notebook.

    Attributes:
        rows: The lines of the summary.
        lines: (method, variant, metric) -> curve.
        differences: The two rows and a metric -> difference of their AUCs with its interval.
        at_once: The same with limits that hold for all rows compared with the other one, and so for the best of them.
        moments: (method, variant, metric) -> curve at all moments at which it was judged, without intervals.
        manifest: Settings, versions, sizes, and what was left out and why.
        tables: Name -> rows of the table of an analysis, such as "costs", without those that the run did not write.
    """

    @property
    def costs(self) -> "tuple[CostRow, ...]":
        """The cost of each method; () if costs were not counted."""
        return self.table_of("costs")

    @property
    def checks(self) -> "tuple[CheckRow, ...]":
        """Each fitted method on the validation part, against rank merge without training; () if not checked."""
        return self.table_of("checks")

    @property
    def slices(self) -> "tuple[SliceRow, ...]":
        """What each method does to each group of queries; () without slices."""
        return self.table_of("slices")

    @property
    def shown(self) -> "tuple[ShownQuery, ...]":
        """The queries that lose and gain most with the leading method; () if there are none."""
        return self.table_of("shown")

    @property
    def cutoffs(self) -> "tuple[CutoffRow, ...]":
        """How score cut-offs should change; () if none was given."""
        return self.table_of("cutoffs")

    @cached_property
    def groups(self) -> Mapping[tuple[str, Variant, str], Mapping[str, Line]]:
        """(method, variant, metric) -> curve of each group of the first slice, and of the gap; {} without slices."""
        from ray_backfill.compare.analyses.slices import group_lines

        return group_lines(self)

    @property
    def verdict(self) -> str:
        """One sentence: the method with the best AUC of the primary metric, and how good the backfill is with it."""
        from ray_backfill.compare.report.verdict import verdict

        return verdict(self)

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each method, order, merge and metric: AUC, gain, start, end and more, as shares (0.6 = 60 %)."""
        return frame(SummaryRow, self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """The curves as a tidy table: method, order, merge, metric, t, value, low, high; shares."""
        tables = [
            block(CurvePoint, method, *variant, metric, *line) for (method, variant, metric), line in self.lines.items()
        ]
        return pd.concat(tables, ignore_index=True)

    def show(self) -> None:
        """Print the table that the command prints: one row for each method, the verdict, the meaning of columns."""
        from ray_backfill.compare.report.terminal import draw_table

        draw_table(self)

    def report(self, to: str | Path) -> Path:
        """Write the page of the report, one self-contained HTML file, and return its path. Needs jinja2."""
        from ray_backfill.compare.report import html
        from ray_backfill.core.stages import write_whole

        path = path_of(to)
        write_whole(path, lambda temporary: temporary.write_text(html.render(self), encoding="utf-8"))
        return path

    def plot(self, kind: FigureName = "curves") -> "Figure":
        """Draw a figure of the report. Needs matplotlib.

        Args:
            kind: "curves": quality at every moment, with 95 % bootstrap intervals. "gain": share of the upgrade's gain
                by method. "orders": the best method in each order and merge. "flips": queries that turn wrong or right
                on the way. "subgroups": the best method by subgroup of queries.

        Returns:
            The figure. A notebook shows it; ``figure.savefig("curves.png")`` writes it to a file.

        Raises:
            InputError: Unknown kind, or these results have nothing that it could show.
        """
        from ray_backfill.compare.report import figures

        if kind not in figures.FIGURES:
            raise unknown_name("figure", kind, figures.FIGURES)
        figure = figures.FIGURES[kind](self)
        if figure is None:
            lacking = "one order and merge, or no subgroups"
            raise InputError(f"these results have nothing for the figure {kind!r}: {lacking}")
        return figure

    def compare(
        self, method: str = "", *others: str, metric: str = "", order: str = "", merge: str = ""
    ) -> Differences:
        """How much higher the AUC of a method is than that of others, with paired 95 % bootstrap intervals.

        >>> results = rb.read_results("runs/mine")
        >>> results.compare("ridge_gallery", "rm_naive").frame.verdict.tolist()
        ['better']

        Args:
            method: Name of the method; by default the best one.
            *others: Names of the methods to compare it with; by default all that it was compared with, and the method
                itself in other orders and merges.
            metric: The metric; by default the primary one.
            order: Backfill order of the method; by default the one in which it is best.
            merge: Merge of the method; by default the one with which it is best.

        Returns:
            One row for each comparison, the closest first.

        Raises:
            InputError: Unknown names, or no other row was compared with this one.
        """
        from ray_backfill.compare.selection import find_row, rivals, variant_cells

        row = find_row(self, method, metric or self.primary, order, merge)
        compared = rivals(self, row)
        missing = [name for name in others if all(other.method != name for other, _ in compared)]
        if missing or not compared:
            raise InputError(
                f"these results do not compare {row.method} with {missing[0] if missing else 'anything'} in "
                f"{row.metric}; their methods: {', '.join(self.methods)}"
            )
        lines = [
            Compared({"other": self.name(other)} | variant_cells(self, other), row.auc, other.auc, difference)
            for other, difference in compared
            if not others or other.method in others
        ]
        of_variant = f" ({self.label(row.variant)})" if self.group(row) else ""
        return make_differences(
            f"{row.title}{of_variant}: average {row.metric} minus that of others, in per cent", lines
        )

    def crossings(self, method: str = "", *, metric: str = "", order: str = "", merge: str = "") -> pd.DataFrame:
        """Where other methods serve better than a method, judged at all moments (``moments.parquet``).

        Args:
            method: Name of the method; by default the best one.
            metric: The metric; by default the primary one.
            order: Backfill order of both methods; by default the one in which the method is best.
            merge: Merge of both methods; by default the one with which the method is best.

        Returns:
            One row for each stretch of the backfill, the largest lead first: ``method`` (the other one), ``order``,
            ``merge``, ``start`` and ``end`` (progress), ``lead`` (its largest lead, a share). No row: none is better.

        Raises:
            InputError: Unknown names.
        """
        from ray_backfill.compare.selection import crossings, find_row

        stretches = crossings(self, find_row(self, method, metric or self.primary, order, merge))
        rows = [(row.method, *row.variant, start, end, lead) for row, start, end, lead in stretches]
        return pd.DataFrame(rows, columns=["method", "order", "merge", "start", "end", "lead"])

    def __repr__(self) -> str:
        counts = {"methods": self.methods, "orders": self.orders, "merges": self.merges, "metrics": self.metrics}
        sizes = [f"{len(names)} {word if len(names) > 1 else word[:-1]}" for word, names in counts.items()]
        return f"Results: {', '.join(sizes)}\n{self.verdict}"

    def _repr_html_(self) -> str:
        from ray_backfill.compare.report.terminal import overview, table_title

        return html_table(table_title(self), overview(self), [self.verdict])


def read_results(folder: str | Path) -> Results:
    """Read the results of a simulation.

    >>> rb.read_results("runs/mine").methods
    ('old', 'new', 'rm_naive', 'ridge_gallery')

    Args:
        folder: The folder of the run (``--out``), or its folder ``results``.

    Returns:
        Curves, summary and differences; the tables of analyses that the folder has.

    Raises:
        InputError: The folder, a file, a column or a key is missing, or the files contradict each other.
    """
    data = read_data(folder)
    return Results(**{field.name: getattr(data, field.name) for field in fields(data)})


def read_data(folder: str | Path) -> ResultsData:
    """Read the results of a simulation. folder: the folder of the run (``--out``), or its folder ``results``.

    Raises:
        InputError: The folder, a file, a column or a key is missing, or the files contradict each other.
    """
    folder = path_of(folder)
    if not (folder / "manifest.json").exists() and (folder / "results").is_dir():
        folder = folder / "results"
    if not folder.is_dir():
        raise InputError(f"no results folder at {folder}: give the --out folder of a simulate run")
    path = folder / "manifest.json"
    recorded = read_manifest(path, ("primary_metric", "traits"), AGAIN, FORMAT)
    try:
        manifest = Manifest.from_json(recorded)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} was written by another version ({error}): {AGAIN} with this version") from error
    # Those who compare methods query by query read the others, not reports: they are ten times as large as all these.
    spine = {name: kind for name, kind in SPINE.items() if name not in ("queries", "query_values")}
    tables = {name: read_table(folder / f"{name}.parquet", kind, AGAIN) for name, kind in spine.items()}
    tables |= {
        name: read_table(folder / f"{name}.parquet", kind, AGAIN, may_be_empty=True)
        for analysis in all_analyses()
        for name, kind in analysis.tables.items()
        if analysis.is_read and (folder / f"{name}.parquet").exists()
    }
    traits, summary = manifest.traits, tables["summary"]
    for column, known in (("method", traits.methods), ("order", traits.orders), ("merge", traits.merges)):
        unknown = [name for name in summary[column].unique() if name not in known]
        if unknown:
            raise InputError(f"{path} has no traits of the {column} {unknown[0]}, which summary.parquet lists: {AGAIN}")
    results = results_of(tables, manifest)
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
    return results


def results_of(tables: Mapping[str, pd.DataFrame], manifest: Manifest) -> ResultsData:
    """Results from tables in memory, by name."""
    traits, rows = manifest.traits, []
    for row in rows_of(SummaryRow, tables["summary"]):
        method, is_oracle = traits.methods[row.method], traits.orders[row.order].is_oracle
        rows.append(
            Row(**vars(row), is_reference=method.is_reference, is_baseline=method.is_baseline, is_oracle=is_oracle)
        )
    differences: dict[DifferenceKey, Difference] = {}
    at_once: dict[DifferenceKey, Difference] = {}
    for of in rows_of(DifferenceRow, tables["differences"]):
        key = (of.method, Variant(of.order, of.merge)), (of.other_method, Variant(of.other_order, of.other_merge))
        differences[*key, of.metric] = Difference(of.difference, of.low, of.high)
        at_once[*key, of.metric] = Difference(of.difference, of.low_at_once, of.high_at_once)
    kinds = {name: kind for analysis in all_analyses() for name, kind in analysis.tables.items()}
    return ResultsData(
        tuple(rows),
        curves_of(tables["curves"], Line),
        differences,
        at_once,
        curves_of(tables["moments"], Trace),
        manifest,
        Tables({name: (kind, tables[name]) for name, kind in kinds.items() if name in tables}),
    )


def write_report(folder: Path) -> None:
    """Write a self-contained ``report.html``, and with matplotlib ``curves.png``, next to the tables in ``folder``.

    Each file is written atomically and replaces an older one.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    from ray_backfill.compare import charts
    from ray_backfill.compare.report import html
    from ray_backfill.page.parts import write_pages

    results = read_data(folder)
    write_pages(folder, lambda: charts.main_charts(results), lambda: html.render(results))


def print_first_table(results: ResultsData, to_come: list[str]) -> None:
    """Print the table of methods without training. to_come: titles of the methods to be trained next."""
    from ray_backfill.compare.report.terminal import draw_table

    draw_table(results)
    print(f"\nThese methods need no training. Now training: {', '.join(to_come)}.\n", flush=True)


def print_table(folder: Path, console: "Console | None" = None) -> None:
    """Print one row per method with AUC, gain, start, end and falls, and explain the columns.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    from ray_backfill.compare.report.terminal import draw_table

    draw_table(read_data(folder), console, folder)
