"""The sentences of a forecast."""

import math
from collections.abc import Sequence

from ray_backfill.forecast.calibration import LEAST_RATIO, MOST_RATIO
from ray_backfill.forecast.report.reading import ForecastResults
from ray_backfill.forecast.tables import ForecastRow
from ray_backfill.page.numbers import NOTHING, percent, percent_sign

COLUMNS = (
    "± half of the 95 % interval. AUC: the average over the backfill. gain: the part of the upgrade's improvement that "
    "users get during the backfill; 100 % would be the new model at once; – if new is not significantly better than "
    "old. M_0: the start, exact. M_1: the end. falls: the largest drop to a later moment, or its limits. "
    "to halve: further items that would halve the interval of the AUC; – if half of the gallery is not enough."
)
NAMES = ("method", "order", "AUC", "gain", "M_0", "M_1", "falls", "to halve")
# If the chosen queries have as many different lists of right answers or fewer, intervals may be too narrow.
FEW_LISTS = 50
# Above this recall, intervals of 95 % held 86 to 94 % (docs/results/forecast.md).
_HIGH_RECALL = 0.9


def cells(row: ForecastRow) -> list[str]:
    """The texts of a row, in the order of ``NAMES``."""
    return [
        row.title, row.order, _with(row, "auc"), _with(row, "gain", sign=True), percent(row.start), _with(row, "end"),
        _fall(row),
        f"{row.to_halve:,.0f}" if math.isfinite(row.to_halve) else NOTHING,
    ]  # fmt: skip


def _with(row: ForecastRow, name: str, sign: bool = False) -> str:
    """A figure of a row with half of its interval; the wider half, where it ends at 0 or 1."""
    value, low, high = (getattr(row, each) for each in (name, f"{name}_low", f"{name}_high"))
    shown = percent_sign if sign else percent
    return f"{shown(value)} ± {percent(max(high - value, value - low))}" if math.isfinite(value) else NOTHING


def _fall(row: ForecastRow) -> str:
    low, high = percent(row.largest_fall_low), percent(row.largest_fall_high)
    if low == high:
        return low
    return f"{low} to {high}" if row.largest_fall_low else f"at most {high}"


def heading(found: ForecastResults) -> str:
    """What the forecast was made of."""
    facts = found.manifest
    known, items, queries = facts["known"], facts["items"], facts["queries"]
    if found.is_exact:
        return f"Exact, from all {items:,} new embeddings, judged by {queries:,} queries"
    judged = f"judged by {facts['chosen']:,} of {queries:,} queries"
    return f"Forecast from {known:,} of {items:,} new embeddings ({percent(known / items)} %), {judged}"


def told(found: ForecastResults) -> list[str]:
    """What the forecast says in the primary metric: the best method of each order, and whether to upgrade at all."""
    metric = found.metrics[0]
    several = len(found.orders) > 1
    leads = {order: found.lead(metric, order) for order in found.orders}
    said = [(f"In the order {order}, " if several else "") + lead for order, lead in leads.items() if lead]
    return [*_disagreement(found), *said, f"{ends(found, metric)}{_upgrade(found, metric)}"]


def _disagreement(found: ForecastResults) -> list[str]:
    """That metrics contradict the first one about the new model, beyond their intervals; [] if none does."""
    own = _side(found, found.metrics[0])
    against = [metric for metric in found.metrics if _side(found, metric) not in (0, own)]
    if not against:
        return []
    words = {1: "is better", -1: "is worse", 0: "is not told from the old one"}
    told = [
        f"by {metric} it {words[_side(found, metric)]} ({percent(found.manifest['old'][metric])} \u2192 "
        f"{percent(found.manifest['new'][metric][0])})"
        for metric in (found.metrics[0], *against)
    ]
    return [f"The metrics disagree about the new model: {', but '.join(told)}."]


def _side(found: ForecastResults, metric: str) -> int:
    """1 if the new model is better, -1 if it is worse, 0 if the interval leaves that open."""
    old, (_, low, high) = found.manifest["old"][metric], found.manifest["new"][metric]
    return 1 if low > old else -1 if high < old else 0


def ends(found: ForecastResults, metric: str) -> str:
    """The old service and the new model in this metric."""
    value, low, high = found.manifest["new"][metric]
    old = found.manifest["old"][metric]
    limits = f" (from {percent(low)} to {percent(high)})" if high > low else ""
    return f"{metric}: the old service has {percent(old)} %, the new model alone {percent(value)} %{limits}."


def _upgrade(found: ForecastResults, metric: str) -> str:
    """Whether the new model is better; "" if it is."""
    if _side(found, metric) < 0:
        return " The new model is worse than the old one: do not upgrade on this evidence."
    if not _side(found, metric):
        return " The forecast does not tell the new model from the old one: do not upgrade on this evidence."
    return ""


def width(rows: Sequence[ForecastRow]) -> str:
    """What the width of the intervals comes from, as the mean over rows."""
    parts = [
        (name, sum(getattr(row, field) for row in rows) / len(rows))
        for name, field in (
            ("the choice of queries", "of_queries"), ("the choice of right answers", "of_answers"),
            ("the model of items that were not sampled", "of_model"),
        )
    ]  # fmt: skip
    if not all(math.isfinite(share) for _, share in parts):
        return "Everything is known: the curves are exact."
    return (
        "On average over the methods, the variance of the AUC comes from "
        + ", ".join(f"{name} ({percent(share, 0)} %)" for name, share in parts)
        + "."
    )


def warnings(found: ForecastResults) -> list[str]:
    """What makes the forecast doubtful."""
    sentences = []
    for method, ratio in dict.fromkeys((row.method, row.ratio) for row in found.calibration):
        if not LEAST_RATIO <= ratio <= MOST_RATIO:
            sentences.append(
                f"{method}: among the items sampled at random, {ratio:.2f} times as many are closer than right answers "
                "as expected. Its intervals are wider for that."
            )
    high = dict.fromkeys(row.metric for row in found.rows if row.metric.startswith("recall") and row.end > _HIGH_RECALL)
    sentences += [
        f"{metric} is above {percent(_HIGH_RECALL, 0)} %: few misses are sampled, and its intervals are too narrow."
        for metric in high
    ]
    sentences += _below(found)
    if found.manifest["lists"] <= FEW_LISTS and not found.is_exact:
        sentences.append(
            f"The chosen queries have only {found.manifest['lists']} different lists of right answers: intervals are "
            "wide, and may be too narrow. Extend the sample: ray-backfill sample --add."
        )
    return sentences


def _below(found: ForecastResults) -> list[str]:
    """Methods that start below the old service, or end below the new model alone, in the primary metric."""
    metric, margin = found.metrics[0], found.manifest["evaluation"]["margin"]
    old = found.manifest["old"][metric]
    rows = {row.method: row for row in found.of(metric, found.orders[0])}.values()
    starts = [f"{row.title} ({percent(row.start)} %)" for row in rows if row.start < old - margin]
    ends_ = [
        f"{row.title} (by {percent(-row.end_vs_new)} ± {percent(row.end_vs_new_high - row.end_vs_new)} points)"
        for row in rows if row.end_vs_new_high < -margin
    ]  # fmt: skip
    sentences = [f"Start below the old service ({percent(old)} %): {', '.join(starts)}."] if starts else []
    return sentences + ([f"End below the new model alone: {', '.join(ends_)}."] if ends_ else [])
