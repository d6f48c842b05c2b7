"""The sentences of a forecast."""

import math
from collections.abc import Sequence

from ray_backfill.report.forecast.reading import ForecastResults
from ray_backfill.report.wording import NOTHING, percent, percent_sign
from ray_backfill.tables.forecast import ForecastRow

COLUMNS = (
    "± half of the 95 % interval. AUC: the average over the backfill. gain: the part of the upgrade's improvement that "
    "users get during the backfill; 100 % would be the new model at once. M_0, M_1: start, which is exact, and end. "
    "falls: the largest drop to a later moment. to halve: further items that would halve the interval of the AUC; – if "
    "half of the gallery is not enough."
)
NAMES = ("method", "order", "AUC", "gain", "M_0", "M_1", "falls", "to halve")
# Calibration outside of these limits is reported.
_FAR = (0.8, 1.25)
# Above this recall, intervals of 95 % held 86 to 94 % (docs/results/forecast.md).
_HIGH_RECALL = 0.9


def cells(row: ForecastRow) -> list[str]:
    """The texts of a row, in the order of ``NAMES``."""
    return [
        row.title, row.order, _with(row.auc, row.auc_high), _with(row.gain, row.gain_high, sign=True),
        percent(row.start), _with(row.end, row.end_high), _with(row.largest_fall, row.largest_fall_high),
        f"{row.to_halve:,.0f}" if math.isfinite(row.to_halve) else NOTHING,
    ]  # fmt: skip


def _with(value: float, high: float, sign: bool = False) -> str:
    shown = percent_sign if sign else percent
    return f"{shown(value)} ± {percent(high - value)}" if math.isfinite(value) else NOTHING


def heading(found: ForecastResults) -> str:
    """What the forecast was made of."""
    facts = found.manifest
    share = facts["known"] / facts["items"]
    return (
        f"Forecast from {facts['known']:,} of {facts['items']:,} new embeddings ({percent(share)} %), judged by "
        f"{facts['chosen']:,} of {facts['queries']:,} queries"
    )


def ends(found: ForecastResults, metric: str) -> str:
    """The old service and the new model in this metric."""
    value, low, high = found.manifest["new"][metric]
    old = found.manifest["old"][metric]
    new = f"{percent(value)} % (from {percent(low)} to {percent(high)})"
    return f"{metric}: the old service has {percent(old)} %, the new model alone {new}."


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
        "The variance of the AUC comes from "
        + ", ".join(f"{name} ({percent(share, 0)} %)" for name, share in parts)
        + "."
    )


def warnings(found: ForecastResults) -> list[str]:
    """What makes the forecast doubtful."""
    sentences = []
    for method, ratio in dict.fromkeys((row.method, row.ratio) for row in found.calibration):
        if not _FAR[0] <= ratio <= _FAR[1]:
            sentences.append(
                f"{method}: among the items sampled at random, {ratio:.2f} times as many are closer than right answers "
                "as expected. Its intervals may be too narrow; a larger sample helps."
            )
    high = dict.fromkeys(row.metric for row in found.rows if row.metric.startswith("recall") and row.end > _HIGH_RECALL)
    sentences += [
        f"{metric} is above {percent(_HIGH_RECALL, 0)} %: few misses are sampled, and its intervals are too narrow."
        for metric in high
    ]
    if found.manifest["chosen"] < 50:
        sentences.append(
            f"Only {found.manifest['chosen']} queries were chosen: intervals are wide, and may be too narrow. "
            "Extend the sample: ray-backfill sample --add."
        )
    return sentences
