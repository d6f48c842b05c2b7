"""The forecast of one method's curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm
from ray_backfill.forecast.calibration import Calibration, Checked, calibrate
from ray_backfill.forecast.chosen import ChosenQueries, Forms, Known
from ray_backfill.forecast.estimate import Answers, Units
from ray_backfill.forecast.expected import mean_factors
from ray_backfill.forecast.metrics import SumMetric
from ray_backfill.progress import Stage
from ray_backfill.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem, UpgradePair


@dataclass(frozen=True, eq=False)
class Forecast:
    """units: order -> metric -> curve. calibration, checked: of the model of other items."""

    units: Mapping[str, Mapping[str, Units]]
    calibration: Calibration
    checked: Sequence[Checked]


def forecast_pair(
    pair: UpgradePair, old: RetrievalSystem, known_forward: FloatArray, known: Known, truth: GroundTruth,
    orders: Mapping[str, IntArray], starts: Mapping[str, NDArray[np.float64]], points: int, distance: str,
    system: str, bar: Stage | None = None,
) -> Forecast:  # fmt: skip
    """Forecast the curves of a method.

    pair: its systems; the forward gallery holds stand-ins for all items. old: {old, old}. known_forward: (n, d) true
    rows of the forward gallery for the known items. orders: name -> (N,) order. starts: metric -> (Q,) its exact values
    at t = 0; of queries without right answers they do not count. points: number of moments, evenly spaced. distance:
    cosine or l2. system: a name of the forward system; methods that share it share the errors of its counts.
    Cost: 3 products of m queries with the gallery, and O(m N) for each order.
    """
    forms = Forms(*(ProductForm.of(system, distance) for system in (
        pair.forward, old, pair.backward, RetrievalSystem(pair.forward.query, known_forward)
    )))  # fmt: skip
    chosen = ChosenQueries(forms, known, truth)
    moment_ON = np.stack([moments_of(order, points) for order in orders.values()])
    if pair.switch == "at_end":
        moment_ON[:] = points - 1
    counted = chosen.count(chosen.fit_others(), chosen.fit_answers(), moment_ON, points, bar)
    checked = [each.checked for each in counted]
    calibration = calibrate(checked)
    metrics = {name: SumMetric.of(name) for name in starts}
    factors = mean_factors(calibration.variance)
    found = chosen.measure(counted, metrics, factors)
    value = np.stack([each.value for each in found])
    shift = np.stack([each.value for each in chosen.measure(counted, metrics, factors, are_higher=True)]) - value
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    place = np.searchsorted(scored, known.queries)
    units = {
        order: {
            name: Units(
                starts[name][scored][:, None], place, known.group, known.n_groups, value[:, o, :, r],
                {system: shift[:, o, :, r]},
                [
                    Answers(each.own[o, :, :, r], query.drawn.pool, float(each.largest[r]))
                    for each, query in zip(found, counted, strict=True)
                ],
            )
            for r, name in enumerate(metrics)
        }
        for o, order in enumerate(orders)
    }  # fmt: skip
    return Forecast(units, calibration, checked)


def moments_of(order: IntArray, points: int) -> NDArray[np.int16]:
    """(N,) index of the first of ``points`` moments at which each item is backfilled. order: (N,) positions."""
    done = np.floor(np.linspace(0, 1, points) * len(order) + 1e-9).astype(np.int64)
    out = np.empty(len(order), np.int16)
    out[order] = np.searchsorted(done, np.arange(len(order)), side="right")
    return out
