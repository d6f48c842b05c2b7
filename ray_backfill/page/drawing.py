"""Drawing helpers shared by all figures: colours, sizes, lines, axes and legends. Independent of the results.

Figures are made without pyplot: no global state, no window. A notebook shows them.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from ray_backfill.core.printable import printable

Floats = NDArray[np.float64]

DPI = 150
SHOWN_PX = 900  # width of a figure in a notebook
WIDTH_IN = 9.0  # on a page 900 px wide, 10 pt text is 14 px high
INK, FAINT, MID, GRID = "#1f2430", "#636a79", "#9aa2b1", "#e4e6eb"
RED, MARK, SHADE = "#b3261e", "#c9ceda", "#eceef3"  # failures, moments, stretches of time
# Okabe and Ito's colour-blind-safe palette, without the yellow, which is too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES = ("-", "--", "-.", ":")
MAX_MARKERS = 11
ENTRY_IN = 0.235  # height of a legend entry
SHORT, LONG = 22, 28  # characters of a name that fit a legend, and the wider legend of figures with longer names


@dataclass(frozen=True)
class Style:
    """The style of one line in all figures; colour, dashes and marker each distinguish methods."""

    colour: str
    dashes: str
    marker: str
    width: float
    layer: int
    size: float = 5.0
    """Size of a marker."""

    @property
    def of_line(self) -> dict[str, Any]:
        """The style as arguments of matplotlib's ``plot``."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "marker": self.marker,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
            "markersize": self.size,
        }


REFERENCE_STYLES = {
    "old": Style(FAINT, ":", "", 1.8, 1),
    "new": Style(FAINT, "--", "", 1.8, 1),
    "offline": Style(INK, "-", "", 1.1, 1),
    "rho_alone": Style(FAINT, "-.", "", 1.8, 1),
}


def numbered_style(index: int, width: float = 1.5) -> Style:
    """A distinct style for each number; a repeated colour has other dashes and another marker."""
    dashes = DASHES[index // len(COLOURS) % len(DASHES)]
    return Style(COLOURS[index % len(COLOURS)], dashes, MARKERS[index % len(MARKERS)], width, 3 if width > 2 else 2)


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


def dress(plot: Axes, title: str, unit: str) -> None:
    """Set title, unit and axes of a panel over progress."""
    # Names come from the user; parse_math=False keeps dollar signs literal.
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


def draw_line(
    plot: Axes, t: Floats, value: Floats, style: Style, band: tuple[Floats, Floats] | None = None, label: str = "",
    is_step: bool = False,
) -> None:  # fmt: skip
    """Draw a line over progress, and a band from the low to the high values. All arrays: (T,) shares.

    label: for a legend. is_step: values hold until the next one.
    """
    if band is not None:
        low, high = 100 * band[0], 100 * band[1]
        step: Literal["post"] | None = "post" if is_step else None
        layer = style.layer - 1
        plot.fill_between(100 * t, low, high, step=step, color=style.colour, alpha=0.11, linewidth=0, zorder=layer)
    plot_line(plot, 100 * t, 100 * value, style, label, is_step)


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


class Band(NamedTuple):
    """One curve to draw; (T,) shares each. low, high: its 95 % interval."""

    name: str
    t: Floats
    value: Floats
    low: Floats
    high: Floats


def plot_bands(bands: Sequence[Band], title: str, unit: str, ax: Axes | None = None) -> Figure:
    """Draw curves with their intervals and a legend: onto ``ax``, behind what it has, or on a figure of their own."""
    plot = blank_figure(3.6).add_subplot() if ax is None else ax
    there = plot.get_legend_handles_labels()[1]
    dress(plot, title, unit)
    for index, band in enumerate(bands, len(there)):
        draw_line(plot, band.t, band.value, numbered_style(index), (band.low, band.high), printable(band.name))
    for text in plot.legend(frameon=False, fontsize=9).get_texts():
        text.set_parse_math(False)
    figure = plot.figure
    return figure if isinstance(figure, Figure) else figure.figure


def legend(
    side: Axes,
    height_in: float,
    header: str,
    entries: Sequence[tuple[str, str, Style]],
    notes: Sequence[str] = (),
    longest: int = SHORT,
) -> None:
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
        side.text(0.16, y, shorten(name, longest), **text)
        side.text(1, y, number, ha="right", **text)


def shorten(name: str, length: int) -> str:
    """The name, shortened to at most ``length`` characters."""
    return name if len(name) <= length else name[: length - 1] + "\u2026"
