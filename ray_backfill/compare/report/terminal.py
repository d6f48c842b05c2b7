"""The summary as a table: a frame of strings for notebooks, and a rich table for the terminal."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ray_backfill.compare import selection
from ray_backfill.compare.analyses import sections
from ray_backfill.compare.report.answers import fall_cell, good_to_know, warnings
from ray_backfill.compare.report.verdict import (
    basis,
    conditions,
    decide,
    export_command,
    next_command,
    plan_command,
    upgrade,
    verdict,
)  # fmt: skip
from ray_backfill.compare.results import DOUBLE_DAGGER, ResultsData
from ray_backfill.core.errors import why_not_installed
from ray_backfill.core.outcome import Decision, as_typed
from ray_backfill.page.layout import show
from ray_backfill.page.numbers import NOTHING, percent, percent_sign, tick

NAMES = ("method", "order", "merge")
# More columns and warnings than these stand in the report only.
MOST_COLUMNS, MOST_WARNINGS = 7, 3


def overview(results: ResultsData) -> pd.DataFrame:
    """One row per method, order and merge, and one column per figure, in per cent, as text.

    If there are too many rows, each method appears once, in its best order and merge.
    """
    frame, digits = [], results.digits(results.primary)
    for row in selection.shown_rows(results, results.primary):
        cells = {"method": results.name(row)} | selection.variant_cells(results, row)
        cells["average"] = percent(row.auc, digits)
        if not selection.is_retention(results):
            cells["gain"] = percent_sign(row.gain, 0)
        # The conditions compare with old and new, so a tick in these rows would be meaningless.
        marks = ("", "", "") if row.is_end else conditions(results, row)
        fall, fall_mark = fall_cell(results, row, marks[2], digits)
        starts, ends, steady = (tick(mark) if mark else " " for mark in (*marks[:2], fall_mark))
        cells["start"] = f"{percent(row.start, digits)} {starts}"
        cells["end"] = f"{percent(row.end, digits)} {ends}"
        cells["largest fall"] = f"{fall} {steady}"
        cells["lost"] = percent(row.negative_flips_vs_old_max)
        for metric in results.metrics[1:]:
            same = results.row(row.method, row.variant, metric)
            cells[f"average {metric}"] = percent(same.auc, results.digits(metric)) if same else NOTHING
        frame.append(cells)
    return pd.DataFrame(frame)


def draw_table(results: ResultsData, console: Console | None = None, folder: Path | None = None) -> None:
    """Print the verdict, what it rests on, warnings, the overview and the meaning of its columns. folder: if kept."""
    rows, analyses = selection.shown_rows(results, results.primary), sections(results)
    warned, known, total = warnings(results), good_to_know(results), len(results.table(results.primary))
    report, summary = results.file("report.html"), results.file("summary.parquet")
    before = [Text(verdict(results), style="bold"), Text(basis(results), style="dim")]
    before += [Text(sentence, style="yellow") for sentence in warned[:MOST_WARNINGS]]
    if len(warned) > MOST_WARNINGS:
        before.append(Text(f"{len(warned) - MOST_WARNINGS} more warnings: {report}", style="yellow"))
    notes = [Text(sentence) for section in analyses for sentence in section.said]
    if len(rows) < total:
        choice = selection.choice(results)
        notes.append(Text(f"Each method in its best {choice}. All {total} rows: {report}, {summary}"))
    reason = results.manifest.data.get("not_checked")
    notes += [Text(f"good to know: {sentence}") for sentence in known[:MOST_WARNINGS]]
    if len(known) > MOST_WARNINGS:
        notes.append(Text(f"{len(known) - MOST_WARNINGS} more to know: {report}"))
    small_print = {
        selection.columns_in_words(results): True,
        selection.ORACLE_NOTE: any(row.is_bound for row in rows),
        f"{DOUBLE_DAGGER} Did not learn here, see above.": any(row.method in results.unlearned for row in rows),
        f"fitted methods were not checked: {reason}": reason,
    }
    notes += [Text(sentence, style="dim") for sentence, holds in small_print.items() if holds]
    for reason, methods in selection.left_out(results).items():
        names = ", ".join(methods)
        # After dozens of names the reason would be hard to find.
        few = len(methods) <= selection.FEW
        notes.append(Text(f"left out: {names} ({reason})" if few else f"left out: {len(methods)} ({reason}): {names}"))
    if command := next_command(results):
        lacking = why_not_installed("ray", "faiss") if command.startswith("ray-backfill drill") else ""
        notes.append(Text(f"next: {as_typed(command)}" + f" ({lacking})" * bool(lacking), style="bold"))
    if folder is not None and (command := export_command(results, folder)):
        notes.append(Text(f"to serve it: {as_typed(command)}", style="bold"))
    is_planned = upgrade(results) is not None and not selection.is_retention(results)
    if folder is not None and is_planned and decide(results) is not Decision.STOP:
        notes.append(Text(f"to plan it: {as_typed(plan_command(folder))}", style="bold"))
    shown, best = overview(results), results.best()
    table = _empty_table(table_title(results), [(name, name in NAMES) for name in shown.columns[:MOST_COLUMNS]])
    # With one row per method only the references are set apart, as orders differ from row to row.
    groups = [row.is_reference if len(rows) < total else results.group(row) for row in rows]
    for index, row in enumerate(rows):
        style = "bold" if row is best else "dim" if row.is_end else ""
        is_last = index + 1 < len(rows) and groups[index] != groups[index + 1]
        # Text, not str: a title such as "[red]" must not be parsed as markup.
        cells = (Text(str(cell)) for cell in shown.iloc[index, :MOST_COLUMNS])
        table.add_row(*cells, style=style, end_section=is_last)
    kept = 1 + sum(str(column.header) in NAMES for column in table.columns)  # the first figure stays, too
    elsewhere = f"{report} or {summary}"
    show(console, table, notes, kept, elsewhere, before, list(shown.columns[MOST_COLUMNS:]))
    for printed in (section.printed for section in analyses if section.printed):
        heads = [(head.label, head.css == "name") for head in printed.table.heads]
        table = _empty_table(printed.table.label, heads)
        for line in printed.table.rows:
            table.add_row(*(Text(cell.text) for cell in line.cells))
        notes = [*map(Text, printed.said), *(Text(note, style="dim") for note in printed.notes)]
        show(console, table, notes, printed.kept, printed.elsewhere)


def _empty_table(title: str, heads: Iterable[tuple[str, bool]]) -> Table:
    """heads: of the columns, and whether they hold names."""
    table = Table(title=title, title_justify="left")
    for head, is_name in heads:
        table.add_column(Text(head), justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    return table


def table_title(results: ResultsData) -> str:
    """What the overview shows; names an oracle order that stands in no column."""
    is_bound = len(results.variants) == 1 and any(row.is_bound for row in results.table(results.primary))
    bound = f", {results.order_name(results.orders[0])} order" if is_bound else ""
    behind = " behind the service" * bool(selection.service_in_words(results))
    title = selection.metric_title(results, results.primary)
    return f"{title}{behind} while the gallery is backfilled{bound}, in per cent"
