"""The charts of a live drill over progress: quality, recall and partitions; timeline.py has those over time."""

import numpy as np

from ray_backfill.drill.report.drill_folder import Drill, Floats
from ray_backfill.drill.report.numbers import count, megabytes, points
from ray_backfill.page.charts import COLOURS, FAINT, MID, Chart, Curve, Style, range_of
from ray_backfill.page.numbers import NOTHING, percent

X_RANGE = (-2.0, 102.0)  # the first and the last dot are whole
REPLAYED = Style(COLOURS[0], "-", "", 2.0, 2)
OLD, NEW = Style(FAINT, ":", "", 1.8, 1), Style(FAINT, "--", "", 1.8, 1)
LIVE, EXACT = Style(COLOURS[1], "", "o", 1.5, 4, size=8), Style(COLOURS[2], "", "D", 1.5, 3, size=11)
BACK = Style(COLOURS[6], "", "X", 1.5, 5, size=9)
OLD_ITEMS, NEW_ITEMS = Style(MID, "-", "o", 1.6, 2), Style(COLOURS[0], "-", "o", 1.6, 2)


def quality_charts(drill: Drill) -> list[Chart]:
    """Live quality as dots on the replayed curve, a chart for each metric."""
    return [_quality(drill, metric) for metric in drill.metrics]


def recall_charts(drill: Drill) -> list[Chart]:
    """Recall of old and of new items at every checkpoint; [] if both indexes are exact."""
    if drill.facts.is_exact:
        return []
    t = np.array([c.t for c in drill.forward])
    curves = []
    for key, style, values in (
        ("old items", OLD_ITEMS, np.array([c.old_recall for c in drill.forward])),
        ("new items", NEW_ITEMS, np.array([c.new_recall for c in drill.forward])),
    ):
        known = values[np.isfinite(values)]
        lowest = percent(known.min()) if len(known) else NOTHING
        curves.append(Curve(key, key, lowest, style, 100 * t, 100 * values))
    title = "Recall: the share of the exact answer that the live answer contains"
    low, high = range_of(curves)
    chart = Chart(title, "recall (%)", "lowest (%)", tuple(curves), x_range=X_RANGE, y_range=(low, max(high, 100.0)))
    return [chart]


def partition_charts(drill: Drill) -> list[Chart]:
    """Items and memory of both partitions, a bar for each checkpoint."""
    c = drill.checkpoints
    items = np.array([(x.old_items, x.new_items) for x in c], float).T
    sizes = np.array([(x.old_bytes, x.new_bytes) for x in c], float).T / 1e6
    place = np.arange(len(c), dtype=float)
    labels = tuple("back" if x.is_rollback else f"{100 * x.t:.3g}" for x in c)
    charts = []
    for title, unit, (old, new) in (
        ("Items served by each partition", "items", items),
        ("Memory of each partition", "MB", sizes),
    ):
        last = [count(v) if unit == "items" else megabytes(1e6 * v) for v in (old[-1], new[-1])]
        both = (
            Curve("old", "old embedding", last[0], OLD_ITEMS, place, old),
            Curve("new", "new embedding", last[1], NEW_ITEMS, place, new),
        )
        highest = float((old + new).max())
        chart = Chart(
            title, unit, "at the end", both, (title,), x_unit="checkpoint: share of the plan backfilled (%)", place="",
            x_range=(-0.7, max(len(c), 2) - 0.3), y_range=(0.0, 1.08 * highest or 1.0), bars=labels,
        )  # fmt: skip
        charts.append(chart)
    return charts


def _quality(drill: Drill, metric: str) -> Chart:
    curves = _live_curves(drill, metric)
    for serving, title, style in (
        ("backfill", "replayed", REPLAYED),
        ("new", "new model alone", NEW),
        ("old", "old service", OLD),
    ):
        curve = drill.replayed.get((metric, serving))
        if curve is not None:
            t, value = np.array([(point.t, point.value) for point in curve]).T
            curves.append(Curve(title, title, _from_to(value), style, 100 * t, 100 * value))
    beside = "the replayed curve" if (metric, "backfill") in drill.replayed else "exact indexes"
    return Chart(
        f"{metric}: the live service and {beside}",
        f"{metric} (%)",
        "start → end (%)",
        tuple(curves),
        (metric,) if len(drill.metrics) > 1 else (),
        tuple(_notes(drill, metric)),
        x_range=X_RANGE,
        y_range=range_of(curves),
    )


def _live_curves(drill: Drill, metric: str) -> list[Curve]:
    live, exact = 100 * np.array([(q.live, q.exact) for q in drill.quality[metric]]).T
    t = 100 * np.array([c.t for c in drill.checkpoints])
    back = np.array([c.is_rollback for c in drill.checkpoints])
    curves = []
    if (~back).any():
        curves.append(Curve("live", "live", _from_to(live[~back] / 100), LIVE, t[~back], live[~back]))
    if not drill.facts.is_exact or drill.facts.has_churn or not np.array_equal(live, exact, equal_nan=True):
        curves.append(Curve("exact", "exact", _from_to(exact[~back] / 100), EXACT, t, exact))
    if back.any():
        last = percent(live[back][-1] / 100)
        curves.append(Curve("back", "live, rolled back", last, BACK, t[back], live[back]))
    return curves


def _notes(drill: Drill, metric: str) -> list[str]:
    gaps = [g.size for g in drill.off_promise() if g.metric == metric and np.isfinite(g.size)]
    if not gaps:
        return []
    farthest = max(gaps, key=abs)
    if farthest == 0:
        return [f"live − replayed: 0 at {len(gaps)} of {len(drill.checkpoints)}"]
    return [f"live − replayed: up to {points(farthest)} points"]


def _from_to(values: Floats) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return NOTHING
    return percent(known[0]) if len(set(known)) == 1 else f"{percent(known[0])} → {percent(known[-1])}"
