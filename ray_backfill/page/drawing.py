"""Charts drawn by matplotlib: as figures for files and notebooks, and as SVG that a page colours and letters.

Figures are made without pyplot: no global state, no window. A notebook shows them.
"""

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

from ray_backfill.core.printable import printable
from ray_backfill.page.charts import (
    COLOURS,
    FAINT,
    GRID,
    INK,
    MARK,
    MID,
    PROGRESS,
    RED,
    SHADE,
    Chart,
    DrawnCurve,
    Floats,
    Style,
    numbered_style,
)
from ray_backfill.page.numbers import shorten

DPI = 150
SHOWN_PX = 900  # width of a figure in a notebook
WIDTH_IN = 9.0  # on a page 900 px wide, 10 pt text is 14 px high
MAX_MARKERS = 11
ENTRY_IN = 0.235  # height of a legend entry
SHORT, LONG = 22, 28  # characters of a name that fit a legend, and the wider legend of figures with longer names
NUMBER = 7  # characters of a number for which every legend has room


class _ShownFigure(Figure):
    """A figure that a notebook shows as it is; others need pyplot for that."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return to_png(self), {"width": SHOWN_PX}


def blank_figure(height_in: float) -> Figure:
    """An empty white figure of the common width."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.1, hspace=0.04)
    return _ShownFigure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white", layout=layout)


def panel_height(entries: int) -> float:
    """Height in inches of a panel beside a legend with this many entries."""
    return max(3.2, ENTRY_IN * (entries + 2.5))


def to_png(figure: Figure) -> bytes:
    """Render a figure; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def draw(plot: Axes, chart: Chart, curves: Sequence[DrawnCurve]) -> None:
    """Draw some of the chart's curves with their intervals; each gets an id by its key, such as ``line-rm``."""
    for start, end in chart.shades:
        plot.axvspan(start, end, color=SHADE, linewidth=0, zorder=0)
    for rule in chart.rules:
        style = rule.style
        plot.axvline(rule.x, color=style.colour, linewidth=style.width, linestyle=style.dashes, zorder=style.layer)
    if chart.is_log:
        plot.set_yscale("log")
    # Labels of a few characters, as there is little room for them: "0.5", "40", "1.2k".
    plot.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.4g}k" if abs(value) >= 1000 else f"{value:.4g}")
    if chart.bars:  # the curves on top of each other, a bar for each place
        bottom, every = np.zeros(len(chart.bars)), -(-len(chart.bars) // 12)
        for curve in curves:
            foot = bottom if curve.bottom is None else curve.bottom
            for bar in plot.bar(curve.x, curve.y, 0.8, bottom=foot, color=curve.style.colour):
                bar.set_gid(f"line-{curve.key}")
            if curve.interval is not None:
                plot.vlines(*curve.interval, color=INK, linewidth=1.2)
            bottom = bottom + curve.y if curve.bottom is None else bottom
        plot.set_xticks(range(0, len(chart.bars), every), chart.bars[::every])
    else:
        for curve in curves:
            off = "" if curve.is_shown else " off"
            if curve.interval is not None:
                plot_band(plot, *curve.interval, curve.style).set_gid(f"band{off}-{curve.key}")
            plot_line(plot, curve.x, curve.y, curve.style, is_step=curve.is_step).set_gid(f"line{off}-{curve.key}")
    plot.set_xlim(chart.x_range)
    plot.set_ylim(chart.y_range)


def dress(plot: Axes, title: str, unit: str) -> None:
    """Set title, unit and axes of a panel over progress."""
    # Names come from the user; parse_math=False keeps dollar signs literal.
    plot.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=9, parse_math=False)
    plot.set_ylabel(unit, color=FAINT, fontsize=9, parse_math=False)
    plot.set_xlabel(PROGRESS, color=FAINT, fontsize=9)
    plot.set_xlim(0, 100)
    plot.grid(True, axis="y", color=GRID, linewidth=0.8)
    plot.set_axisbelow(True)
    plot.tick_params(colors=FAINT, labelcolor=INK, labelsize=9, length=3)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        plot.spines[side].set_color(FAINT)


