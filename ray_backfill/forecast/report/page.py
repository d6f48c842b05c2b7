"""The forecast as charts and as a page."""

from pathlib import Path

import numpy as np

from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.forecast.report import words
from ray_backfill.forecast.report.reading import ForecastResults
from ray_backfill.page.charts import REFERENCE_STYLES, Chart, Curve, Interval, numbered_style, range_of
from ray_backfill.page.numbers import percent
from ray_backfill.page.parts import bind, flatten, page_charts, page_environment
from ray_backfill.page.sections import PageTable, text_table


def charts_of(found: ForecastResults) -> list[Chart]:
    """A chart for each metric and order."""
    return [_chart(found, metric, order) for metric in found.metrics for order in found.orders]


def _chart(found: ForecastResults, metric: str, order: str) -> Chart:
    methods = list(dict.fromkeys(row.method for row in found.rows))
    curves = [_flat(found, metric, name) for name in (NEW, OLD)]
    for row in found.of(metric, order):
        points = [p for p in found.points if (p.method, p.order, p.metric) == (row.method, order, metric)]
        t, value, low, high = (
            100 * np.array([getattr(point, name) for point in points]) for name in ("t", "value", "low", "high")
        )
        style = numbered_style(methods.index(row.method))
        number = f"{percent(row.auc)} ± {percent(max(row.auc_high - row.auc, row.auc - row.auc_low))}"
        curves.append(Curve(row.method, row.title, number, style, t, value, Interval(t, low, high)))
    several = f", {order} order" if len(found.orders) > 1 else ""
    choices = [each for each, all_ in ((metric, found.metrics), (order, found.orders)) if len(all_) > 1]
    return Chart(
        f"Forecast of {metric} during the backfill{several}", f"{metric} (%)", "AUC", tuple(curves), tuple(choices),
        y_range=range_of(curves),
    )  # fmt: skip


def _flat(found: ForecastResults, metric: str, name: str) -> Curve:
    old = found.manifest["old"][metric]
    title, limits = ("new model alone", found.manifest["new"][metric]) if name == NEW else ("old service", [old] * 3)
    ends = np.array([0.0, 100.0])
    value, low, high = (np.full(2, 100 * each) for each in limits)
    band = Interval(ends, low, high) if name == NEW else None
    return Curve(name, title, percent(limits[0]), REFERENCE_STYLES[name], ends, value, band)


def render(found: ForecastResults) -> str:
    """The HTML page."""
    facts = found.manifest
    return page_environment(Path(__file__).parent).get_template("forecast.html.jinja").render(
        heading=bind(words.heading(found)),
        warnings=[bind(sentence) for sentence in words.warnings(found)],
        answers=[bind(sentence) for sentence in words.told(found)],
        ends=[bind(words.ends(found, metric)) for metric in found.metrics[1:]],
        curves=page_charts(charts_of(found), "curves"),
        columns=bind(words.COLUMNS),
        numbers=[(metric, _numbers(found, metric)) for metric in found.metrics],
        widths=[bind(f"{metric}: {words.width(found.of(metric, found.orders[0]))}") for metric in found.metrics],
        differences=[
            (metric if len(found.orders) == 1 else f"{metric}, order {order}", _differences(found, metric, order))
            for metric in found.metrics for order in found.orders if found.pairs(metric, order)
        ],
        calibration=_calibration(found),
        left_out=list(facts.get("left_out", {}).items()),
        notes=[bind(note) for note in facts.get("notes", [])],
        command=facts["command"],
        settings=[*flatten(facts["evaluation"])],
    )  # fmt: skip


def _numbers(found: ForecastResults, metric: str) -> PageTable:
    rows = [words.cells(row) for order in found.orders for row in found.of(metric, order)]
    return text_table(f"forecast of {metric}", words.NAMES, rows, "cards")


def _differences(found: ForecastResults, metric: str, order: str) -> PageTable:
    titles = {row.method: row.title for row in found.rows}
    rows = [
        [
            titles[d.method], titles[d.other_method], percent(d.difference),
            f"{percent(d.low)} to {percent(d.high)}", "yes" if d.low > 0 or d.high < 0 else "no",
        ]
        for d in found.pairs(metric, order)
    ]  # fmt: skip
    heads = ("method", "other", "points", "95 % interval", "excludes 0")
    return text_table(f"differences of methods in {metric}, order {order}", heads, rows)


def _calibration(found: ForecastResults) -> PageTable:
    """One line for each range; methods whose backfilled items are served alike share their lines."""
    titles = {row.method: row.title for row in found.rows}
    methods: dict[tuple[str, ...], list[str]] = {}
    for row in found.calibration:
        ends = f"{row.expected_from:g} to {row.expected_to:g}".replace(" to inf", " or more")
        line = (ends, f"{row.answers:,}", f"{row.expected:.2f}", f"{row.observed:.2f}")
        methods.setdefault(line, []).append(titles[row.method])
    rows = [["; ".join(names), *line] for line, names in methods.items()]
    heads = ("methods", "expected", "right answers", "mean expected", "mean observed")
    return text_table("calibration of the model of other items", heads, rows)
