"""A chart as a value: curves over one axis with their look. Needs no matplotlib; ``page.drawing`` draws it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INK, FAINT, MID, GRID = "#1f2430", "#636a79", "#9aa2b1", "#e4e6eb"
RED, MARK, SHADE = "#b3261e", "#c9ceda", "#eceef3"  # failures, moments, stretches of time
# Okabe and Ito's colour-blind-safe palette, without the yellow, which is too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES = ("-", "--", "-.", ":")

PROGRESS = "share of the gallery backfilled (%)"


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
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.6, "markersize": self.size}
        line = {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}
        return {**line, "marker": self.marker, **edge}


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
class DrawnCurve:
    """A line of a chart, in the units of its axes.

    key: the same in all charts that show the same thing. title, number: for the legend. x, y: (T,).
    is_step: values hold until the next one. is_shown: False for a line that a reader sees on request only. bottom: of
    bars, where they start; None: on top of those before.
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
    bottom: Floats | None = None


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    unit: of the vertical axis. header: what the numbers of the curves are. choices: what distinguishes this chart from
    others of its group, such as a metric and an order. notes: short remarks below the legend. x_unit: of the horizontal
    axis. place: word after a place on it. x_range, y_range: the ends of the axes. is_log: the vertical axis is
    logarithmic. bars: labels of places, if values are drawn as stacked bars there instead of lines. rules, shades:
    vertical lines, and stretches with a grey background. height: on a page, whose charts are 640 wide.
    """

    title: str
    unit: str
    header: str
    curves: tuple[DrawnCurve, ...]
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
    def shown(self) -> list[DrawnCurve]:
        """The curves that a picture shows."""
        return [curve for curve in self.curves if curve.is_shown]


def range_of(curves: Sequence[DrawnCurve], from_zero: bool = False) -> tuple[float, float]:
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
    """X positions at which the legend shows values: all that have one, or some if they are many."""
    places = np.unique(np.concatenate([np.zeros(0), *(curve.x for curve in chart.curves)]))
    if len(places) <= most:
        return places
    return places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(int))]


def values_at(curve: DrawnCurve, places: Floats) -> Floats:
    """The values of a curve at some places, NaN where it has none; (P,)."""
    if not len(curve.x):
        return np.full(len(places), np.nan)
    nearest = np.abs(curve.x[None, :] - places[:, None]).argmin(axis=1)
    return np.where(np.isclose(curve.x[nearest], places), curve.y[nearest], np.nan)
