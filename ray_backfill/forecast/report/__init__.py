"""A forecast for readers: the table of the terminal, the figure, the page. Recomputes nothing.

print_forecast(Path("runs/mine/forecast"))
"""

from pathlib import Path

from ray_backfill.forecast.report.reading import ForecastResults, read_forecast

__all__ = ["ForecastResults", "print_forecast", "read_forecast", "write_forecast_report"]


def write_forecast_report(folder: Path) -> None:
    """Write ``curves.png`` and ``report.html`` from the tables of a forecast. Raises InputError if one is missing."""
    from ray_backfill.forecast.report.page import charts_of, render
    from ray_backfill.page.drawing import panels_figure, to_png
    from ray_backfill.page.parts import write_pages

    found = read_forecast(folder)
    write_pages(folder, lambda: to_png(panels_figure(charts_of(found))), lambda: render(found))


def print_forecast(folder: Path) -> None:
    """Print one row per method and order, and what decides the width of the intervals."""
    read_forecast(folder).show()
