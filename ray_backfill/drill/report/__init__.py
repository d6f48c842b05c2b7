"""Reports of a live drill's folder: curves.png, report.html and a table in the terminal. Recomputes no quality."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ray_backfill.drill.report import html
from ray_backfill.drill.report.charts import quality_charts
from ray_backfill.drill.report.drill_folder import read_drill
from ray_backfill.drill.report.sentences import details, is_alarming, source, verdict
from ray_backfill.page.heading import data_notes
from ray_backfill.page.layout import show
from ray_backfill.page.parts import write_pages

__all__ = ["print_live_table", "write_live_report"]

# The columns of the page that fit a terminal.
NARROW = (
    *("t", "live", "exact", "−\u00a0replay", "p50 ms", "p99 ms", "queries/s", "items/s", "old items", "new items"),
    *("unanswered", "violations"),
)


def write_live_report(folder: Path) -> None:
    """Write ``curves.png`` and a self-contained ``report.html`` next to the tables in ``folder``.

    Each file is written atomically and replaces an older one.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    drill = read_drill(folder)
    write_pages(folder, lambda: quality_charts(drill), lambda: html.render(drill))


def print_live_table(folder: Path, console: Console | None = None) -> None:
    """Print one row per checkpoint with quality, latency and rates, and the verdict below.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    drill = read_drill(folder)
    table = Table(title=f"Live drill: {drill.primary} in per cent", title_justify="left")
    names, rows = html.checkpoint_table(drill)
    shown = [index for index, name in enumerate(names) if name in NARROW]
    for index in shown:
        table.add_column(Text(names[index]), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    notes = [
        *(Text(sentence, style="yellow" if sentence.matters else "") for sentence in data_notes(drill.facts.data)),
        Text(verdict(drill), style="bold red" if is_alarming(drill) else "bold"),
        Text(" ".join(details(drill))),
        Text(f"{source(drill)}. Tables and report.html: {folder}", style="dim"),
    ]
    show(console, table, notes, kept=2, elsewhere="report.html or checkpoints.parquet")
