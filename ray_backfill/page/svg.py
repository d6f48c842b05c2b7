"""Charts as SVG inside a page: drawn by matplotlib, coloured and lettered by the page's style sheet."""

import io
import re
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

from ray_backfill.core.printable import printable
from ray_backfill.page.charts import Chart, draw
from ray_backfill.page.drawing import COLOURS, FAINT, GRID, INK, MARK, MID, RED, SHADE, Axes, Figure, Style

# Sizes in units of the drawing; the page scales it to the width of the screen.
WIDTH, LEFT, RIGHT, TOP, BELOW = 640.0, 50.0, 622.0, 12.0, 60.0
PER_INCH = 72  # units of matplotlib's SVG

# Colours of the drawing -> the page's own, which differ in light and dark mode.
_VARIABLES = {name.lower(): f"var(--c{i})" for i, name in enumerate(COLOURS)}
_VARIABLES |= {INK.lower(): "var(--ink)", FAINT.lower(): "var(--faint)", GRID.lower(): "var(--line)"}
_VARIABLES |= {
    "#ffffff": "var(--paper)",
    SHADE: "var(--wash)",
    MARK: "var(--line)",
    MID: "var(--mid)",
    RED: "var(--no)",
}
_DASHES = {"--": "6 3", "-.": "7 2 1.5 2", ":": "1.5 2.5"}


def chart_svg(chart: Chart, name: str, label: str) -> str:
    """A chart with all its curves, the hidden ones too. name: unique in the page. label: text for screen readers."""
    height = chart.height
    figure = Figure(figsize=(WIDTH / PER_INCH, height / PER_INCH), dpi=PER_INCH)
    plot = figure.add_axes((LEFT / WIDTH, BELOW / height, (RIGHT - LEFT) / WIDTH, (height - TOP - BELOW) / height))
    draw(plot, chart, chart.curves)
    _dress(plot, chart)
    return _to_svg(figure, name, label)


def box_of(chart: Chart) -> tuple[float, float, float, float]:
    """The left, right, upper and lower edge of the chart's panel, in units."""
    return LEFT, RIGHT, TOP, chart.height - BELOW


def _dress(plot: Axes, chart: Chart) -> None:
    """Axes of a panel whose title and unit stand in the page."""
    plot.set_xlabel(chart.x_unit, color=FAINT, fontsize=13, labelpad=14)
    plot.grid(True, axis="y", color=GRID, linewidth=1)
    plot.set_axisbelow(True)
    plot.tick_params(colors=FAINT, labelsize=13, length=4, pad=7)
    if not chart.is_log:
        plot.locator_params(axis="y", nbins=6 if chart.height > 300 else 4)
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(FAINT)


def _to_svg(figure: Figure, name: str, label: str) -> str:
    """An element ``svg`` for a page. A group with the id ``line-rm`` gets the class ``line`` and the key ``rm``."""
    FigureCanvasSVG(figure)
    buffer = io.BytesIO()
    # Text stays text, so that the page's fonts and sizes apply; ids are unique by the name.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(printable(buffer.getvalue().decode("utf-8")))
    _clean(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return _recoloured(ElementTree.tostring(root, encoding="unicode"))


def swatch_svg(style: Style) -> str:
    """A short piece of line with its marker, for a legend."""
    colour = _VARIABLES.get(style.colour.lower(), style.colour)
    dashes = f' stroke-dasharray="{_DASHES[style.dashes]}"' if style.dashes in _DASHES else ""
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
            element.set(name, re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", element.attrib[name]))
    if element.tag == "text":
        element.set("style", re.sub(r"font[^;]*;?\s*", "", element.attrib.get("style", "")))
    for child in list(element):
        tag = child.tag.partition("}")[2]
        if tag in ("metadata", "style"):
            element.remove(child)
        else:
            _clean(child)


def _recoloured(svg: str) -> str:
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: _VARIABLES.get(found[0], found[0]), svg)
