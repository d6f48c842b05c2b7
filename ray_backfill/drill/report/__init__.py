"""Reports of a live drill's folder: curves.png, report.html and a table in the terminal. Recomputes no quality."""

from pathlib import Path

from rich.console import Console

from ray_backfill.drill.report import charts, html, terminal
from ray_backfill.drill.report.drill_folder import Drill, read_drill
from ray_backfill.drill.report.sentences import verdict
from ray_backfill.page.drawing import panels_figure, to_png
from ray_backfill.page.parts import write_pages

__all__ = ["Drill", "print_live_table", "read_drill", "verdict", "write_live_report"]


def write_live_report(folder: Path) -> None:
    """Write ``curves.png`` and a self-contained ``report.html`` next to the tables in ``folder``.

    Each file is written atomically and replaces an older one.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    drill = read_drill(folder)
    write_pages(folder, lambda: to_png(panels_figure(charts.quality_charts(drill))), lambda: html.render(drill))


def print_live_table(folder: Path, console: Console | None = None) -> None:
    """Print one row per checkpoint with quality, latency and rates, and the verdict below.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    terminal.draw_table(read_drill(folder), folder, console)
