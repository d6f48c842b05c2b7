"""The charts of a live drill over time: latency, queries and backfill, one below the other."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from ray_backfill.drill.report.drill_folder import Drill, Floats
from ray_backfill.drill.report.numbers import milliseconds, rate
from ray_backfill.drill.report.situations import DURING, median, situations
from ray_backfill.drill.tables import SecondRow
from ray_backfill.page.charts import COLOURS, INK, MARK, RED, Chart, Curve, Rule, Style, range_of

MAX_POINTS = 450  # more points make a line darker, not finer
WIDE = 12.0  # ratio of the highest to the lowest latency beyond which the scale is logarithmic
HEIGHT = 250.0
P50, P99 = Style(COLOURS[0], "-", "", 1.4, 3), Style(COLOURS[1], "-", "", 1.4, 3)
ANSWERED, UNANSWERED = Style(COLOURS[0], "-", "", 1.4, 3), Style(RED, "", "v", 2.0, 4, size=6)
ITEMS, SHARE = Style(COLOURS[2], "-", "", 1.2, 3), Style(COLOURS[3], "-", "o", 1.6, 4)
CHECKPOINT, INCIDENT, NEW_LEG = Style(MARK, "-", "", 0.8, 1), Style(RED, "-", "", 0.9, 1), Style(INK, "--", "", 1.2, 2)
UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))

Bin = Sequence[SecondRow]


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
        Curve("unanswered", "unanswered", f"{total:,} in total", UNANSWERED, _middles(drill, failed), unanswered),
    ]
    return _chart(drill, "Queries", "per second", "", curves, range_of(curves, from_zero=True))


def _backfill(drill: Drill, points: Sequence[Bin]) -> Chart:
    during = situations(drill).get(DURING)
    items = [_mean(s.items for s in point) for point in points]
    number = f"{rate(during.items_per_s) if during else 0}/s"
    curves = [_curve(drill, "items", number, ITEMS, points, items)]
    return _chart(drill, "Backfill", "items per second", "", curves, range_of(curves, from_zero=True))


def _share(drill: Drill, points: Sequence[Bin]) -> Chart:
    share = np.array([100 * c.new_items / max(c.items, 1) for c in drill.checkpoints])
    when = np.array([c.elapsed_s for c in drill.checkpoints]) / _unit(drill)[0]
    curves = [Curve("new items", "new items", f"→ {share[-1]:.0f} %", SHARE, when, share)]
    return _chart(drill, "Items with their new embedding", "% of all items", "", curves, (0.0, 105.0))


def _chart(
    drill: Drill,
    title: str,
    unit: str,
    header: str,
    curves: Sequence[Curve],
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
) -> Curve:
    """A line with a gap between two legs."""
    x, y = _middles(drill, points), np.asarray(values, dtype=np.float64)
    gaps = [start for start, _ in list(_runs([point[0].leg for point in points]))[1:]]
    return Curve(
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
