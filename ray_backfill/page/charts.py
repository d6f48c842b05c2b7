"""A chart as a value: curves with their look, drawn by matplotlib for pictures and for pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import FuncFormatter

from ray_backfill.page.drawing import SHADE, Axes, Floats, Style, plot_band, plot_line

PROGRESS = "share of the gallery backfilled (%)"


class Interval(NamedTuple):
    """The low and high ends of a curve's interval at some places; (B,) each."""

    x: Floats
    low: Floats
    high: Floats


class Rule(NamedTuple):
    """A vertical line through a chart."""

    x: float
    style: Style


@dataclass(frozen=True)
class Curve:
    """A line of a chart, in the units of its axes.

    key: the same in all charts that show the same thing. title, number: for the legend. x, y: (T,).
    is_step: values hold until the next one. is_shown: False for a line that a reader sees on request only.
    """

    key: str
    title: str
    number: str
    style: Style
    x: Floats
    y: Floats
    interval: Interval | None = None
    is_step: bool = False
    is_shown: bool = True


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    unit: of the vertical axis. header: what the numbers of the curves are. choices: what tells this chart from others
    of its group, such as a metric and an order. notes: short remarks below the legend. x_unit: of the horizontal axis.
    place: word after a place on it. x_range, y_range: the ends of the axes. is_log: the vertical axis is logarithmic.
    bars: labels of places, if values are drawn as stacked bars there instead of lines. rules, shades: vertical lines,
    and stretches with a grey background. height: on a page, whose charts are 640 wide.
    """

    title: str
    unit: str
    header: str
    curves: tuple[Curve, ...]
    choices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    x_unit: str = PROGRESS
    place: str = "%"
    x_range: tuple[float, float] = (0.0, 100.0)
    y_range: tuple[float, float] = (0.0, 100.0)
    is_log: bool = False
    bars: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    shades: tuple[tuple[float, float], ...] = ()
    height: float = 366.0

    @property
    def shown(self) -> list[Curve]:
        """The curves that a picture shows."""
        return [curve for curve in self.curves if curve.is_shown]


def draw(plot: Axes, chart: Chart, curves: Sequence[Curve]) -> None:
    """Draw some of the chart's curves with their intervals; each gets an id by its key, such as ``line-rm``."""
    for start, end in chart.shades:
        plot.axvspan(start, end, color=SHADE, linewidth=0, zorder=0)
    for rule in chart.rules:
        style = rule.style
        plot.axvline(rule.x, color=style.colour, linewidth=style.width, linestyle=style.dashes, zorder=style.layer)
    if chart.is_log:
        plot.set_yscale("log")
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    if chart.bars:
        _draw_bars(plot, chart, curves)
    else:
        _draw_lines(plot, curves)
    plot.set_xlim(chart.x_range)
    plot.set_ylim(chart.y_range)


def range_of(curves: Sequence[Curve], from_zero: bool = False) -> tuple[float, float]:
    """Ends of an axis on which these curves and their intervals have some room; (0, 1) if there are no values."""
    arrays = [array for c in curves for array in (c.y, *(c.interval[1:] if c.interval else ()))]
    values = np.concatenate([np.zeros(0), *arrays])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = (0.0 if from_zero else float(values.min())), float(values.max())
    room = 0.05 * (high - low) or 1.0
    return (0.0 if from_zero else low - room), high + room


def places_of(chart: Chart, most: int = 101) -> Floats:
    """The places at which a reader is told the values of the curves: all that have one, or some if they are many."""
    places = np.unique(np.concatenate([np.zeros(0), *(curve.x for curve in chart.curves)]))
    if len(places) <= most:
        return places
    return places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(int))]


def values_at(curve: Curve, places: Floats) -> Floats:
    """The values of a curve at some places, NaN where it has none; (P,)."""
    if not len(curve.x):
        return np.full(len(places), np.nan)
    nearest = np.abs(curve.x[None, :] - places[:, None]).argmin(axis=1)
    return np.where(np.isclose(curve.x[nearest], places), curve.y[nearest], np.nan)


def _tick(value: float) -> str:
    """A label of a few characters, as there is little room for it: "0.5", "40", "1.2k"."""
    return f"{value / 1000:.4g}k" if abs(value) >= 1000 else f"{value:.4g}"


def _draw_lines(plot: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        off = "" if curve.is_shown else " off"
        if curve.interval is not None:
            plot_band(plot, *curve.interval, curve.style).set_gid(f"band{off}-{curve.key}")
        plot_line(plot, curve.x, curve.y, curve.style, is_step=curve.is_step).set_gid(f"line{off}-{curve.key}")


def _draw_bars(plot: Axes, chart: Chart, curves: Sequence[Curve], most_labels: int = 12) -> None:
    """The curves on top of each other, a bar for each place."""
    bottom = np.zeros(len(chart.bars))
    for curve in curves:
        for bar in plot.bar(curve.x, curve.y, 0.8, bottom=bottom, color=curve.style.colour):
            bar.set_gid(f"line-{curve.key}")
        bottom = bottom + curve.y
    every = -(-len(chart.bars) // most_labels)
    plot.set_xticks(range(0, len(chart.bars), every), chart.bars[::every])