def plot_line(plot: Axes, x: Floats, y: Floats, style: Style, label: str = "", is_step: bool = False) -> Line2D:
    """Draw a line with a few markers; for a style without dashes, all markers and no line.

    is_step: values hold until the next one.
    """
    every = max(1, (len(x) - 1) // (MAX_MARKERS - 1)) if style.dashes else 1
    look = style.of_line | {"markevery": every, "zorder": style.layer, "clip_on": False, "label": label or None}
    look["drawstyle"] = "steps-post" if is_step else "default"
    return plot.plot(x, y, **look)[0]


def plot_band(plot: Axes, x: Floats, low: Floats, high: Floats, style: Style) -> Artist:
    """Draw a band behind the lines. It has no gaps: ``fill_between`` can have them, and takes four times as long."""
    edge_x, edge_y = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return plot.fill(edge_x, edge_y, color=style.colour, alpha=0.11, linewidth=0, zorder=style.layer - 1)[0]


class LabelledCurve(NamedTuple):
    """One curve to draw; (T,) shares each. low, high: its 95 % interval."""

    name: str
    t: Floats
    value: Floats
    low: Floats
    high: Floats


def plot_bands(curves: Sequence[LabelledCurve], title: str, unit: str, ax: Axes | None = None) -> Figure:
    """Draw curves with their intervals and a legend: onto ``ax``, behind what it has, or on a new figure."""
    plot = blank_figure(3.6).add_subplot() if ax is None else ax
    there = plot.get_legend_handles_labels()[1]
    dress(plot, title, unit)
    for index, (name, t, value, low, high) in enumerate(curves, len(there)):
        style = numbered_style(index)
        plot_band(plot, 100 * t, 100 * low, 100 * high, style)
        plot_line(plot, 100 * t, 100 * value, style, printable(name))
    for text in plot.legend(frameon=False, fontsize=9).get_texts():
        text.set_parse_math(False)
    figure = plot.figure
    return figure if isinstance(figure, Figure) else figure.figure


def legend(
    side: Axes, height_in: float, header: str, entries: Sequence[tuple[str, str, Style]], notes: Sequence[str] = (),
    longest: int = SHORT,
) -> None:  # fmt: skip
    """Draw a legend as a small table of line, name and number, so that the numbers align."""
    side.set_axis_off()
    side.set_xlim(0, 1)
    side.set_ylim(0, 1)
    step = min(1 / (len(entries) + len(notes) + 1), ENTRY_IN / height_in)
    side.text(1, 1, header, ha="right", va="center", fontsize=8, color=FAINT)
    for index, note in enumerate(notes):
        y = 1 - (len(entries) + 1 + index) * step
        side.text(0, y, shorten(note, 42), va="center", fontsize=8, color=FAINT, parse_math=False)
    for index, (name, number, style) in enumerate(entries):
        y = 1 - (index + 1) * step
        side.plot((0, 0.06, 0.12), (y, y, y), markevery=(1, 5), **style.of_line | {"markersize": 5})
        weight = "bold" if style.width > 2 else "normal"
        text: dict[str, Any] = {"va": "center", "fontsize": 9, "color": INK, "fontweight": weight, "parse_math": False}
        side.text(0.16, y, shorten(name, longest - max(0, len(number) - NUMBER)), **text)
        side.text(1, y, number, ha="right", **text)


def panels_figure(shown: Sequence[Chart]) -> Figure:
    """Charts below each other, each with its own legend. If there are many methods, only the best are drawn."""
    height = panel_height(max(len(chart.shown) + len(chart.notes) for chart in shown))
    # A number with its interval takes the room of some characters of the name.
    longest = legend_width([curve.title + curve.number[NUMBER:] for chart in shown for curve in chart.shown])
    figure = blank_figure(height * len(shown))
    grid = figure.add_gridspec(len(shown), 2, width_ratios=(2.55 if longest == SHORT else 1.9, 1))
    for index, chart in enumerate(shown):
        plot = figure.add_subplot(grid[index, 0])
        dress(plot, chart.title, chart.unit)
        draw(plot, chart, chart.shown)
        entries = [(curve.title, curve.number, curve.style) for curve in chart.shown]
        legend(figure.add_subplot(grid[index, 1]), height, chart.header, entries, chart.notes, longest)
    return figure


def legend_width(names: Sequence[str]) -> int:
    """Number of characters of a name in a legend of these names."""
    return SHORT if all(len(name) <= SHORT for name in names) else LONG


# Sizes in units of the drawing; the page scales it to the width of the screen.
WIDTH, LEFT, RIGHT, TOP, BELOW = 640.0, 50.0, 622.0, 12.0, 60.0
PER_INCH = 72  # units of matplotlib's SVG

# Colours of the drawing -> the page's own, which differ in light and dark mode.
_VARIABLES = {name.lower(): f"var(--c{i})" for i, name in enumerate(COLOURS)}
_VARIABLES |= {INK.lower(): "var(--ink)", FAINT.lower(): "var(--faint)", GRID.lower(): "var(--line)"}
_VARIABLES |= {"#ffffff": "var(--paper)", SHADE: "var(--wash)", MARK: "var(--line)"}
_VARIABLES |= {MID: "var(--mid)", RED: "var(--no)"}


def chart_svg(chart: Chart, name: str, label: str) -> str:
    """A chart with all its curves, the hidden ones too. name: unique in the page. label: text for screen readers.

    A group with the id ``line-rm`` gets the class ``line`` and the key ``rm``.
    """
    height = chart.height
    figure = Figure(figsize=(WIDTH / PER_INCH, height / PER_INCH), dpi=PER_INCH)
    plot = figure.add_axes((LEFT / WIDTH, BELOW / height, (RIGHT - LEFT) / WIDTH, (height - TOP - BELOW) / height))
    draw(plot, chart, chart.curves)
    # Title and unit stand in the page.
    plot.set_xlabel(chart.x_unit, color=FAINT, fontsize=13, labelpad=14)
    plot.grid(True, axis="y", color=GRID, linewidth=1)
    plot.set_axisbelow(True)
    plot.tick_params(colors=FAINT, labelsize=13, length=4, pad=7)
    if not chart.is_log:
        plot.locator_params(axis="y", nbins=6 if height > 300 else 4)
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(FAINT)
    FigureCanvasSVG(figure)
    buffer = io.BytesIO()
    # Text stays text, so that the page's fonts and sizes apply; ids are unique by the name.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(printable(buffer.getvalue().decode("utf-8")))
    _clean(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    svg = ElementTree.tostring(root, encoding="unicode")
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: _VARIABLES.get(colour[0], colour[0]), svg)


def box_of(chart: Chart) -> tuple[float, float, float, float]:
    """The left, right, upper and lower edge of the chart's panel, in units."""
    return LEFT, RIGHT, TOP, chart.height - BELOW


def swatch_svg(style: Style) -> str:
    """A short piece of line with its marker, for a legend."""
    colour = _VARIABLES.get(style.colour.lower(), style.colour)
    lengths = {"--": "6 3", "-.": "7 2 1.5 2", ":": "1.5 2.5"}.get(style.dashes)
    dashes = f' stroke-dasharray="{lengths}"' if lengths else ""
    line = f'<path d="M0 6H28" stroke="{colour}" stroke-width="{style.width}"{dashes}/>' if style.dashes else ""
    marker = MarkerStyle(style.marker or "None")
    place = Affine2D().scale(7.5, -7.5).translate(14, 6)
    path = marker.get_path().transformed(marker.get_transform() + place)
    shape = "".join(
        f"{ {1: 'M', 2: 'L', 3: 'Q', 4: 'C'}.get(int(code), 'Z') }"
        + (" ".join(f"{value:.1f}" for value in points) if code != path.CLOSEPOLY else "")
        for points, code in path.iter_segments()
    )
    drawn = f'<path d="{shape}" fill="{colour}" stroke="{colour}"/>' if shape else ""
    return f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" fill="none">{line}{drawn}</svg>'


def _clean(element: ElementTree.Element) -> None:
    """Drop what a page does not need: name spaces, metadata, fonts, matplotlib's ids of groups and needless digits."""
    element.tag = element.tag.partition("}")[2]
    element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if element.tag == "g":
        kind, _, key = element.attrib.pop("id", "").partition("-")
        if kind.split(" ")[0] in ("line", "band"):
            element.attrib |= {"class": kind, "data-key": key}
    for name in ("d", "x", "y"):
        if name in element.attrib:
            element.set(name, re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", element.attrib[name]))
    if element.tag == "text":
        element.set("style", re.sub(r"font[^;]*;?\s*", "", element.attrib.get("style", "")))
    for child in list(element):
        tag = child.tag.partition("}")[2]
        if tag in ("metadata", "style"):
            element.remove(child)
        else:
            _clean(child)
