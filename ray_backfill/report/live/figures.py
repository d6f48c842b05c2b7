"""Figures of quality, partitions and recall of a live drill over progress; panels.py draws the timeline."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ray_backfill.display.drawing import COLOURS, FAINT, INK, Style, blank_figure, dress, legend
from ray_backfill.report.live.drill_folder import Drill, Floats
from ray_backfill.report.live.numbers import points
from ray_backfill.report.wording import NOTHING, percent

OLD_COLOUR, NEW_COLOUR, LIVE_COLOUR, EXACT_COLOUR = "#9aa2b1", COLOURS[0], COLOURS[1], COLOURS[2]
REPLAYED = Style(COLOURS[0], "-", "", 2.0, 2)
OLD, NEW = Style(FAINT, ":", "", 1.8, 1), Style(FAINT, "--", "", 1.8, 1)
LIVE, EXACT = Style(LIVE_COLOUR, "", "o", 1.5, 4), Style(EXACT_COLOUR, "", "D", 1.5, 3)
BACK = Style(COLOURS[6], "", "X", 1.5, 5)
PANEL_IN = 3.1
MAX_LABELS = 12  # bar labels that fit without touching


def quality_figure(drill: Drill) -> Figure:
    """The main figure: live quality as dots on the replayed curve, one panel per metric."""
    figure = blank_figure(PANEL_IN * len(drill.metrics))
    grid = figure.add_gridspec(len(drill.metrics), 2, width_ratios=(2.55, 1))
    for index, metric in enumerate(drill.metrics):
        plot, side = figure.add_subplot(grid[index, 0]), figure.add_subplot(grid[index, 1])
        is_replayed = (metric, "backfill") in drill.replayed
        beside = "the replayed curve" if is_replayed else "exact indexes"
        dress(plot, f"{metric}: the live service and {beside}", f"{metric} (%)")
        plot.set_xlim(-2, 102)
        entries = []
        for serving, name, style in (
            ("backfill", "replayed", REPLAYED),
            ("new", "new model alone", NEW),
            ("old", "old service", OLD),
        ):
            curve = drill.replayed.get((metric, serving))
            if curve is not None:
                value = np.array([point.value for point in curve])
                _dots(plot, np.array([point.t for point in curve]), value, style)
                entries.append((name, _from_to(value), style))
        entries = _live_dots(plot, drill, metric) + entries
        legend(side, PANEL_IN, "start → end (%)", entries, _notes(drill, metric))
    return figure


def partitions_figure(drill: Drill) -> Figure:
    """Items and bytes of each partition, one bar per checkpoint."""
    figure = blank_figure(2.8)
    plots = figure.subplots(1, 2)
    c = drill.checkpoints
    items = np.array([(x.old_items, x.new_items) for x in c], float).T
    sizes = np.array([(x.old_bytes, x.new_bytes) for x in c]).T / 1e6
    place = np.arange(len(c))
    panels = (("Items served by each partition", "items", items), ("Memory of each partition", "MB", sizes))
    for plot, (title, unit, (old, new)) in zip(plots, panels, strict=True):
        dress(plot, title, unit)
        plot.bar(place, old, 0.8, color=OLD_COLOUR, label="old embedding")
        plot.bar(place, new, 0.8, bottom=old, color=NEW_COLOUR, label="new embedding")
        every = -(-len(c) // MAX_LABELS)
        names = ["back" if x.is_rollback else f"{100 * x.t:.3g}" for x in c]
        plot.set_xticks(place[::every], names[::every])
        plot.set_xlim(-0.7, max(len(c), 2) - 0.3)
        highest = float((old + new).max())
        plot.set_ylim(0, highest * 1.22 if highest > 0 else 1)
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}")
        plot.legend(loc="upper left", ncols=2, frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.0)
    return figure


def recall_figure(drill: Drill) -> Figure | None:
    """Recall of approximate indexes by side; None if the indexes are exact."""
    if drill.facts.is_exact:
        return None
    figure = blank_figure(2.7)
    plot, side = figure.subplots(1, 2, width_ratios=(2.55, 1))
    dress(plot, "Recall: the share of the exact answer that the live answer contains", "recall (%)")
    plot.set_xlim(-2, 102)
    entries = []
    t = np.array([c.t for c in drill.forward])
    for name, colour, values in (
        ("old items", FAINT, np.array([c.old_recall for c in drill.forward])),
        ("new items", NEW_COLOUR, np.array([c.new_recall for c in drill.forward])),
    ):
        known = values[np.isfinite(values)]
        style = Style(colour, "-", "o", 1.6, 2)
        _dots(plot, t, values, style)
        entries.append((name, percent(known.min()) if len(known) else NOTHING, style))
    plot.set_ylim(top=100 + 0.03 * (100 - plot.get_ylim()[0]))
    legend(side, 2.7, "lowest (%)", entries)
    return figure


def _live_dots(plot: Axes, drill: Drill, metric: str) -> list[tuple[str, str, Style]]:
    live, exact = np.array([(q.live, q.exact) for q in drill.quality[metric]]).T
    t = np.array([c.t for c in drill.checkpoints])
    back = np.array([c.is_rollback for c in drill.checkpoints])
    entries = []
    if (~back).any():
        _dots(plot, t[~back], live[~back], LIVE, size=7)
        entries.append(("live", _from_to(live[~back]), LIVE))
    if not drill.facts.is_exact or drill.facts.has_churn or not np.array_equal(live, exact, equal_nan=True):
        _dots(plot, t, exact, EXACT, size=9)
        entries.append(("exact", _from_to(exact[~back]), EXACT))
    if back.any():
        _dots(plot, t[back], live[back], BACK, size=9)
        entries.append(("live, rolled back", percent(live[back][-1]), BACK))
    return entries


def _notes(drill: Drill, metric: str) -> list[str]:
    gaps = [g.size for g in drill.off_promise() if g.metric == metric and np.isfinite(g.size)]
    if not gaps:
        return []
    farthest = max(gaps, key=abs)
    if farthest == 0:
        return [f"live − replayed: 0 at {len(gaps)} of {len(drill.checkpoints)}"]
    return [f"live − replayed: up to {points(farthest)} points"]


def _dots(plot: Axes, t: Floats, value: Floats, style: Style, size: float = 5) -> None:
    plot.plot(
        100 * t,
        100 * value,
        **style.of_line,
        markersize=size,
        markeredgewidth=0.7,
        zorder=style.layer,
        clip_on=False,
    )


def _from_to(values: Floats) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return NOTHING
    return percent(known[0]) if len(set(known)) == 1 else f"{percent(known[0])} → {percent(known[-1])}"
