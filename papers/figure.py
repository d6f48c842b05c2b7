"""Curves of a few methods over progress: the mean over seeds, and a band of one standard deviation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from papers.runs import Case, Floats, Runs
from papers.wording import mean_of
from ray_backfill.report.figures import COLOURS, DASHES, DPI, FAINT, GRID, INK, MARKERS, WIDTH_IN, Style
from ray_backfill.report.wording import percent

PANEL_IN, ENTRY_IN = 3.3, 0.24
BASELINES = {
    "old": Style(FAINT, ":", "", 1.8, 1),
    "new": Style(FAINT, "--", "", 1.8, 1),
    "offline": Style(INK, "-", "", 1.1, 1),
}


@dataclass(frozen=True)
class Curve:
    """One line of a panel: (T,) progress, (S, T) values as shares."""

    title: str
    area: float
    t: Floats
    values: Floats
    style: Style


def curves_figure(runs: Runs, methods: Sequence[str], order: str, metrics: Sequence[str]) -> Figure | None:
    """A panel for each metric, raw merge; None where none of the methods has a curve."""
    styles = _styles(methods)
    panels = {metric: _curves(runs, methods, order, metric, styles) for metric in metrics}
    drawn = {metric: curves for metric, curves in panels.items() if curves}
    if not drawn:
        return None
    height = max(PANEL_IN, ENTRY_IN * (max(len(c) for c in drawn.values()) + 2.5))
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.1, hspace=0.04)
    figure = Figure(figsize=(WIDTH_IN, height * len(drawn)), dpi=DPI, facecolor="white", layout=layout)
    grid = figure.add_gridspec(len(drawn), 2, width_ratios=(2.3, 1))
    for index, (metric, curves) in enumerate(drawn.items()):
        plot = figure.add_subplot(grid[index, 0])
        for curve in curves:
            _draw(plot, curve)
        _dress(plot, f"{metric} during the backfill, {order} order", f"{metric} (%)")
        _legend(figure.add_subplot(grid[index, 1]), height, curves)
    return figure


def _styles(methods: Sequence[str]) -> dict[str, Style]:
    """A style per method, the same in every panel; a colour comes back only with other dashes and another marker."""
    own = [m for m in methods if m not in BASELINES]
    styles = {
        m: Style(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)], MARKERS[i % len(MARKERS)], 1.6, 2)
        for i, m in enumerate(own)
    }
    return BASELINES | styles


def _curves(runs: Runs, methods: Sequence[str], order: str, metric: str, styles: dict[str, Style]) -> list[Curve]:
    found = []
    for method in dict.fromkeys(methods):
        case = Case(method, order)
        drawn = runs.curves(case, metric)
        if drawn is not None:
            area = mean_of(runs.areas(case, metric))
            found.append(Curve(runs.title(method), area, *drawn, styles[method]))
    return sorted(found, key=lambda c: np.nan_to_num(c.area, nan=-np.inf), reverse=True)


def _draw(plot: Axes, curve: Curve) -> None:
    t, mean_T, style = 100 * curve.t, 100 * curve.values.mean(axis=0), curve.style
    if len(curve.values) > 1:
        spread_T = 100 * curve.values.std(axis=0, ddof=1)
        low_T, high_T = mean_T - spread_T, mean_T + spread_T
        plot.fill_between(t, low_T, high_T, color=style.colour, alpha=0.13, linewidth=0, zorder=style.layer - 1)
    plot.plot(
        t,
        mean_T,
        color=style.colour,
        linestyle=style.dashes,
        linewidth=style.width,
        marker=style.marker,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        markevery=max(1, (len(t) - 1) // 10),
        zorder=style.layer,
        clip_on=False,
    )


def _dress(plot: Axes, title: str, unit: str) -> None:
    plot.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=9, parse_math=False)
    plot.set_ylabel(unit, color=FAINT, fontsize=9, parse_math=False)
    plot.set_xlabel("share of the gallery backfilled (%)", color=FAINT, fontsize=9)
    plot.set_xlim(0, 100)
    plot.grid(True, axis="y", color=GRID, linewidth=0.8)
    plot.set_axisbelow(True)
    plot.tick_params(colors=FAINT, labelcolor=INK, labelsize=9, length=3)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        plot.spines[side].set_color(FAINT)


def _legend(side: Axes, height_in: float, curves: Sequence[Curve]) -> None:
    """A small table sorted by AUC: line, name and number in columns, so that numbers align."""
    side.set_axis_off()
    side.set_xlim(0, 1)
    side.set_ylim(0, 1)
    step = min(1 / (len(curves) + 1), ENTRY_IN / height_in)
    side.text(1, 1, "AUC", ha="right", va="center", fontsize=8, color=FAINT)
    for index, curve in enumerate(curves):
        y, style = 1 - (index + 1) * step, curve.style
        side.plot(
            (0, 0.06, 0.12),
            (y, y, y),
            color=style.colour,
            linestyle=style.dashes,
            linewidth=style.width,
            marker=style.marker,
            markevery=(1, 5),
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.6,
        )
        side.text(0.16, y, _shorten(curve.title), va="center", fontsize=9, color=INK, parse_math=False)
        side.text(1, y, percent(curve.area), ha="right", va="center", fontsize=9, color=INK)


def _shorten(name: str, length: int = 26) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}\u2026"
