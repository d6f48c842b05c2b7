"""The charts of a live drill: quality, recall and partitions over progress; latency, queries and backfill over time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.tables import Phase
from ray_backfill.engine.systems import IntArray
from ray_backfill.page import charts as page
from ray_backfill.page.charts import COLOURS, Chart, DrawnCurve, Style, range_of
from ray_backfill.page.numbers import NOTHING, count, megabytes, milliseconds, percent, rate, signed_points

# Charts over progress.
X_RANGE = (-2.0, 102.0)  # the first and the last dot are whole
REPLAYED = Style(COLOURS[0], "-", "", 2.0, 2)
LIVE, EXACT = Style(COLOURS[1], "", "o", 1.5, 4, size=8), Style(COLOURS[2], "", "D", 1.5, 3, size=11)
BACK = Style(COLOURS[6], "", "X", 1.5, 5, size=9)
OLD_ITEMS, NEW_ITEMS = Style(page.MID, "-", "o", 1.6, 2), Style(COLOURS[0], "-", "o", 1.6, 2)
# Charts over time.
MAX_POINTS = 450  # more points make a line darker, not finer
WIDE = 12.0  # ratio of the highest to the lowest latency beyond which the scale is logarithmic
UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
P50, P99 = Style(COLOURS[0], "-", "", 1.4, 3), Style(COLOURS[1], "-", "", 1.4, 3)
ANSWERED, UNANSWERED = Style(COLOURS[0], "-", "", 1.4, 3), Style(page.RED, "", "v", 2.0, 4, size=6)
ITEMS, SHARE = Style(COLOURS[2], "-", "", 1.2, 3), Style(COLOURS[3], "-", "o", 1.6, 4)
CHECKPOINT, INCIDENT = Style(page.MARK, "-", "", 0.8, 1), Style(page.RED, "-", "", 0.9, 1)
NEW_LEG = Style(page.INK, "--", "", 1.2, 2)

Points = Any  # seconds of the timeline, grouped


def quality_charts(drill: Drill) -> list[Chart]:
    """Live quality as dots on the replayed curve, a chart for each metric."""
    t = 100 * np.array([c.t for c in drill.checkpoints])
    back = np.array([c.is_rollback for c in drill.checkpoints])
    charts = []
    for metric in drill.metrics:
        live, exact = 100 * np.array([(q.live, q.exact) for q in drill.quality[metric]]).T
        curves = []
        if (~back).any():
            curves.append(DrawnCurve("live", "live", _from_to(live[~back] / 100), LIVE, t[~back], live[~back]))
        if not drill.facts.is_exact or drill.facts.has_churn or not np.array_equal(live, exact, equal_nan=True):
            curves.append(DrawnCurve("exact", "exact", _from_to(exact[~back] / 100), EXACT, t, exact))
        if back.any():
            last = percent(live[back][-1] / 100)
            curves.append(DrawnCurve("back", "live, rolled back", last, BACK, t[back], live[back]))
        styles = {"backfill": REPLAYED} | page.REFERENCE_STYLES
        for serving, title in (("backfill", "replayed"), ("new", "new model alone"), ("old", "old service")):
            points = drill.replayed.get((metric, serving))
            if points is not None:
                at, value = np.array([(point.t, point.value) for point in points]).T
                curves.append(DrawnCurve(title, title, _from_to(value), styles[serving], 100 * at, 100 * value))
        gaps = [g.size for g in drill.off_promise() if g.metric == metric and np.isfinite(g.size)]
        notes: tuple[str, ...] = ()
        if gaps and (farthest := max(gaps, key=abs)) == 0:
            notes = (f"live − replayed: 0 at {len(gaps)} of {len(drill.checkpoints)}",)
        elif gaps:
            notes = (f"live − replayed: up to {signed_points(farthest)} points",)
        reference = "the replayed curve" if (metric, "backfill") in drill.replayed else "exact indexes"
        choices = (metric,) if len(drill.metrics) > 1 else ()
        chart = Chart(
            f"{metric}: the live service and {reference}", f"{metric} (%)", "start → end (%)", tuple(curves), choices,
            notes, x_range=X_RANGE, y_range=range_of(curves),
        )  # fmt: skip
        charts.append(chart)
    return charts


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
        curves.append(DrawnCurve(key, key, lowest, style, 100 * t, 100 * values))
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
            DrawnCurve("old", "old embedding", last[0], OLD_ITEMS, place, old),
            DrawnCurve("new", "new embedding", last[1], NEW_ITEMS, place, new),
        )
        highest = float((old + new).max())
        chart = Chart(
            title, unit, "at the end", both, (title,), x_unit="checkpoint: share of the plan backfilled (%)", place="",
            x_range=(-0.7, max(len(c), 2) - 0.3), y_range=(0.0, 1.08 * highest or 1.0), bars=labels,
        )  # fmt: skip
        charts.append(chart)
    return charts


def _from_to(values: NDArray[np.float64]) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return NOTHING
    return percent(known[0]) if len(set(known)) == 1 else f"{percent(known[0])} → {percent(known[-1])}"


def timeline_charts(drill: Drill) -> list[Chart]:
    """Latency, queries, backfill and the share of new items; without traffic the last two; [] without a timeline."""
    if drill.timeline.empty:
        return []
    points = binned(drill.timeline)
    draw = (_latency, _queries, _backfill, _share) if drill.has_traffic else (_backfill, _share)
    return [chart(drill, points) for chart in draw]


def binned(seconds: pd.DataFrame, most: int = MAX_POINTS) -> Points:
    """Group neighbouring seconds into about ``most`` points. All seconds of a point belong to one leg."""
    size = max(1, -(-len(seconds) // most))
    return seconds.groupby([seconds.leg, seconds.groupby("leg").cumcount() // size])


def _latency(drill: Drill, points: Points) -> Chart:
    curves, numbers = [], []
    for title, style, drawn, seconds in (
        ("p99", P99, points.p99_ms.max(), drill.timeline.p99_ms),
        ("p50", P50, points.p50_ms.median(), drill.timeline.p50_ms),
    ):
        number = f"{milliseconds(seconds.median())} / {milliseconds(seconds.max())}"
        curves.append(_curve(drill, title, number, style, points, drawn))
        numbers += drawn[drawn > 0].tolist()
    longest = points.size().max()
    notes = (f"one point = {longest} s; p99 = its highest second",) if longest > 1 else ()
    is_log = bool(numbers) and max(numbers) > WIDE * min(numbers)
    y_range = (0.8 * min(numbers), 1.25 * max(numbers)) if is_log else range_of(curves)
    return _chart(drill, "Latency of queries", "ms", "median / highest (ms)", curves, y_range, notes, is_log)


def _queries(drill: Drill, points: Points) -> Chart:
    failed, when = points.unanswered.mean().to_numpy(), _middles(drill, points)
    at, lost = when[failed > 0], failed[failed > 0]
    total = count(drill.total(lambda c: c.unanswered))
    curves = [
        _curve(drill, "answered", f"{rate(drill.queries_per_s)}/s", ANSWERED, points, points.queries.mean()),
        DrawnCurve("unanswered", "unanswered", f"{total} in total", UNANSWERED, at, lost),
    ]
    return _chart(drill, "Queries", "per second", "", curves, range_of(curves, from_zero=True))


def _backfill(drill: Drill, points: Points) -> Chart:
    number = f"{rate(drill.phases[Phase.DURING].items_per_s) if Phase.DURING in drill.phases else 0}/s"
    curves = [_curve(drill, "items", number, ITEMS, points, points["items"].mean())]
    return _chart(drill, "Backfill", "items per second", "", curves, range_of(curves, from_zero=True))


def _share(drill: Drill, points: Points) -> Chart:
    share = np.array([100 * c.new_items / max(c.items, 1) for c in drill.checkpoints])
    when = np.array([c.elapsed_s for c in drill.checkpoints]) / _unit(drill)[0]
    curves = [DrawnCurve("new items", "new items", f"→ {share[-1]:.0f} %", SHARE, when, share)]
    return _chart(drill, "Items with their new embedding", "% of all items", "", curves, (0.0, 105.0))


def _chart(
    drill: Drill, title: str, unit: str, header: str, curves: Sequence[DrawnCurve], y_range: tuple[float, float],
    notes: tuple[str, ...] = (), is_log: bool = False,
) -> Chart:  # fmt: skip
    """A chart over time, with the marks that all of them have: checkpoints, incidents, new legs, measurements."""
    seconds, (size, name) = drill.timeline, _unit(drill)
    elapsed_s = seconds.elapsed_s.to_numpy()
    checkpoints = [c.elapsed_s for c in drill.checkpoints]
    ends = min(elapsed_s[0], 0, *checkpoints), max(elapsed_s[-1] + 1, *checkpoints)
    legs = elapsed_s[_changes(seconds.leg)].tolist()
    incidents = [i.elapsed_s for i in drill.incidents]
    marks: list[tuple[Style, list[float]]] = [(CHECKPOINT, checkpoints), (INCIDENT, incidents), (NEW_LEG, legs)]
    measured = np.diff(seconds.is_measuring.to_numpy(np.int8), prepend=0, append=0)
    begun, ended = elapsed_s[measured[:-1] > 0] / size, (elapsed_s[measured[1:] < 0] + 1) / size
    return Chart(
        title, unit, header, tuple(curves), (), notes, f"{name} since the drill began", name,
        (ends[0] / size, ends[1] / size), y_range, is_log,
        rules=tuple(page.Rule(when / size, style) for style, times in marks for when in times),
        shades=tuple(zip(begun.tolist(), ended.tolist(), strict=True)), height=250.0,
    )  # fmt: skip


def _unit(drill: Drill) -> tuple[int, str]:
    """Seconds of the time axis's unit, and its name."""
    end = max(drill.timeline.elapsed_s.iloc[-1] + 1, *(c.elapsed_s for c in drill.checkpoints))
    return next(((size, name) for size, name in UNITS if end > 4 * size), UNITS[-1])


def _curve(drill: Drill, title: str, number: str, style: Style, points: Points, values: "pd.Series[Any]") -> DrawnCurve:
    """A line with a gap between two legs."""
    x, gaps = _middles(drill, points), _changes(points.leg.first())
    y = np.insert(values.to_numpy(np.float64), gaps, np.nan)
    return DrawnCurve(title, title, number, style, np.insert(x, gaps, x[gaps - 1]), y)


def _changes(values: "pd.Series[Any]") -> IntArray:
    """Where a value differs from the one before."""
    return np.flatnonzero(np.diff(values.to_numpy())) + 1


def _middles(drill: Drill, points: Points) -> NDArray[np.float64]:
    return points.elapsed_s.mean().to_numpy() / _unit(drill)[0]
