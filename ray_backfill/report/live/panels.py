"""The drill over time: incidents, latency, queries and backfill as stacked panels with a common time axis."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ray_backfill.display.drawing import COLOURS, FAINT, INK, WIDTH_IN, Style, blank_figure, dress, legend, shorten
from ray_backfill.report.live.drill_folder import Drill
from ray_backfill.report.live.numbers import milliseconds, rate
from ray_backfill.report.live.situations import DURING, median, situations
from ray_backfill.tables.drill import SecondRow

MAX_POINTS = 450  # more points make a line darker, not finer
WIDE = 12.0  # ratio of the highest to the lowest latency beyond which the scale is logarithmic
RED, SHADE, MARK = "#b3261e", "#eceef3", "#c9ceda"
PANEL_IN, KIND_IN, TITLE_IN, AXIS_IN = 1.75, 0.22, 0.5, 0.55
COLUMNS_IN = ((0.75, 5.7), (7.15, 1.75))  # (left edge, width) of the panels and of their legends
MAX_KINDS = 8
P50, P99 = Style(COLOURS[0], "-", "", 1.4, 3), Style(COLOURS[1], "-", "", 1.4, 3)
ANSWERED, UNANSWERED = Style(COLOURS[0], "-", "", 1.4, 3), Style(RED, "-", "", 2.0, 4)
ITEMS, SHARE = Style(COLOURS[2], "-", "", 0.9, 3), Style(COLOURS[3], "-", "o", 1.6, 4)

Bin = Sequence[SecondRow]


def timeline_figure(drill: Drill) -> Figure | None:
    """Panels of latency, queries and backfill over time, and above them one row per kind of incident.

    None if the drill has no timeline. Without traffic only the backfill is drawn.
    """
    if not drill.timeline:
        return None
    points = binned(drill.timeline)
    kinds = list(dict.fromkeys(i.kind for i in drill.incidents))[:MAX_KINDS]
    panels: list[tuple[float, Callable[[Axes, Axes], None]]] = []
    if kinds:
        panels.append((KIND_IN * len(kinds), partial(_incidents, drill=drill, kinds=kinds)))
    for draw in (_latency, _queries, _backfill) if drill.has_traffic else (_backfill,):
        panels.append((PANEL_IN, partial(draw, drill=drill, points=points)))
    total = sum(height + TITLE_IN for height, _ in panels) + AXIS_IN
    figure = blank_figure(total)
    figure.set_layout_engine("none")  # all sizes are known, and all panels must have the same time axis
    bottom = total
    for height, panel in panels:
        bottom -= TITLE_IN + height
        places = [(left / WIDTH_IN, bottom / total, width / WIDTH_IN, height / total) for left, width in COLUMNS_IN]
        plot, side = (figure.add_axes(place) for place in places)
        panel(plot, side)
        _moments(plot, drill)
        _time_axis(plot, drill, is_lowest=panel is panels[-1][1])
    return figure


def binned(seconds: Sequence[SecondRow], most: int = MAX_POINTS) -> list[Bin]:
    """Group neighbouring seconds into about ``most`` points. All seconds of a point belong to one leg."""
    size = max(1, -(-len(seconds) // most))
    legs = _runs([second.leg for second in seconds])
    return [seconds[a : min(a + size, end)] for start, end in legs for a in range(start, end, size)]


def _latency(plot: Axes, side: Axes, drill: Drill, points: Sequence[Bin]) -> None:
    dress(plot, "Latency of queries", "ms")
    p50_ms = [median(s.p50_ms for s in point) for point in points]
    p99_ms = [_highest(s.p99_ms for s in point) for point in points]
    shown = np.array([*p50_ms, *p99_ms])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if len(shown) and shown.max() > WIDE * shown.min():
        plot.set_yscale("log")
        plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    for values, style in ((p50_ms, P50), (p99_ms, P99)):
        _by_leg(plot, points, values, style)
    entries = [
        (name, f"{milliseconds(median(values))} / {milliseconds(_highest(values))}", style)
        for name, values, style in (
            ("p99", [s.p99_ms for s in drill.timeline], P99),
            ("p50", [s.p50_ms for s in drill.timeline], P50),
        )
    ]
    longest = max(map(len, points))
    notes = [f"one point = {longest} s;", "p99 = its highest second"] if longest > 1 else []
    legend(side, PANEL_IN, "median / highest (ms)", entries, notes)


def _queries(plot: Axes, side: Axes, drill: Drill, points: Sequence[Bin]) -> None:
    dress(plot, "Queries", "per second")
    _by_leg(plot, points, [_mean(s.queries for s in point) for point in points], ANSWERED)
    failed = [point for point in points if any(s.unanswered for s in point)]
    t, unanswered = _middles(failed), [_mean(s.unanswered for s in point) for point in failed]
    plot.vlines(t, 0, unanswered, color=RED, linewidth=2.2, zorder=4)
    plot.plot(t, unanswered, "v", color=RED, markersize=6, zorder=5, clip_on=False)
    plot.set_ylim(bottom=0)
    served = _mean(s.queries for s in drill.timeline if not s.is_measuring)
    total = sum(s.unanswered for s in drill.timeline)
    entries = [("answered", f"{rate(served)}/s", ANSWERED), ("unanswered", f"{total:,.0f} in total", UNANSWERED)]
    legend(side, PANEL_IN, "", entries)


def _backfill(plot: Axes, side: Axes, drill: Drill, points: Sequence[Bin]) -> None:
    dress(plot, "Backfill", "items per second")
    items = [_mean(s.items for s in point) for point in points]
    for start, end in _runs([point[0].leg for point in points]):
        plot.fill_between(_middles(points[start:end]), items[start:end], color=ITEMS.colour, alpha=0.25, linewidth=0)
    _by_leg(plot, points, items, ITEMS)
    plot.set_ylim(bottom=0)
    shares = plot.twinx()
    when = [c.elapsed_s for c in drill.checkpoints]
    share = [100 * c.new_items / max(c.items, 1) for c in drill.checkpoints]
    shares.plot(when, share, color=SHARE.colour, linewidth=1.6, marker="o", markersize=4.5, markeredgecolor="white")
    shares.set_ylim(0, 104)
    shares.set_ylabel("new items (%)", color=SHARE.colour, fontsize=9)
    shares.tick_params(colors=FAINT, labelcolor=SHARE.colour, labelsize=9, length=3)
    for spine in ("top", "left"):
        shares.spines[spine].set_visible(False)
    shares.spines["right"].set_color(FAINT)
    during = situations(drill).get(DURING)
    entries = [
        ("items", f"{rate(during.items_per_s) if during else 0}/s", ITEMS),
        ("new items", f"→ {share[-1]:.0f} %", SHARE),
    ]
    legend(side, PANEL_IN, "", entries)


def _incidents(plot: Axes, side: Axes, drill: Drill, kinds: Sequence[str]) -> None:
    dress(plot, "Incidents", "")
    plot.set_yticks([])
    plot.grid(False)
    plot.spines["left"].set_visible(False)
    side.set_axis_off()
    plot.set_ylim(len(kinds) - 0.5, -0.5)
    side.set_ylim(len(kinds) - 0.5, -0.5)
    side.set_xlim(0, 1)
    for y, kind in enumerate(kinds):
        when = [i.elapsed_s for i in drill.incidents if i.kind == kind]
        plot.plot(when, [y] * len(when), "|", color=RED, markersize=11, markeredgewidth=1.8, clip_on=False)
        name = shorten(kind, 21) + (f" × {len(when)}" if len(when) > 1 else "")
        side.text(0, y, name, va="center", fontsize=9, color=INK, parse_math=False)


def _moments(plot: Axes, drill: Drill) -> None:
    """Marks common to all panels: shading while measuring, lines for checkpoints, incidents and new legs."""
    seconds = drill.timeline
    for start, end in _runs([second.is_measuring for second in seconds]):
        if seconds[start].is_measuring:
            plot.axvspan(seconds[start].elapsed_s, seconds[end - 1].elapsed_s + 1, color=SHADE, linewidth=0, zorder=0)
    for checkpoint in drill.checkpoints:
        plot.axvline(checkpoint.elapsed_s, color=MARK, linewidth=0.8, zorder=1)
    for incident in drill.incidents:
        plot.axvline(incident.elapsed_s, color=RED, linewidth=0.6, alpha=0.35, zorder=1)
    for start, _ in list(_runs([second.leg for second in seconds]))[1:]:
        plot.axvline(seconds[start].elapsed_s, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)


def _time_axis(plot: Axes, drill: Drill, is_lowest: bool) -> None:
    checkpoints_s = [c.elapsed_s for c in drill.checkpoints]
    start = min(drill.timeline[0].elapsed_s, *checkpoints_s)
    end = max(drill.timeline[-1].elapsed_s + 1, *checkpoints_s)
    size, unit = next(((s, u) for s, u in ((3600, "hours"), (60, "minutes")) if end > 4 * s), (1, "seconds"))
    step = next((s for s in (1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 600, 1200) if end / size / s <= 10), 2400)
    plot.set_xticks(np.arange(0, end + 1e-9, step * size), [f"{x:g}" for x in np.arange(0, end / size + 1e-9, step)])
    plot.set_xlim(min(start, 0), end)
    plot.tick_params(labelbottom=is_lowest)
    plot.set_xlabel(f"{unit} since the drill began" if is_lowest else "", color=FAINT, fontsize=9)


def _by_leg(plot: Axes, points: Sequence[Bin], values: Sequence[float], style: Style) -> None:
    for start, end in _runs([point[0].leg for point in points]):
        look: dict[str, Any] = {"color": style.colour, "linewidth": style.width, "zorder": style.layer}
        plot.plot(_middles(points[start:end]), values[start:end], marker="." if end - start < 3 else "", **look)


def _runs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of equal values."""
    edges = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def _middles(points: Sequence[Bin]) -> list[float]:
    return [_mean(s.elapsed_s for s in point) for point in points]


def _mean(values: Iterable[float]) -> float:
    """The mean; NaN if there are no values."""
    known = list(values)
    return float(np.mean(known)) if known else math.nan


def _highest(values: Iterable[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)
