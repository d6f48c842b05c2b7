"""The forecast as a table for the terminal."""

import pandas as pd
from rich.table import Table
from rich.text import Text

from ray_backfill.forecast.report import words
from ray_backfill.forecast.report.reading import ForecastResults
from ray_backfill.page.layout import show


def title(found: ForecastResults) -> str:
    """The title of the table."""
    return f"{words.heading(found)}; {found.metrics[0]} in per cent"


def overview(found: ForecastResults) -> pd.DataFrame:
    """One row for each method and order, in the primary metric and in per cent, as text."""
    rows = [words.cells(row) for order in found.orders for row in found.of(found.metrics[0], order)]
    return pd.DataFrame(rows, columns=list(words.NAMES))


def draw_forecast(found: ForecastResults) -> None:
    """Print the table of the primary metric, and notes."""
    metric = found.metrics[0]
    table = Table(title=title(found), title_justify="left")
    for index, name in enumerate(words.NAMES):
        table.add_column(Text(name), justify="left" if index < 2 else "right", no_wrap=index >= 2, overflow="fold")
    for order in found.orders:
        rows = found.of(metric, order)
        for row in rows:
            table.add_row(*(Text(cell) for cell in words.cells(row)), end_section=row is rows[-1])
    notes = [Text(sentence, style="yellow") for sentence in words.warnings(found)]
    notes += [Text(sentence, style="bold") for sentence in words.told(found)]
    notes.append(Text(words.width(found.of(metric, found.orders[0]))))
    others = found.metrics[1:]
    notes += [Text(f"Other metrics, in report.html: {', '.join(others)}.")] if others else []
    left_out = found.manifest.get("left_out", {})
    notes += [Text(f"Left out: {', '.join(left_out)} (report.html says why).")] if left_out else []
    notes.append(Text(words.COLUMNS, style="dim"))
    show(None, table, notes, 2, "report.html or summary.parquet")
