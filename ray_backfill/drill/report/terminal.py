"""The checkpoints as a table in the terminal, with the verdict and the source of the numbers."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ray_backfill.drill.report.checkpoint_table import checkpoint_table
from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.report.sentences import details, is_alarming, source, verdict
from ray_backfill.page.heading import data_notes
from ray_backfill.page.layout import show

# The columns of the page that fit a terminal.
NARROW = (
    *("t", "live", "exact", "−\u00a0replay", "p50 ms", "p99 ms", "queries/s", "items/s", "old items", "new items"),
    *("unanswered", "violations"),
)


def draw_table(drill: Drill, folder: Path, console: Console | None = None) -> None:
    """Print one row per checkpoint, and the findings of the drill."""
    table = Table(title=f"Live drill: {drill.primary} in per cent", title_justify="left")
    names, rows = checkpoint_table(drill)
    shown = [index for index, name in enumerate(names) if name in NARROW]
    for index in shown:
        table.add_column(Text(names[index]), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    notes = [
        *(Text(sentence, style="yellow") for sentence in data_notes(drill.facts.data)),
        Text(verdict(drill), style="bold red" if is_alarming(drill) else "bold"),
        Text(" ".join(details(drill))),
        Text(f"{source(drill)}. Tables and report.html: {folder}", style="dim"),
    ]
    show(console, table, notes, kept=2, elsewhere="report.html or checkpoints.parquet")
