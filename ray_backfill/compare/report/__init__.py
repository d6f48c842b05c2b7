"""Reports of a results folder: curves.png, report.html and a table in the terminal. Recomputes nothing.

Reading results needs neither matplotlib nor jinja2 nor rich: the functions that write and print import them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ray_backfill.compare.report.reading import read_results, results_of
from ray_backfill.compare.report.results import Results

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["REPORT_FILES", "Results", "print_first_table", "print_table", "read_results", "results_of", "write_report"]

# What ``write_report`` writes.
REPORT_FILES = ("curves.png", "report.html")


def write_report(folder: Path) -> None:
    """Write ``curves.png`` and a self-contained ``report.html`` next to the tables in ``folder``.

    Each file is written atomically and replaces an older one.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    from ray_backfill.compare.report import figures, html
    from ray_backfill.page.drawing import to_png
    from ray_backfill.page.parts import write_pages

    results = read_results(folder)
    write_pages(folder, lambda: to_png(figures.curves_figure(results)), lambda: html.render(results))


def print_first_table(results: Results, to_come: list[str]) -> None:
    """Print the table of methods without training. to_come: titles of the methods to be trained next."""
    results.show()
    print(f"\nThese methods need no training. Now training: {', '.join(to_come)}.\n", flush=True)


def print_table(folder: Path, console: "Console | None" = None) -> None:
    """Print one row per method with AUC, gain, start, end and falls, and explain the columns.

    Raises:
        InputError: the folder, a file or a column is missing.
    """
    from ray_backfill.compare.report.terminal import draw_table

    draw_table(read_results(folder), console)
