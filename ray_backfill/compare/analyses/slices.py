"""Who gains and who loses: each curve for each group of queries, and what the upgrade does to the group.

Shapes: T reported points, DRAWS bootstrap draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from ray_backfill.compare.analyses import Analysis, TableRows
from ray_backfill.compare.charts import interval_of
from ray_backfill.compare.results import Line, ResultsData, Row, Variant, curves_of
from ray_backfill.compare.selection import FEW, MAX_LINES
from ray_backfill.compare.tables import OLD
from ray_backfill.core.printable import printable
from ray_backfill.core.progress import detail
from ray_backfill.core.schema import NO, UNDECIDED, YES, block
from ray_backfill.page import sections as page
from ray_backfill.page.charts import INK, Chart, DrawnCurve, Style, numbered_style, range_of
from ray_backfill.page.numbers import listed, percent, percent_sign, points

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves, Key
    from ray_backfill.compare.resolve import Comparison
    from ray_backfill.data.query_groups import Slice
    from ray_backfill.engine.systems import IntArray

# In the column ``group``: best group minus worst group.
GAP = "(gap)"
# With fewer queries, an interval is too narrow to be judged by.
FEWEST_QUERIES = 30
TOO_FEW = "too few to judge"


@dataclass(frozen=True)
class SubgroupPoint:
    """A point of a curve over the queries of one group."""

    method: Annotated[str, "as in `curves.parquet`"]
    order: str
    merge: str
    metric: str
    slice: Annotated[str, "column of the queries"]
    group: Annotated[
        str,
        f"value of this column, or the range of a quarter of its numbers; `(none)`: missing values; `(other)`: all but "
        f"the 20 largest groups; `{GAP}`: best minus worst group",
    ]
    queries: Annotated[int, "number of queries in the group"]
    t: Annotated[float, "as in `curves.parquet`; a gap has no interval"]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SliceRow:
    """What an upgrade does to the queries of one group; intervals are paired, and of these queries alone."""

    method: Annotated[str, "as in `subgroups.parquet`"]
    order: str
    merge: str
    metric: str
    slice: str
    group: str
    queries: int
    start: Annotated[float, "values before (M_0) and after (M_1) the backfill"]
    end: float
    change: Annotated[float, "end minus start, and its 95 % interval"]
    change_low: float
    change_high: float
    old: Annotated[float, "metric of {old, old} for these queries"]
    lowest_vs_old: Annotated[
        float, "smallest M_t minus old over the points of the curve, and its simultaneous 95 % interval"
    ]
    lowest_vs_old_low: float
    lowest_vs_old_high: float
    lowest_at: Annotated[float, "progress t at which it is smallest"]
    stays_at_old: Annotated[
        str,
        f"verdict on whether M_t never is below old: `yes`: the interval excludes a loss above the margin; `no`: it "
        f"shows a loss; `undecided`: neither, or fewer than {FEWEST_QUERIES} queries",
    ]


class _GroupCurve(NamedTuple):
    """A curve over the queries of a group. values: (T,). draws: (DRAWS, T), of the same queries in every curve."""

    queries: int
    t: NDArray[np.float64]
    values: NDArray[np.float64]
    draws: NDArray[np.float64]


def compute(comparison: "Comparison", curves: "Curves", _: object) -> Mapping[str, TableRows] | None:
    """Both tables; None without groups of queries."""
    how = comparison.evaluation
    if not comparison.slices:
        return None
    with detail("groups of queries"):
        points, rows = slice_tables(curves, how.metrics, comparison.slices, how.margin)
    return {"subgroups": points, "slices": rows}


def slice_tables(
    curves: "Curves", metrics: Sequence[str], slices: "Sequence[Slice]", margin: float
) -> tuple[pd.DataFrame, list[SliceRow]]:
    """``SubgroupPoint``s and ``SliceRow``s of every curve, also of old and new with a merge that changes them."""
    from ray_backfill.compare.tabulate import limited, no_loss, of_reference
    from ray_backfill.engine.statistics import ROUNDING, bootstrap_means, interval, lowest_limits

    curves = {
        **curves,
        **{(*key[:2], merge): alone for key, curve in curves.items() for merge, alone in curve.with_merge.items()},
    }
    scored: IntArray = next(iter(curves.values())).curve.scored

    def curve_of_group(key: "Key", metric: str, is_own: NDArray[np.bool_]) -> _GroupCurve:
        curve = curves[key].curve.of_queries(is_own)
        draws = bootstrap_means(curve.per_query[metric], curve.weights)
        return _GroupCurve(len(curve.scored), curve.t, curve.values(metric), draws)

    points: list[pd.DataFrame] = []
    rows: list[SliceRow] = []
    for sliced in slices:
        values: dict[tuple[Key, str], list[NDArray[np.float64]]] = {}
        # Group by group: the draws of its queries are made once for all curves.
        for group, metric in product(np.unique(sliced.of_query[scored]), metrics):
            is_own = sliced.of_query == group
            olds: dict[Key, _GroupCurve] = {}
            for key in curves:
                old_key = of_reference(OLD, key[1])
                if old_key not in olds:
                    olds[old_key] = curve_of_group(old_key, metric, is_own)
                own, old = curve_of_group(key, metric, is_own), olds[old_key]
                names = (*key, metric, sliced.column, sliced.groups[group])
                limits = interval(own.draws, own.queries)
                points.append(block(SubgroupPoint, *names, own.queries, own.t, own.values, *limits))
                values.setdefault((key, metric), []).append(own.values)
                above_old = own.values - old.values
                low, high = lowest_limits(own.draws - old.draws, above_old)
                lowest, is_few = int(np.argmin(above_old)), own.queries < FEWEST_QUERIES
                rows.append(
                    SliceRow(
                        *names,
                        own.queries,
                        float(own.values[0]),
                        float(own.values[-1]),
                        *limited(own.values[-1] - own.values[0], own.draws[:, -1] - own.draws[:, 0], own.queries),
                        old=float(old.values[0]),
                        lowest_vs_old=float(above_old[lowest]),
                        lowest_vs_old_low=low,
                        lowest_vs_old_high=high,
                        lowest_at=float(own.t[lowest]),
                        stays_at_old=UNDECIDED if is_few else no_loss(low, high, margin, ROUNDING),
                    )
                )
        for (key, metric), of_groups in values.items():
            gap, t = np.max(of_groups, axis=0) - np.min(of_groups, axis=0), curves[key].curve.t
            points.append(block(SubgroupPoint, *key, metric, sliced.column, GAP, len(scored), t, gap, np.nan, np.nan))
    return pd.concat(points, ignore_index=True), rows


def slice_rows(results: ResultsData, row: Row) -> list[SliceRow]:
    """What the method of a row does to each group of queries."""
    key = row.method, row.order, row.merge, row.metric
    return [of for of in results.table_of("slices") if (of.method, of.order, of.merge, of.metric) == key]


def slice_sentences(results: ResultsData, row: Row) -> list[str]:
    """Which groups fall below the old service, and how many are too small to tell; [] without slices."""
    rows = slice_rows(results, row)
    if not rows:
        return []
    below = sorted((group for group in rows if group.stays_at_old == NO), key=lambda group: group.lowest_vs_old)
    few = sum(group.queries < FEWEST_QUERIES for group in rows)
    said = f"No group of queries is shown to fall below the old service in {row.metric}."
    if below:
        told = [
            f"{of.slice} {of.group} by {points(-of.lowest_vs_old)} at {percent_sign(of.lowest_at, 0)} of the backfill"
            for of in below[:FEW]
        ]
        told += [f"{len(below) - FEW} more"] if len(below) > FEW else []
        said = f"These groups of queries fall below the old service in {row.metric}: {listed(told, 'and')}."
    small = f"{few} of {len(rows)} groups have fewer than {FEWEST_QUERIES} queries, {TOO_FEW}."
    return [said, *([small] if few else [])]


def section(results: ResultsData) -> page.Section | None:
    """The best method in the primary metric: a chart of the first slice, and a table of each slice."""
    best = results.best()
    charts, rows = subgroup_charts(results), slice_rows(results, best) if best else []
    if not charts and not rows:
        return None
    parts: list[page.Part] = [page.Charts(charts, "groups")]
    if charts:
        note = "The best method, once per subgroup of queries, and the gap between the best and the worst subgroup."
        parts.append(page.Note(f"{note} For all methods, see {results.file('subgroups.parquet')}."))
    for column in dict.fromkeys(row.slice for row in rows):
        lines = []
        for row in (row for row in rows if row.slice == column):
            is_below = {NO: "yes", YES: "no"}.get(row.stays_at_old, "not decided")
            lines.append(
                [
                    (column, page.Cell(row.group)),
                    ("queries", page.number(f"{row.queries:,}", row.queries)),
                    ("old service", page.share(row.old)),
                    ("start", page.share(row.start)),
                    ("end", page.share(row.end)),
                    ("end minus start", page.share(row.change)),
                    ("95 % interval", page.limits(row.change_low, row.change_high)),
                    ("lowest against old", page.share(row.lowest_vs_old)),
                    ("95 % interval", page.limits(row.lowest_vs_old_low, row.lowest_vs_old_high)),
                    ("at", page.number(percent_sign(row.lowest_at, 0), row.lowest_at)),
                    ("below old?", page.word(TOO_FEW if row.queries < FEWEST_QUERIES else is_below)),
                ]
            )
        table = page.table_of(f"What the upgrade does to the queries by {column}", lines)
        parts += [page.Title(f"By {column}"), table]
    words = Markup(
        "The best method, {} of each group of queries in per cent, differences in points. Lowest against old: where "
        "the group is furthest below the old service, or least above it, at the reported moments; its interval holds "
        "for all of them at once.\nBelow old: <em>yes</em> if this interval shows a loss, <em>no</em> if it excludes "
        f"one above the margin. Groups of fewer than {FEWEST_QUERIES} queries are too small to judge. With many "
        "groups, one in twenty differs by chance. For all methods, see {}."
    ).format(results.primary, results.file("slices.parquet"))
    return page.Section("Which subgroups benefit, and when?", [*parts, *([page.Note(words)] if rows else [])])


def group_lines(results: ResultsData) -> dict[tuple[str, Variant, str], dict[str, Line]]:
    """(method, variant, metric) -> curve of each group of the first slice, and of the gap; {} without slices."""
    lines: dict[tuple[str, Variant, str], dict[str, Line]] = {}
    if "subgroups" in results.tables:
        table = results.tables.frame("subgroups")
        for group, part in table[table["slice"] == table["slice"].iloc[0]].groupby("group", sort=False):
            for key, line in curves_of(part, Line).items():
                lines.setdefault(key, {})[printable(str(group))] = line
    return lines


def subgroup_charts(results: ResultsData) -> list[Chart]:
    """The best method once per subgroup of queries, and the gap between them; [] if there are no subgroups."""
    best = results.best()
    lines = group_lines(results).get((best.method, best.variant, best.metric), {}) if best else {}
    if best is None or len(lines) < 2:
        return []
    rows = slice_rows(results, best)
    sizes = {row.group: row.queries for row in rows if row.slice == rows[0].slice}
    largest = {*sorted(sizes, key=lambda group: -sizes[group])[:MAX_LINES], GAP}
    curves = []
    for index, (group, line) in enumerate(lines.items()):
        style = Style(INK, ":", "", 1.8, 1) if group == GAP else numbered_style(index, width=1.5)
        title, ends = "gap, best to worst" if group == GAP else group, (percent(line.value[0]), percent(line.value[-1]))
        value, is_shown = 100 * line.value, not sizes or group in largest
        curves.append(
            DrawnCurve(group, title, " → ".join(ends), style, 100 * line.t, value, interval_of(line), False, is_shown)
        )
    title = f"{best.title}: {best.metric} by {rows[0].slice if rows else 'subgroup of queries'}"
    y_range = range_of(curves, from_zero=True)
    return [Chart(title, f"{best.metric} (%)", "start → end", tuple(curves), y_range=y_range)]


ANALYSES = (Analysis("slices", SliceRow, compute, section, further={"subgroups": SubgroupPoint}, place=10),)
