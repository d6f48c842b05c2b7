"""Reports of a results folder: curves.png, report.html and a table in the terminal. Recomputes nothing."""

from pathlib import Path

from rich.console import Console

from ray_backfill.report import figures, html, terminal
from ray_backfill.report.drawing import to_png
from ray_backfill.report.parts import write_pages
from ray_backfill.report.reading import read_results, results_of
from ray_backfill.report.results import Results
from ray_backfill.report.terminal import overview
from ray_backfill.report.wording import verdict

__all__ = [
    "Results",
    "overview",
    "print_first_table",
    "print_table",
    "read_results",
    "results_of",
    "verdict",
    "write_report",
]


def write_report(folder: Path) -> None:
    """Write ``curves.png`` and a self-contained ``report.html`` next to the tables in ``folder``.

    Each file is written atomically and replaces an older one.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    results = read_results(folder)
    curves = to_png(figures.curves_figure(results))
    write_pages(folder, curves, html.render(results, curves))


def print_first_table(results: Results, to_come: list[str]) -> None:
    """Print the table of methods without training. to_come: titles of the methods to be trained next."""
    terminal.draw_table(results, None)
    print(f"\nThese methods need no training. Now training: {', '.join(to_come)}.\n", flush=True)


def print_table(folder: Path, console: Console | None = None) -> None:
    """Print one row per method with AUC, gain, start, end and falls, and explain the columns.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    terminal.draw_table(read_results(folder), console)
