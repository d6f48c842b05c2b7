"""The share of stale answers where the gallery changes: results whose old vectors are of a content that has changed."""

import numpy as np

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData, Variant
from ray_backfill.compare.tables import STALE_ANSWERS
from ray_backfill.page.charts import Chart, DrawnCurve, numbered_style, range_of
from ray_backfill.page.numbers import percent, percent_sign
from ray_backfill.page.sections import Charts, Note, Section, Sentences

_NOTE = (
    "A result is stale if the old partition serves it although its content has changed. It stays so until the order "
    "backfills it. Counted are the first 10 results of a query. Old and new alone have no such share."
)


def section(results: ResultsData) -> Section | None:
    """A line for each order, of the method that is best; None if nothing changes."""
    best = results.best()
    told = dict.fromkeys(name for name, _, metric in results.moments if metric == STALE_ANSWERS)
    if not told:
        return None
    method = best.method if best and best.method in told else next(iter(told))
    merge = best.merge if best and best.method == method else results.merges[0]
    curves, sentences = [], []
    for index, order in enumerate(results.orders):
        line = results.moments.get((method, Variant(order, merge), STALE_ANSWERS))
        if line is None:
            continue
        average, name = float(np.trapezoid(line.value, line.t)), results.order_name(order)
        curves.append(
            DrawnCurve(order, f"{name} order", percent(average), numbered_style(index), 100 * line.t, 100 * line.value)
        )
        sentences.append(
            f"{results.titles[method]}, {name} order: {percent_sign(average)} of the first 10 results are stale on "
            f"average, and at most {percent_sign(float(line.value.max()))} at a moment."
        )
    chart = Chart(
        f"Stale answers of {results.titles[method]}", "stale results (%)", "average", tuple(curves),
        y_range=range_of(curves, from_zero=True),
    )  # fmt: skip
    return Section("How many answers are stale?", [Charts([chart], "stale"), Sentences(sentences), Note(_NOTE)])


ANALYSES = (Analysis("stale", section=section, place=35),)
