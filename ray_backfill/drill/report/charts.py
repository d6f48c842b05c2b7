"""The charts of a live drill: quality, recall and partitions over progress; latency, queries and backfill over time."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from ray_backfill.drill.report.drill_folder import DURING, Drill, median, periods
from ray_backfill.drill.tables import SecondRow
from ray_backfill.page.charts import (
    COLOURS,
    FAINT,
    INK,
    MARK,
    MID,
    RED,
    Chart,
    DrawnCurve,
    Floats,
    Rule,
    Style,
    range_of,
)
from ray_backfill.page.numbers import NOTHING, count, megabytes, milliseconds, percent, rate, signed_points

# Charts over progress.
X_RANGE = (-2.0, 102.0)  # the first and the last dot are whole
REPLAYED = Style(COLOURS[0], "-", "", 2.0, 2)
OLD, NEW = Style(FAINT, ":", "", 1.8, 1), Style(FAINT, "--", "", 1.8, 1)
LIVE, EXACT = Style(COLOURS[1], "", "o", 1.5, 4, size=8), Style(COLOURS[2], "", "D", 1.5, 3, size=11)
BACK = Style(COLOURS[6], "", "X", 1.5, 5, size=9)
OLD_ITEMS, NEW_ITEMS = Style(MID, "-", "o", 1.6, 2), Style(COLOURS[0], "-", "o", 1.6, 2)
# Charts over time.
MAX_POINTS = 450  # more points make a line darker, not finer
WIDE = 12.0  # ratio of the highest to the lowest latency beyond which the scale is logarithmic
HEIGHT = 250.0
UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
P50, P99 = Style(COLOURS[0], "-", "", 1.4, 3), Style(COLOURS[1], "-", "", 1.4, 3)
ANSWERED, UNANSWERED = Style(COLOURS[0], "-", "", 1.4, 3), Style(RED, "", "v", 2.0, 4, size=6)
ITEMS, SHARE = Style(COLOURS[2], "-", "", 1.2, 3), Style(COLOURS[3], "-", "o", 1.6, 4)
CHECKPOINT, INCIDENT, NEW_LEG = Style(MARK, "-", "", 0.8, 1), Style(RED, "-", "", 0.9, 1), Style(INK, "--", "", 1.2, 2)

Bin = Sequence[SecondRow]


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
            curves.append(DrawnCurve(title, title, _from_to(value), style, 100 * t, 100 * value))
    reference = "the replayed curve" if (metric, "backfill") in drill.replayed else "exact indexes"
    return Chart(
        f"{metric}: the live service and {reference}",
        f"{metric} (%)",
        "start → end (%)",
        tuple(curves),
        (metric,) if len(drill.metrics) > 1 else (),
        tuple(_notes(drill, metric)),
        x_range=X_RANGE,
        y_range=range_of(curves),
    )


def _live_curves(drill: Drill, metric: str) -> list[DrawnCurve]:
    live, exact = 100 * np.array([(q.live, q.exact) for q in drill.quality[metric]]).T
    t = 100 * np.array([c.t for c in drill.checkpoints])
    back = np.array([c.is_rollback for c in drill.checkpoints])
    curves = []
    if (~back).any():
        curves.append(DrawnCurve("live", "live", _from_to(live[~back] / 100), LIVE, t[~back], live[~back]))
    if not drill.facts.is_exact or drill.facts.has_churn or not np.array_equal(live, exact, equal_nan=True):
        curves.append(DrawnCurve("exact", "exact", _from_to(exact[~back] / 100), EXACT, t, exact))
    if back.any():
        last = percent(live[back][-1] / 100)
        curves.append(DrawnCurve("back", "live, rolled back", last, BACK, t[back], live[back]))
    return curves


def _notes(drill: Drill, metric: str) -> list[str]:
    gaps = [g.size for g in drill.off_promise() if g.metric == metric and np.isfinite(g.size)]
    if not gaps:
        return []
    farthest = max(gaps, key=abs)
    if farthest == 0:
        return [f"live − replayed: 0 at {len(gaps)} of {len(drill.checkpoints)}"]
    return [f"live − replayed: up to {signed_points(farthest)} points"]


def _from_to(values: Floats) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return NOTHING
    return percent(known[0]) if len(set(known)) == 1 else f"{percent(known[0])} → {percent(known[-1])}"


def timeline_charts(drill: Drill) -> list[Chart]:
    """Latency, queries, backfill and the share of new items; without traffic the last two; [] without a timeline."""
    if not drill.timeline:
        return []
    points = binned(drill.timeline)
    draw = (_latency, _queries, _backfill, _share) if drill.has_traffic else (_backfill, _share)
    return [chart(drill, points) for chart in draw]


def binned(seconds: Sequence[SecondRow], most: int = MAX_POINTS) -> list[Bin]:
    """Group neighbouring seconds into about ``most`` points. All seconds of a point belong to one leg."""
    size = max(1, -(-len(seconds) // most))
    legs = _runs([second.leg for second in seconds])
    return [seconds[a : min(a + size, end)] for start, end in legs for a in range(start, end, size)]


def _latency(drill: Drill, points: Sequence[Bin]) -> Chart:
    curves, numbers = [], []
    for title, style, drawn, seconds in (
        ("p99", P99, [_highest(s.p99_ms for s in p) for p in points], [s.p99_ms for s in drill.timeline]),
        ("p50", P50, [median(s.p50_ms for s in p) for p in points], [s.p50_ms for s in drill.timeline]),
    ):
        number = f"{milliseconds(median(seconds))} / {milliseconds(_highest(seconds))}"
        curves.append(_curve(drill, title, number, style, points, drawn))
        numbers += [value for value in drawn if math.isfinite(value) and value > 0]
    longest = max(map(len, points))
    notes = (f"one point = {longest} s; p99 = its highest second",) if longest > 1 else ()
    is_log = bool(numbers) and max(numbers) > WIDE * min(numbers)
    y_range = (0.8 * min(numbers), 1.25 * max(numbers)) if is_log else range_of(curves)
    return _chart(drill, "Latency of queries", "ms", "median / highest (ms)", curves, y_range, notes, is_log)


def _queries(drill: Drill, points: Sequence[Bin]) -> Chart:
    served = _mean(s.queries for s in drill.timeline if not s.is_measuring)
    total = sum(s.unanswered for s in drill.timeline)
    answered = [_mean(s.queries for s in point) for point in points]
    failed = [point for point in points if any(s.unanswered for s in point)]
    unanswered = np.array([_mean(s.unanswered for s in point) for point in failed])
    curves = [
        _curve(drill, "answered", f"{rate(served)}/s", ANSWERED, points, answered),
        DrawnCurve("unanswered", "unanswered", f"{total:,} in total", UNANSWERED, _middles(drill, failed), unanswered),
    ]
    return _chart(drill, "Queries", "per second", "", curves, range_of(curves, from_zero=True))


def _backfill(drill: Drill, points: Sequence[Bin]) -> Chart:
    during = periods(drill).get(DURING)
    items = [_mean(s.items for s in point) for point in points]
    number = f"{rate(during.items_per_s) if during else 0}/s"
    curves = [_curve(drill, "items", number, ITEMS, points, items)]
    return _chart(drill, "Backfill", "items per second", "", curves, range_of(curves, from_zero=True))


def _share(drill: Drill, points: Sequence[Bin]) -> Chart:
    share = np.array([100 * c.new_items / max(c.items, 1) for c in drill.checkpoints])
    when = np.array([c.elapsed_s for c in drill.checkpoints]) / _unit(drill)[0]
    curves = [DrawnCurve("new items", "new items", f"→ {share[-1]:.0f} %", SHARE, when, share)]
    return _chart(drill, "Items with their new embedding", "% of all items", "", curves, (0.0, 105.0))


def _chart(
    drill: Drill,
    title: str,
    unit: str,
    header: str,
    curves: Sequence[DrawnCurve],
    y_range: tuple[float, float],
    notes: tuple[str, ...] = (),
    is_log: bool = False,
) -> Chart:
    """A chart over time, with the marks that all of them have: checkpoints, incidents, new legs, measurements."""
    seconds, (size, name) = drill.timeline, _unit(drill)
    checkpoints = [c.elapsed_s for c in drill.checkpoints]
    ends = min(seconds[0].elapsed_s, 0, *checkpoints), max(seconds[-1].elapsed_s + 1, *checkpoints)
    legs = [float(seconds[start].elapsed_s) for start, _ in list(_runs([s.leg for s in seconds]))[1:]]
    incidents = [i.elapsed_s for i in drill.incidents]
    marks: list[tuple[Style, list[float]]] = [(CHECKPOINT, checkpoints), (INCIDENT, incidents), (NEW_LEG, legs)]
    measured = [(a, b) for a, b in _runs([s.is_measuring for s in seconds]) if seconds[a].is_measuring]
    return Chart(
        title, unit, header, tuple(curves), (), notes, f"{name} since the drill began", name,
        (ends[0] / size, ends[1] / size), y_range, is_log,
        rules=tuple(Rule(when / size, style) for style, times in marks for when in times),
        shades=tuple((seconds[a].elapsed_s / size, (seconds[b - 1].elapsed_s + 1) / size) for a, b in measured),
        height=HEIGHT,
    )  # fmt: skip


def _unit(drill: Drill) -> tuple[int, str]:
    """Seconds of the time axis's unit, and its name."""
    end = max(drill.timeline[-1].elapsed_s + 1, *(c.elapsed_s for c in drill.checkpoints))
    return next(((size, name) for size, name in UNITS if end > 4 * size), UNITS[-1])


def _curve(
    drill: Drill, title: str, number: str, style: Style, points: Sequence[Bin], values: Sequence[float]
) -> DrawnCurve:
    """A line with a gap between two legs."""
    x, y = _middles(drill, points), np.asarray(values, dtype=np.float64)
    gaps = [start for start, _ in list(_runs([point[0].leg for point in points]))[1:]]
    return DrawnCurve(
        title, title, number, style, np.insert(x, gaps, x[[gap - 1 for gap in gaps]]), np.insert(y, gaps, np.nan)
    )


def _runs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of equal values."""
    edges = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    yield from ((a, b) for a, b in pairwise(edges) if a < b)


def _middles(drill: Drill, points: Sequence[Bin]) -> Floats:
    size, _ = _unit(drill)
    return np.array([_mean(s.elapsed_s for s in point) / size for point in points])


def _mean(values: Iterable[float]) -> float:
    """The mean; NaN if there are no values."""
    known = list(values)
    return float(np.mean(known)) if known else math.nan


def _highest(values: Iterable[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)
