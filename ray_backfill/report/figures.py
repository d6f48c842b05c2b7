"""Curves, flips and gains as matplotlib figures, drawn with the object-oriented API: no global state, no window."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ray_backfill.display.drawing import (
    ENTRY_IN,
    FAINT,
    INK,
    LONG,
    REFERENCE_STYLES,
    SHORT,
    Floats,
    Style,
    blank_figure,
    draw_line,
    dress,
    legend,
    numbered_style,
    panel_height,
    shorten,
)
from ray_backfill.report.results import DAGGER, Line, Results, Row, Variant
from ray_backfill.report.selection import (
    MAX_LINES,
    best_per_method,
    compared_variants,
    drawn_in_words,
    drawn_rows,
    is_large,
    own_methods,
    shown_rows,
)
from ray_backfill.report.wording import choice, percent, percent_sign
from ray_backfill.tables.results import FLIP_METRICS, GAP

MAX_VARIANTS = 4  # more panels than this do not make a readable figure
BOUND = f"{DAGGER} upper bound: uses the answer"


def curves_figure(results: Results) -> Figure:
    """The main figure: one panel per metric, or per order and merge if there are several of those."""
    if len(results.variants) > 1:
        return panels_figure(results, [(results.primary, v) for v in drawn_variants(results)])
    return panels_figure(results, [(m, results.variants[0]) for m in results.metrics])


def drawn_variants(results: Results) -> list[Variant]:
    """The variants that get a panel: all, or those with the highest AUC if there are many.

    If some are left out, oracle orders go first.
    """
    ranked = sorted(
        (r for r in results.rows if r.metric == results.primary and not r.is_reference and r.auc == r.auc),
        key=lambda r: (not r.is_bound, r.auc),
        reverse=True,
    )
    kept = list(dict.fromkeys(r.variant for r in ranked))[:MAX_VARIANTS]
    return [v for v in results.variants if v in kept] or list(results.variants[:1])


def panels_figure(results: Results, panels: Sequence[tuple[str, Variant]]) -> Figure:
    """Panels of M_t over progress, stacked vertically, each with its own legend sorted by AUC.

    If there are many methods, a panel draws only the best.
    """
    everything = [results.panel(metric, variant) for metric, variant in panels]
    rows = [drawn_rows(panel) for panel in everything]
    notes = [drawn_in_words(panel) + _bound_note(panel) for panel in everything]
    height = panel_height(max(len(r) + len(n) for r, n in zip(rows, notes, strict=True)))
    figure = blank_figure(height * len(panels))
    longest = _longest([r.title for panel in rows for r in panel])
    grid = figure.add_gridspec(len(panels), 2, width_ratios=(2.55 if longest == SHORT else 1.9, 1))
    plots: list[Axes] = []
    for index, (metric, variant) in enumerate(panels):
        same = next((p for p, (m, _) in zip(plots, panels, strict=False) if m == metric), None)
        plot = figure.add_subplot(grid[index, 0], sharey=same)
        plots.append(plot)
        best = results.best(metric)
        styles = method_styles(results, best.method if best else None)
        for row in rows[index]:
            _draw(plot, results, row, metric, styles[row.method])
        several = f", {results.label(variant)}" if len(results.variants) > 1 else ""
        dress(plot, f"{metric} during the backfill{several}", f"{metric} (%)")
        by_auc = sorted(rows[index], key=lambda r: np.nan_to_num(r.auc, nan=-np.inf), reverse=True)
        entries = [(r.title, percent(r.auc), styles[r.method]) for r in by_auc]
        legend(figure.add_subplot(grid[index, 1]), height, "AUC", entries, notes[index], longest)
    return figure


def orders_figure(results: Results) -> Figure | None:
    """The best method once per order and merge, to compare these; None if there is only one."""
    best = results.best()
    if best is None or len(results.variants) == 1 or best.is_reference:
        return None
    rows = compared_variants(results, best.method)
    total = sum(r.metric == best.metric and r.method == best.method for r in results.rows)
    notes = [f"{len(rows)} of {total} combinations"] if len(rows) < total else []
    notes += _bound_note(rows)
    height = panel_height(len(rows) + len(notes))
    figure = blank_figure(height)
    both = len(results.orders) > 1 and len(results.merges) > 1
    # The full label with both names would not fit a legend.
    names = [f"{results.order_name(r.order)}, {r.merge}" if both else results.label(r.variant) for r in rows]
    longest = _longest(names)
    plot, side = figure.subplots(1, 2, width_ratios=(2.55 if longest == SHORT else 1.9, 1))
    entries = []
    listed = [v for v in results.variants if v in {r.variant for r in rows}]
    for row, name in zip(rows, names, strict=True):
        style = numbered_style(listed.index(row.variant), width=2.6 if row == best else 1.5)
        _draw(plot, results, row, row.metric, style)
        entries.append((name, percent(row.auc), style))
    dress(plot, f"{best.title}: which {choice(results)}?", f"{best.metric} (%)")
    legend(side, height, "AUC", entries, notes, longest)
    return figure


def subgroups_figure(results: Results) -> Figure | None:
    """The best method once per subgroup of queries, and the gap between them; None if there are no subgroups."""
    best = results.best()
    lines = results.groups.get((best.method, best.variant, best.metric), {}) if best else {}
    if best is None or len(lines) < 2:
        return None
    height = panel_height(len(lines))
    figure = blank_figure(height)
    plot, side = figure.subplots(1, 2, width_ratios=(2.55, 1))
    entries = []
    for index, (group, line) in enumerate(lines.items()):
        style = Style(INK, ":", "", 1.8, 1) if group == GAP else numbered_style(index, width=1.5)
        draw_line(plot, line.t, line.value, style, _band(line))
        name = "gap, best to worst" if group == GAP else group
        entries.append((name, f"{percent(line.value[0])} \u2192 {percent(line.value[-1])}", style))
    dress(plot, f"{best.title}: {best.metric} by subgroup of queries", f"{best.metric} (%)")
    plot.set_ylim(bottom=0)
    legend(side, height, "start \u2192 end", entries)
    return figure


def flips_figure(results: Results, variant: Variant) -> Figure | None:
    """Negative and positive flips over progress; None if the folder has no flip curves."""
    best = results.best()
    everything = results.panel(results.primary, variant)
    rows, notes = drawn_rows(everything), drawn_in_words(everything) + _bound_note(everything)
    present = [m for m in FLIP_METRICS if any(results.line(r, m) for r in rows)]
    if not present:
        return None
    lines = (len(present) + 1) // 2
    height = max(2.75 * lines, ENTRY_IN * (len(rows) + len(notes) + 2.5))
    figure = blank_figure(height)
    longest = _longest([r.title for r in rows])
    ratios = (1.45, 1.45, 1) if longest == SHORT else (1.2, 1.2, 1.25)
    grid = figure.add_gridspec(lines, 3, width_ratios=ratios)
    styles = method_styles(results, best.method if best else None)
    for index, metric in enumerate(present):
        plot = figure.add_subplot(grid[index // 2, index % 2])
        for row in rows:
            _draw(plot, results, row, metric, styles[row.method])
        dress(plot, FLIP_METRICS[metric].replace(" against", "\nagainst"), "queries (%)")
        plot.set_ylim(bottom=0)
    entries = [(r.title, percent(r.negative_flips_vs_old_max), styles[r.method]) for r in rows]
    legend(figure.add_subplot(grid[:, 2]), height, "vs old, max", entries, notes, longest)
    return figure


def gain_figure(results: Results) -> Figure:
    """Bar chart of the gain in the primary metric, in the table's order; 0 % is old and 100 % is new.

    If there are many methods, it shows only the best, each in its best order and merge.
    """
    everything = shown_rows(results, results.primary)
    kept, notes = (drawn_rows(everything), drawn_in_words(everything)) if is_large(results) else (everything, [])
    rows = [r for r in kept if not r.is_end and np.isfinite(r.gain)]
    figure = blank_figure(max(1.6, 0.32 * len(rows) + 1.1))
    plot = figure.add_subplot()
    styles = method_styles(results, None)
    names = [r.title + (f", {results.label(r.variant)}" if results.group(r) else "") for r in rows]
    widths = [100 * r.gain for r in rows]
    plot.barh(range(len(rows)), widths, height=0.62, color=[styles[r.method].colour for r in rows])
    for y, (row, width) in enumerate(zip(rows, widths, strict=True)):
        at: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        plot.annotate(percent_sign(row.gain), (max(width, 0.0), y), **at, color=INK, fontsize=9)
    title = "Gain: share of the upgrade's benefit during the backfill"
    dress(plot, f"{title} ({notes[0]})" if notes else title, "")
    for x in (0, 100):
        plot.axvline(x, color=FAINT, linewidth=1, linestyle="-" if x == 0 else "--", zorder=0)
    plot.set_yticks(range(len(rows)), [shorten(n, 34) for n in names], parse_math=False)
    plot.invert_yaxis()
    plot.grid(False)
    plot.set_xlim(min(0.0, *widths) * 1.1, max(100.0, *widths) * 1.12)
    plot.set_xlabel("gain in " + results.primary + " AUC (%)", color=FAINT, parse_math=False)
    return figure


# What ``Results.plot`` draws, by name; None where the results have nothing to show.
FIGURES: Mapping[str, Callable[[Results], Figure | None]] = {
    "curves": curves_figure,
    "gain": gain_figure,
    "orders": orders_figure,
    "flips": lambda results: flips_figure(results, results.best_variant),
    "subgroups": subgroups_figure,
}


def has_intervals(results: Results) -> bool:
    """Whether any quality curve carries bootstrap intervals."""
    return any(bool(np.isfinite(line.low).any()) for key, line in results.lines.items() if key[2] not in FLIP_METRICS)


def method_styles(results: Results, best: str | None) -> dict[str, Style]:
    """A style per method, the same in every figure; references are grey, the best method is thicker and on top."""
    own = own_methods(results)
    # Any other reference is drawn like offline.
    styles = dict.fromkeys(results.methods, REFERENCE_STYLES["offline"]) | REFERENCE_STYLES
    if len(own) > MAX_LINES:
        # Only the best of many methods are drawn, so they get the most distinct styles.
        ranked = [r.method for r in best_per_method(results, results.primary) if r.method in own]
        own = tuple(dict.fromkeys((*ranked, *own)))
    for index, method in enumerate(own):
        styles[method] = numbered_style(index, width=2.7 if method == best else 1.5)
    return styles


def _longest(names: Sequence[str]) -> int:
    return SHORT if all(len(name) <= SHORT for name in names) else LONG


def _bound_note(rows: Sequence[Row]) -> list[str]:
    return [BOUND] if any(row.is_bound for row in rows) else []


def _draw(plot: Axes, results: Results, row: Row, metric: str, style: Style) -> None:
    line = results.line(row, metric)
    if line is not None:
        draw_line(plot, line.t, line.value, style, None if row.is_reference else _band(line))


def _band(line: Line) -> tuple[Floats, Floats] | None:
    return (line.low, line.high) if np.isfinite(line.low).any() else None
