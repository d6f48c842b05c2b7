"""Curves of results as charts: quality at every moment, the best method in each order and merge. Computes nothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ray_backfill.compare import selection
from ray_backfill.compare.results import DAGGER, Line, ResultsData, Row, Variant
from ray_backfill.compare.selection import choice
from ray_backfill.compare.tables import FLIP_METRICS, NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD
from ray_backfill.page.charts import REFERENCE_STYLES, Chart, DrawnCurve, Interval, Style, numbered_style, range_of
from ray_backfill.page.numbers import percent


def main_charts(results: ResultsData) -> list[Chart]:
    """A chart for each metric, or for each order and merge if there are several of those."""
    shown = curve_charts(results)
    return shown[: len(drawn_variants(results))] if len(results.variants) > 1 else shown  # of the primary metric


def curve_charts(results: ResultsData) -> list[Chart]:
    """A chart for each metric, and each order and merge if there are several; those of a metric have one scale."""
    charts, behind = [], " behind the service" * bool(selection.service_in_words(results))
    for metric in results.metrics:
        of_metric = []
        for variant in drawn_variants(results):
            # All methods, the highest AUC first in the legend.
            curves = panel_curves(results, metric, variant)
            several = [results.label(variant)] if len(results.variants) > 1 else []
            of_metric.append(
                Chart(
                    ", ".join((f"{metric}{behind} during the backfill", *several)),
                    f"{metric} (%)",
                    "average",
                    tuple(curves),
                    (*([metric] if len(results.metrics) > 1 else []), *several),
                    notes_on(results.panel(metric, variant)),
                    y_range=range_of(curves),
                )
            )
        # The widest of their vertical ranges, so that they can be compared.
        low, high = min(chart.y_range[0] for chart in of_metric), max(chart.y_range[1] for chart in of_metric)
        charts += [replace(chart, y_range=(low, high)) for chart in of_metric]
    return charts


def drawn_variants(results: ResultsData) -> list[Variant]:
    """The variants that get a chart: all, or the four with the highest AUC; the best one comes first.

    If some are left out, oracle orders go first.
    """
    ranked = sorted(
        (r for r in results.rows if r.metric == results.primary and not r.is_reference and r.auc == r.auc),
        key=lambda r: (not r.is_bound, r.auc),
        reverse=True,
    )
    kept = list(dict.fromkeys(r.variant for r in ranked))[:4]  # more of one metric are more than a reader compares
    drawn = [v for v in results.variants if v in kept] or list(results.variants[:1])
    return sorted(drawn, key=lambda variant: variant != results.best_variant)


def order_charts(results: ResultsData) -> list[Chart]:
    """The best method once per order and merge; [] if there is only one."""
    best = results.best()
    if best is None or len(results.variants) == 1 or best.is_reference:
        return []
    rows = selection.compared_variants(results, best.method)
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
        "average",
        tuple(curves),
        notes=(*notes, *_bound_note(rows)),
        y_range=range_of(curves),
    )
    return [chart]


def has_intervals(results: ResultsData) -> bool:
    """Whether any quality curve carries bootstrap intervals."""
    return any(bool(np.isfinite(line.low).any()) for key, line in results.lines.items() if key[2] not in FLIP_METRICS)


def method_styles(results: ResultsData) -> dict[str, Style]:
    """A style per method, the same in every chart; references are grey, the best method is thicker and on top."""
    methods, best = selection.own_methods(results), results.best()
    # Any other reference is drawn like offline.
    styles = dict.fromkeys(results.methods, REFERENCE_STYLES["offline"]) | REFERENCE_STYLES
    if len(methods) > selection.MAX_LINES:
        # Only the best of many methods are shown at first, so they get the most distinct styles.
        ranked = [r.method for r in selection.best_per_method(results, results.primary) if r.method in methods]
        methods = tuple(dict.fromkeys((*ranked, *methods)))
    for index, method in enumerate(methods):
        styles[method] = numbered_style(index, width=2.7 if best is not None and method == best.method else 1.5)
    return styles


def panel_curves(results: ResultsData, metric: str, variant: Variant) -> list[DrawnCurve]:
    """The curves of all methods in one order and merge, the highest AUC first; flips by that of the primary metric."""
    rows = results.panel(results.primary if metric in FLIP_METRICS else metric, variant)
    styles, shown = method_styles(results), {row.method for row in selection.drawn_rows(rows)}
    ranked = sorted(rows, key=lambda r: np.nan_to_num(r.auc, nan=-np.inf), reverse=True)
    return [
        curve
        for row in ranked
        for curve in _curve(results, row, metric, styles[row.method], is_shown=row.method in shown)
    ]


def notes_on(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the legend of these rows leaves out or has to explain."""
    return (*selection.drawn_in_words(rows), *_bound_note(rows))


def interval_of(line: Line) -> Interval | None:
    """The band of a curve; None without an interval."""
    return Interval(100 * line.t, 100 * line.low, 100 * line.high) if np.isfinite(line.low).any() else None


def _curve(
    results: ResultsData, row: Row, metric: str, style: Style, is_shown: bool = True, key: str = "", title: str = ""
) -> list[DrawnCurve]:
    """The curve of a row in a metric, at all judged moments where there are any; [] if the row has no such curve."""
    line = results.line(row, metric)
    if line is None:
        return []
    trace = results.moments.get((row.method, row.variant, metric), line)
    interval = None if row.is_reference else interval_of(line)
    number = percent(row.auc)
    if metric in FLIP_METRICS:
        largest = {NEGATIVE_FLIPS: row.negative_flips_max, NEGATIVE_FLIPS_VS_OLD: row.negative_flips_vs_old_max}
        number = percent(largest.get(metric, line.value[-1]))
    t, value = 100 * trace.t, 100 * trace.value
    # Old and new never change, and offline changes at once: at the end.
    is_step = row.is_reference
    return [
        DrawnCurve(key or row.method, title or results.name(row), number, style, t, value, interval, is_step, is_shown)
    ]


def _bound_note(rows: Sequence[Row]) -> list[str]:
    return [f"{DAGGER} upper bound: uses the answer"] if any(row.is_bound for row in rows) else []
