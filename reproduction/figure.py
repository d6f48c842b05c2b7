"""Figure of several methods over progress: the mean over seeds, with a band of one standard deviation."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ray_backfill.page.charts import REFERENCE_STYLES, Style, numbered_style
from ray_backfill.page.drawing import LONG, Axes, blank_figure, dress, legend, panel_height, plot_line
from ray_backfill.page.numbers import percent
from reproduction.runs import Case, Floats, Runs
from reproduction.spread import mean_of


class SeedCurves(NamedTuple):
    """One method in a panel: (T,) progress, (S, T) values as shares. is_step: values hold until the next one."""

    title: str
    area: float
    t: Floats
    values_ST: Floats
    style: Style
    is_step: bool


def curves_figure(runs: Runs, methods: Sequence[str], order: str, metrics: Sequence[str]) -> Figure | None:
    """A panel for each metric, with the raw merge; None if none of the methods has a curve."""
    panels = {metric: _lines(runs, methods, order, metric) for metric in metrics}
    drawn = {metric: lines for metric, lines in panels.items() if lines}
    if not drawn:
        return None
    height = panel_height(max(map(len, drawn.values())))
    figure = blank_figure(height * len(drawn))
    grid = figure.add_gridspec(len(drawn), 2, width_ratios=(1.9, 1))
    for index, (metric, lines) in enumerate(drawn.items()):
        plot = figure.add_subplot(grid[index, 0])
        for line in lines:
            _draw(plot, line)
        dress(plot, f"{metric} during the backfill, {order} order", f"{metric} (%)")
        entries = [(line.title, percent(line.area), line.style) for line in lines]
        legend(figure.add_subplot(grid[index, 1]), height, "AUC", entries, longest=LONG)
    return figure


def _draw(plot: Axes, line: SeedCurves) -> None:
    """Draw the mean over seeds, and a band of one standard deviation if there are several."""
    mean_T = line.values_ST.mean(axis=0)
    if len(line.values_ST) > 1:
        spread_T = line.values_ST.std(axis=0, ddof=1)
        step: Literal["post"] | None = "post" if line.is_step else None
        look: dict[str, Any] = {"color": line.style.colour, "alpha": 0.11, "linewidth": 0}
        low, high = 100 * (mean_T - spread_T), 100 * (mean_T + spread_T)
        plot.fill_between(100 * line.t, low, high, step=step, zorder=line.style.layer - 1, **look)
    plot_line(plot, 100 * line.t, 100 * mean_T, line.style, is_step=line.is_step)


def _lines(runs: Runs, methods: Sequence[str], order: str, metric: str) -> list[SeedCurves]:
    """The available curves of these methods, highest AUC first. A method has the same style in every panel."""
    own = [m for m in dict.fromkeys(methods) if m not in REFERENCE_STYLES]
    styles = REFERENCE_STYLES | {method: numbered_style(index) for index, method in enumerate(own)}
    found = []
    for method in dict.fromkeys(methods):
        case = Case(method, order)
        curves = runs.curves(case, metric)
        if curves is not None:
            area, is_step = mean_of(runs.areas(case, metric)), method in REFERENCE_STYLES
            found.append(SeedCurves(runs.title(method), area, *curves, styles[method], is_step))
    return sorted(found, key=lambda line: np.nan_to_num(line.area, nan=-np.inf), reverse=True)
