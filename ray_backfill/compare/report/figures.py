"""The charts of a report as matplotlib figures, for curves.png and for notebooks: no global state, no window."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ray_backfill.compare import charts
from ray_backfill.compare.analyses.flips import flip_charts
from ray_backfill.compare.analyses.slices import subgroup_charts
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.selection import drawn_in_words, drawn_rows, is_large, shown_rows
from ray_backfill.page import drawing
from ray_backfill.page.charts import FAINT, INK, Chart
from ray_backfill.page.numbers import percent_sign, shorten


def curves_figure(results: ResultsData) -> Figure:
    """The main figure."""
    return drawing.panels_figure(charts.main_charts(results))


def flips_figure(results: ResultsData) -> Figure | None:
    """Negative and positive flips over progress; None if the folder has no flip curves."""
    flips = flip_charts(results, results.best_variant)
    if not flips:
        return None
    shown, notes = flips[0].shown, flips[0].notes
    lines = (len(flips) + 1) // 2
    height = max(2.75 * lines, drawing.ENTRY_IN * (len(shown) + len(notes) + 2.5))
    figure = drawing.blank_figure(height)
    longest = drawing.legend_width([curve.title for curve in shown])
    ratios = (1.45, 1.45, 1) if longest == drawing.SHORT else (1.2, 1.2, 1.25)
    grid = figure.add_gridspec(lines, 3, width_ratios=ratios)
    for index, chart in enumerate(flips):
        plot = figure.add_subplot(grid[index // 2, index % 2])
        drawing.dress(plot, chart.title.replace(" against", "\nagainst"), chart.unit)
        drawing.draw(plot, chart, chart.shown)
    entries = [(curve.title, curve.number, curve.style) for curve in shown]
    drawing.legend(figure.add_subplot(grid[:, 2]), height, "vs old, largest", entries, notes, longest)
    return figure


def gain_figure(results: ResultsData) -> Figure:
    """Bar chart of the gain in the primary metric, in the table's order; 0 % is old and 100 % is new.

    If there are many methods, it shows only the best, each in its best order and merge.
    """
    everything = shown_rows(results, results.primary)
    kept, notes = (drawn_rows(everything), drawn_in_words(everything)) if is_large(results) else (everything, [])
    rows = [r for r in kept if not r.is_end and np.isfinite(r.gain)]
    figure = drawing.blank_figure(max(1.6, 0.32 * len(rows) + 1.1))
    plot = figure.add_subplot()
    styles = charts.method_styles(results)
    names = [results.name(r) + (f", {results.label(r.variant)}" if results.group(r) else "") for r in rows]
    widths = [100 * r.gain for r in rows]
    plot.barh(range(len(rows)), widths, height=0.62, color=[styles[r.method].colour for r in rows])
    for y, (row, width) in enumerate(zip(rows, widths, strict=True)):
        at: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        plot.annotate(percent_sign(row.gain), (max(width, 0.0), y), **at, color=INK, fontsize=9)
    title = "Gain: share of the upgrade's benefit during the backfill"
    drawing.dress(plot, f"{title} ({notes[0]})" if notes else title, "")
    for x in (0, 100):
        plot.axvline(x, color=FAINT, linewidth=1, linestyle="-" if x == 0 else "--", zorder=0)
    plot.set_yticks(range(len(rows)), [shorten(n, 34) for n in names], parse_math=False)
    plot.invert_yaxis()
    plot.grid(False)
    plot.set_xlim(min(0.0, *widths) * 1.1, max(100.0, *widths) * 1.12)
    plot.set_xlabel("gain in average " + results.primary + " (%)", color=FAINT, parse_math=False)
    return figure


def _alone(shown: Sequence[Chart]) -> Figure | None:
    return drawing.panels_figure(shown) if shown else None


# What ``Results.plot`` draws, by name; None where the results have nothing to show.
FIGURES: Mapping[str, Callable[[ResultsData], Figure | None]] = {
    "curves": curves_figure,
    "gain": gain_figure,
    "orders": lambda results: _alone(charts.order_charts(results)),
    "flips": flips_figure,
    "subgroups": lambda results: _alone(subgroup_charts(results)),
}
