"""The drill over time: incidents, latency, queries and backfill, one below the other on one axis of time."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ray_backfill.report.drawing import COLOURS, FAINT, INK, WIDTH_IN, Style, blank_figure, dress, legend, shorten
from ray_backfill.report.live.reading import Drill, Floats, Timeline
from ray_backfill.report.live.sentences import milliseconds, rate
from ray_backfill.report.live.situations import DURING, median, situations
from ray_backfill.report.wording import NOTHING

MAX_POINTS = 450  # a line of more is not finer, only darker
WIDE = 12.0  # from the lowest to the highest: beyond this the scale is logarithmic
RED, SHADE, MARK = "#b3261e", "#eceef3", "#c9ceda"
PANEL_IN, KIND_IN, TITLE_IN, AXIS_IN = 1.75, 0.22, 0.5, 0.55
COLUMNS_IN = ((0.75, 5.7), (7.15, 1.75))  # where the panels and their legends start, and how wide they are
MAX_KINDS = 8
P50, P99 = Style(COLOURS[0], "-", "", 1.4, 3), Style(COLOURS[1], "-", "", 1.4, 3)
ANSWERED, UNANSWERED = Style(COLOURS[0], "-", "", 1.4, 3), Style(RED, "-", "", 2.0, 4)
ITEMS, SHARE = Style(COLOURS[2], "-", "", 0.9, 3), Style(COLOURS[3], "-", "o", 1.6, 4)


def timeline_figure(drill: Drill) -> Figure | None:
    """Panels that share the time: latency, queries and backfill, and above them a row per kind of incident.

    None where the drill has no timeline. Without traffic only the backfill is drawn.
    """
    if not len(drill.timeline.elapsed_s):
        return None
    line, seconds = resampled(drill.timeline)
    kinds = list(dict.fromkeys(i.kind for i in drill.incidents))[:MAX_KINDS]
    panels: list[Callable[[Axes, Axes, float, Drill, Timeline, int], None]] = (
        [_latency, _queries] if drill.has_traffic else []
    )
    panels.append(_backfill)
    top = KIND_IN * len(kinds) if kinds else 0.0
    heights = ([top] if kinds else []) + [PANEL_IN] * len(panels)
    total = sum(heights) + TITLE_IN * len(heights) + AXIS_IN
    figure = blank_figure(total)
    figure.set_layout_engine("none")  # all sizes are known, and every panel must have the same axis of time
    plots: list[Axes] = []
    bottom = total
    for row, height in enumerate(heights):
        bottom -= TITLE_IN + height
        places = [(left / WIDTH_IN, bottom / total, width / WIDTH_IN, height / total) for left, width in COLUMNS_IN]
        plot, side = (figure.add_axes(place) for place in places)
        plots.append(plot)
        if kinds and row == 0:
            _incidents(plot, side, drill, kinds)
        else:
            panels[row - (1 if kinds else 0)](plot, side, height, drill, line, seconds)
        _moments(plot, drill)
        _time_axis(plot, drill)
        plot.tick_params(labelbottom=row == len(heights) - 1)
        if row < len(heights) - 1:
            plot.set_xlabel("")
    return figure


def resampled(line: Timeline, most: int = MAX_POINTS) -> tuple[Timeline, int]:
    """At most so many points, and the seconds that each stands for.

    p50 is their median and p99 the highest; queries, items and unanswered are means. A point belongs to one leg.
    """
    seconds = max(1, -(-len(line.elapsed_s) // most))
    if seconds == 1:
        return line, 1
    bins = [slice(a, min(a + seconds, end)) for start, end in _runs(line.leg) for a in range(start, end, seconds)]

    def each(values: Floats, how: Callable[[Floats], float]) -> Floats:
        return np.array([how(values[b]) for b in bins])

    return Timeline(
        each(line.elapsed_s, np.mean),
        each(line.queries, np.mean),
        each(line.p50_ms, median),
        each(line.p99_ms, lambda values: max(values[np.isfinite(values)], default=np.nan)),
        each(line.items, np.mean),
        each(line.unanswered, np.mean),
        np.array([bool(line.is_measuring[b].any()) for b in bins]),
        np.array([bool(line.is_warm_up[b].any()) for b in bins]),
        np.array([line.leg[b.start] for b in bins]),
    ), seconds


def _latency(plot: Axes, side: Axes, height: float, drill: Drill, line: Timeline, seconds: int) -> None:
    dress(plot, "Latency of queries", "ms")
    shown = np.concatenate([line.p50_ms, line.p99_ms])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if len(shown) and shown.max() > WIDE * shown.min():
        plot.set_yscale("log")
        plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    for values, style in ((line.p50_ms, P50), (line.p99_ms, P99)):
        _by_leg(plot, line, values, style)
    whole = drill.timeline
    entries = [
        (name, f"{milliseconds(median(values))} / {milliseconds(_highest(values))}", style)
        for name, values, style in (("p99", whole.p99_ms, P99), ("p50", whole.p50_ms, P50))
    ]
    legend(side, height, "median / highest (ms)", entries, _each_point(seconds))


def _queries(plot: Axes, side: Axes, height: float, drill: Drill, line: Timeline, seconds: int) -> None:
    dress(plot, "Queries", "a second")
    _by_leg(plot, line, line.queries, ANSWERED)
    failed = line.unanswered > 0
    plot.vlines(line.elapsed_s[failed], 0, line.unanswered[failed], color=RED, linewidth=2.2, zorder=4)
    plot.plot(line.elapsed_s[failed], line.unanswered[failed], "v", color=RED, markersize=6, zorder=5, clip_on=False)
    plot.set_ylim(bottom=0)
    whole = drill.timeline
    served = whole.queries[~whole.is_measuring]
    entries = [("answered", f"{rate(float(served.mean())) if len(served) else NOTHING}/s", ANSWERED)]
    entries.append(("unanswered", f"{whole.unanswered.sum():,.0f} in all", UNANSWERED))
    legend(side, height, "", entries)


def _backfill(plot: Axes, side: Axes, height: float, drill: Drill, line: Timeline, seconds: int) -> None:
    dress(plot, "Backfill", "items a second")
    for part in _runs_of(line):
        plot.fill_between(line.elapsed_s[part], line.items[part], color=ITEMS.colour, alpha=0.25, linewidth=0)
    _by_leg(plot, line, line.items, ITEMS)
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
    legend(side, height, "", entries)


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
    """What all panels show: measuring shaded, checkpoints and incidents as lines, legs apart."""
    line = drill.timeline
    for start, end in _runs(line.is_measuring):
        if line.is_measuring[start]:
            plot.axvspan(line.elapsed_s[start], line.elapsed_s[end - 1] + 1, color=SHADE, linewidth=0, zorder=0)
    for checkpoint in drill.checkpoints:
        plot.axvline(checkpoint.elapsed_s, color=MARK, linewidth=0.8, zorder=1)
    for incident in drill.incidents:
        plot.axvline(incident.elapsed_s, color=RED, linewidth=0.6, alpha=0.35, zorder=1)
    for start, _ in list(_runs(line.leg))[1:]:
        plot.axvline(line.elapsed_s[start], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)


def _time_axis(plot: Axes, drill: Drill) -> None:
    end = max(float(drill.timeline.elapsed_s[-1]) + 1, *(c.elapsed_s for c in drill.checkpoints))
    start = min(float(drill.timeline.elapsed_s[0]), *(c.elapsed_s for c in drill.checkpoints))
    size, unit = next(((s, u) for s, u in ((3600, "hours"), (60, "minutes")) if end > 4 * s), (1, "seconds"))
    step = next((s for s in (1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 600, 1200) if end / size / s <= 10), 2400)
    plot.set_xticks(np.arange(0, end + 1e-9, step * size), [f"{x:g}" for x in np.arange(0, end / size + 1e-9, step)])
    plot.set_xlim(min(start, 0), end)
    plot.set_xlabel(f"{unit} since the drill began", color=FAINT, fontsize=9)


def _by_leg(plot: Axes, line: Timeline, values: Floats, style: Style) -> None:
    for part in _runs_of(line):
        t = line.elapsed_s[part]
        marker = "." if len(t) < 3 else ""
        plot.plot(t, values[part], color=style.colour, linewidth=style.width, marker=marker, zorder=style.layer)


def _runs_of(line: Timeline) -> list[slice]:
    return [slice(start, end) for start, end in _runs(line.leg)]


def _runs(values: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Start and end of each stretch of one value."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def _highest(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def _each_point(seconds: int) -> list[str]:
    return [] if seconds == 1 else [f"a point: {seconds} s, of p99", "the highest second"]
