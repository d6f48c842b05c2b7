"""The tables of a forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.tables import NEW
from ray_backfill.core.schema import frame
from ray_backfill.forecast import Forecast, Units
from ray_backfill.forecast import summary as numbers
from ray_backfill.forecast.methods import KnownItems
from ray_backfill.forecast.tables import CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow
from ray_backfill.learn.methods import Method

# Limits of expected counts in the table of calibration.
_RANGES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, float("inf"))


@dataclass(frozen=True)
class Tables:
    """The tables of a forecast, and what its manifest says."""

    curves: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    calibration: pd.DataFrame
    facts: dict[str, object] = field(default_factory=dict)


def forecast_tables(comparison: Comparison, items: KnownItems, found: Mapping[Method, Forecast]) -> Tables:
    """The tables of these forecasts."""
    how, known = comparison.evaluation, items.known
    t = np.linspace(0, 1, how.points)
    (new,) = next(each for method, each in found.items() if method.name == NEW).units.values()
    old = {metric: float(units.start.mean()) for metric, units in new.items()}
    rest = [method for method in found if method.name != NEW]
    rows = [(m, order, name, units) for m in rest for order, by in found[m].units.items() for name, units in by.items()]
    curves = [
        ForecastPoint(method.name, order, metric, float(at), each.value, each.low, each.high)
        for method, order, metric, units in rows
        for at, each in zip(t, numbers.curve(units), strict=True)
    ]
    sizes = (items.sampled, len(comparison.folder.gallery))
    summary = [_row(m, order, metric, units, new[metric], t, *sizes) for m, order, metric, units in rows]
    return Tables(
        frame(ForecastPoint, curves), frame(ForecastRow, summary),
        frame(ForecastDifference, _differences(rows, t)),
        frame(CalibrationRow, [row for method in rest for row in _calibration(method, found[method])]),
        {
            "evaluation": asdict(how), "items": sizes[1], "known": len(known.position),
            "queries": comparison.truth.n_queries,
            "chosen": len(known.queries), "lists": len(np.unique(known.group)), "old": old,
            "new": {name: _end(units, t) for name, units in new.items()},
            "left_out": {each.name: each.reason for each in comparison.left_out}
            | {m.name: "it has no forecast" for m in comparison.methods if m not in found and not m.is_reference},
            "notes": list(comparison.notes),
        },
    )  # fmt: skip


def _end(units: Units, t: NDArray[np.float64]) -> list[float]:
    last = numbers.curve(units)[len(t) - 1]
    return [last.value, last.low, last.high]


def _row(
    method: Method, order: str, metric: str, units: Units, new: Units, t: NDArray[np.float64], sampled: int,
    gallery: int,
) -> ForecastRow:  # fmt: skip
    area = numbers.area(units, t)
    first, *_, last = numbers.curve(units)
    shown, gained = numbers.bounded(area), numbers.gain(units, new, t)
    behind, (fall, start, end) = numbers.end_difference(units, new), numbers.fall(units, t)
    variance = area.variance
    parts = (area.of_queries, area.of_answers, area.of_model)
    of_queries, of_answers, of_model = (part / variance if variance else float("nan") for part in parts)
    return ForecastRow(
        method.name, order, method.title, metric, first.value, last.value, last.low, last.high,
        shown.value, shown.low, shown.high, gained.value, gained.low, gained.high,
        behind.value, behind.low, behind.high, fall.value, fall.low, fall.high, start, end,
        of_queries, of_answers, of_model,
        numbers.items_to_halve(area, units.n_groups, sampled, gallery),
    )  # fmt: skip


def _differences(
    rows: Sequence[tuple[Method, str, str, Units]], t: NDArray[np.float64]
) -> list[ForecastDifference]:  # fmt: skip
    found = []
    for (one, order, metric, units), (other, its_order, its_metric, others) in combinations(rows, 2):
        if (order, metric) == (its_order, its_metric):
            area = numbers.area(units.plus(others, -1.0), t)
            found.append(ForecastDifference(one.name, other.name, order, metric, area.value, area.low, area.high))
    return found


def _calibration(method: Method, found: Forecast) -> list[CalibrationRow]:
    observed, expected = (
        np.concatenate([np.empty(0), *(getattr(each, name) for each in found.checked)])
        for name in ("observed", "expected")
    )
    rows = []
    for low, high in pairwise(_RANGES):
        inside = (expected >= low) & (expected < high)
        if inside.any():
            means = float(expected[inside].mean()), float(observed[inside].mean())
            rows.append(CalibrationRow(method.name, low, high, int(inside.sum()), *means, found.calibration.ratio))
    return rows
