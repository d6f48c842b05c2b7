"""The summary as a table: of strings for notebooks, drawn by rich for the terminal."""

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ray_backfill.report.results import ORDER_FREE, Results, Row
from ray_backfill.report.wording import (
    COLUMNS_IN_WORDS,
    NOTHING,
    falls,
    percent,
    percent_sign,
    tick,
    verdict,
)

PIPED_WIDTH = 140  # rich assumes 80 where there is no terminal, which would fold the numbers


def overview(results: Results) -> pd.DataFrame:
    """One row per method (and order, merge where there are several), one column per figure, in per cent, as text."""
    return pd.DataFrame([_cells(results, row) for row in results.table(results.primary)])


def draw_table(results: Results, console: Console | None = None) -> None:
    """Print the overview and what its columns mean."""
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PIPED_WIDTH)
    rows = results.table(results.primary)
    frame = overview(results)
    best = results.best()
    table = Table(title=f"{results.primary} while the gallery is backfilled, in per cent", title_justify="left")
    for name in frame.columns:
        is_name = name in ("method", "order", "merge")
        table.add_column(Text(name), justify="left" if is_name else "right", no_wrap=not is_name)
    for index, row in enumerate(rows):
        style = "bold" if row is best else "dim" if row.is_reference else ""
        last_of_group = index + 1 < len(rows) and results.group(row) != results.group(rows[index + 1])
        # Text, not str: a title such as "[red]" must not be read as markup.
        table.add_row(*(Text(str(c)) for c in frame.iloc[index]), style=style, end_section=last_of_group)
    console.print(table)
    console.print(Padding(Text(verdict(results), style="bold"), (0, 1)))
    console.print(Padding(Text(COLUMNS_IN_WORDS, style="dim"), (0, 1)))
    for reason, methods in _left_out(results).items():
        console.print(Padding(Text(f"left out: {', '.join(methods)} ({reason})"), (0, 1)))


def _left_out(results: Results) -> dict[str, list[str]]:
    """Reason -> the methods that could not take part for it."""
    by_reason: dict[str, list[str]] = {}
    for method, reason in results.manifest.get("left_out", {}).items():
        by_reason.setdefault(reason, []).append(method)
    return by_reason


def _cells(results: Results, row: Row) -> dict[str, str]:
    cells = {"method": row.title}
    free = row.method in ORDER_FREE
    if len({v.order for v in results.variants}) > 1:
        cells["order"] = NOTHING if free else row.variant.order
    if len({v.merge for v in results.variants}) > 1:
        cells["merge"] = NOTHING if free else row.variant.merge
    cells[f"AUC {results.primary}"] = percent(row.auc)
    cells["gain"] = percent_sign(row.gain)
    # old and new are what the conditions compare with: a tick there would say nothing.
    starts, ends = (" ", " ") if row.is_reference else (tick(row.starts_at_old), tick(row.ends_at_new))
    cells["M_0"] = f"{percent(row.start)} {starts}"
    cells["M_1"] = f"{percent(row.end)} {ends}"
    cells["falls"] = falls(row)
    for metric in results.metrics[1:]:
        same = [r for r in results.rows if (r.method, r.variant, r.metric) == (row.method, row.variant, metric)]
        cells[f"AUC {metric}"] = percent(same[0].auc) if same else NOTHING
    cells["neg. flips max"] = percent(row.negative_flips_max)
    return cells
