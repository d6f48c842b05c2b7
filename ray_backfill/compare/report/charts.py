"""The charts of a report: quality at every moment, orders, flips and subgroups. Computes nothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ray_backfill.compare.report.results import DAGGER, Line, Results, Row, Variant
from ray_backfill.compare.report.selection import (
    MAX_LINES,
    best_per_method,
    compared_variants,
    drawn_in_words,
    drawn_rows,
    own_methods,
)
from ray_backfill.compare.report.slices import slice_rows
from ray_backfill.compare.report.wording import choice
from ray_backfill.compare.tables.results import (
    FLIP_METRICS,
    NEGATIVE_FLIPS,
    NEGATIVE_FLIPS_VS_OLD,
    POSITIVE_FLIPS,
    POSITIVE_FLIPS_VS_OLD,
)
from ray_backfill.compare.tables.slices import GAP
from ray_backfill.page.charts import INK, REFERENCE_STYLES, Chart, Curve, Interval, Style, numbered_style, range_of
from ray_backfill.page.numbers import percent

MAX_VARIANTS = 4  # more charts than this of one metric are more than a reader compares
BOUND = f"{DAGGER} upper bound: uses the answer"
# What users notice comes first.
FLIPS = (NEGATIVE_FLIPS_VS_OLD, POSITIVE_FLIPS_VS_OLD, NEGATIVE_FLIPS, POSITIVE_FLIPS)


def curve_charts(results: Results) -> list[Chart]:
    """A chart for each metric, and each order and merge if there are several; those of a metric have one scale."""
    return [
        chart
        for metric in results.metrics
        for chart in _on_one_scale([_curves(results, metric, variant) for variant in drawn_variants(results)])
    ]


def drawn_variants(results: Results) -> list[Variant]:
    """The variants that get a chart: all, or those with the highest AUC if there are many; the best one comes first.

    If some are left out, oracle orders go first.
    """
    ranked = sorted(
        (r for r in results.rows if r.metric == results.primary and not r.is_reference and r.auc == r.auc),
        key=lambda r: (not r.is_bound, r.auc),
        reverse=True,
    )
    kept = list(dict.fromkeys(r.variant for r in ranked))[:MAX_VARIANTS]
    drawn = [v for v in results.variants if v in kept] or list(results.variants[:1])
    return sorted(drawn, key=lambda variant: variant != results.best_variant)


def order_charts(results: Results) -> list[Chart]:
    """The best method once per order and merge; [] if there is only one."""
    best = results.best()
    if best is None or len(results.variants) == 1 or best.is_reference:
        return []
    rows = compared_variants(results, best.method)
    total = sum(r.metric == best.metric and r.method == best.method for r in results.rows)
    notes = [f"{len(rows)} of {total} combinations"] if len(rows) < total else []
    both = len(results.orders) > 1 and len(results.merges) > 1
    listed = [v for v in results.variants if v in {r.variant for r in rows}]
    curves = []
    for row in rows:
        # The full label with both names would not fit a legend.
        title = f"{results.order_name(row.order)}, {row.merge}" if both else results.label(row.variant)
        style = numbered_style(listed.index(row.variant), width=2.6 if row == best else 1.5)
        curves += _curve(results, row, row.metric, style, key="/".join(row.variant), title=title)
    chart = Chart(
        f"{best.title}: which {choice(results)}?",
        f"{best.metric} (%)",
        "AUC",
        tuple(curves),
        notes=(*notes, *_bound_note(rows)),
        y_range=range_of(curves),
    )
    return [chart]


def subgroup_charts(results: Results) -> list[Chart]:
    """The best method once per subgroup of queries, and the gap between them; [] if there are no subgroups."""
    best = results.best()
    lines = results.groups.get((best.method, best.variant, best.metric), {}) if best else {}
    if best is None or len(lines) < 2:
        return []
    rows = slice_rows(results, best)
    sizes = {row.group: row.queries for row in rows if row.slice == rows[0].slice}
    largest = {*sorted(sizes, key=lambda group: -sizes[group])[:MAX_LINES], GAP}
    curves = []
    for index, (group, line) in enumerate(lines.items()):
        style = Style(INK, ":", "", 1.8, 1) if group == GAP else numbered_style(index, width=1.5)
        is_shown = not sizes or group in largest
        title = "gap, best to worst" if group == GAP else group
        number = f"{percent(line.value[0])} → {percent(line.value[-1])}"
        curves.append(
            Curve(group, title, number, style, 100 * line.t, 100 * line.value, _interval(line), False, is_shown)
        )
    chart = Chart(
        f"{best.title}: {best.metric} by {rows[0].slice if rows else 'subgroup of queries'}",
        f"{best.metric} (%)",
        "start → end",
        tuple(curves),
        y_range=range_of(curves, from_zero=True),
    )
    return [chart]


def flip_charts(results: Results, variant: Variant) -> list[Chart]:
    """Negative and positive flips over progress in one order and merge; [] if the folder has no flip curves."""
    rows = results.panel(results.primary, variant)
    styles = method_styles(results)
    shown = {row.method for row in drawn_rows(rows)}
    charts = []
    for metric in FLIPS:
        curves = []
        for row in _by_auc(rows):
            curves += _curve(results, row, metric, styles[row.method], is_shown=row.method in shown)
        if curves:
            title, is_negative = FLIP_METRICS[metric], metric in (NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD)
            chart = Chart(
                title,
                "queries (%)",
                "largest" if is_negative else "at the end",
                tuple(curves),
                (title,),
                _notes(rows),
                y_range=range_of(curves, from_zero=True),
            )
            charts.append(chart)
    return charts


def has_intervals(results: Results) -> bool:
    """Whether any quality curve carries bootstrap intervals."""
    return any(bool(np.isfinite(line.low).any()) for key, line in results.lines.items() if key[2] not in FLIP_METRICS)


def method_styles(results: Results) -> dict[str, Style]:
    """A style per method, the same in every chart; references are grey, the best method is thicker and on top."""
    own, best = own_methods(results), results.best()
    # Any other reference is drawn like offline.
    styles = dict.fromkeys(results.methods, REFERENCE_STYLES["offline"]) | REFERENCE_STYLES
    if len(own) > MAX_LINES:
        # Only the best of many methods are shown at first, so they get the most distinct styles.
        ranked = [r.method for r in best_per_method(results, results.primary) if r.method in own]
        own = tuple(dict.fromkeys((*ranked, *own)))
    for index, method in enumerate(own):
        styles[method] = numbered_style(index, width=2.7 if best is not None and method == best.method else 1.5)
    return styles


def _curves(results: Results, metric: str, variant: Variant) -> Chart:
    """All methods in one order and merge, the highest AUC first in the legend."""
    rows, styles = results.panel(metric, variant), method_styles(results)
    shown = {row.method for row in drawn_rows(rows)}
    curves: list[Curve] = []
    for row in _by_auc(rows):
        curves += _curve(results, row, metric, styles[row.method], is_shown=row.method in shown)
    several = f", {results.label(variant)}" if len(results.variants) > 1 else ""
    choices = [metric] if len(results.metrics) > 1 else []
    choices += [results.label(variant)] if len(results.variants) > 1 else []
    return Chart(
        f"{metric} during the backfill{several}",
        f"{metric} (%)",
        "AUC",
        tuple(curves),
        tuple(choices),
        _notes(rows),
        y_range=range_of(curves),
    )


def _curve(
    results: Results, row: Row, metric: str, style: Style, is_shown: bool = True, key: str = "", title: str = ""
) -> list[Curve]:
    """The curve of a row in a metric, at all judged moments where there are any; [] if the row has no such curve."""
    line = results.line(row, metric)
    if line is None:
        return []
    trace = results.moments.get((row.method, row.variant, metric), line)
    interval = None if row.is_reference else _interval(line)
    number = percent(row.auc)
    if metric in FLIP_METRICS:
        largest = {NEGATIVE_FLIPS: row.negative_flips_max, NEGATIVE_FLIPS_VS_OLD: row.negative_flips_vs_old_max}
        number = percent(largest.get(metric, line.value[-1]))
    t, value = 100 * trace.t, 100 * trace.value
    # Old and new never change, and offline changes at once: at the end.
    is_step = row.is_reference
    return [Curve(key or row.method, title or results.name(row), number, style, t, value, interval, is_step, is_shown)]


def _by_auc(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: np.nan_to_num(r.auc, nan=-np.inf), reverse=True)


def _interval(line: Line) -> Interval | None:
    return Interval(100 * line.t, 100 * line.low, 100 * line.high) if np.isfinite(line.low).any() else None


def _on_one_scale(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts with the widest of their vertical ranges, so that they can be compared."""
    low, high = min(c.y_range[0] for c in charts), max(c.y_range[1] for c in charts)
    return [replace(chart, y_range=(low, high)) for chart in charts]


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    return (*drawn_in_words(rows), *_bound_note(rows))


def _bound_note(rows: Sequence[Row]) -> list[str]:
    return [BOUND] if any(row.is_bound for row in rows) else []
