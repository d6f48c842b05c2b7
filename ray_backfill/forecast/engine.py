"""The forecast of one method's curves."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.progress import Task
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.systems import GroundTruth, IntArray, Switch
from ray_backfill.forecast.calibration import Calibration, Checked
from ray_backfill.forecast.chosen import ChosenQueries
from ray_backfill.forecast.estimate import Answers, Units
from ray_backfill.forecast.metrics import SumMetric
from ray_backfill.forecast.models import Known, KnownForms, fit_models
from ray_backfill.forecast.slices import Forms, LocalSlices, Plan, Slices

Floats = NDArray[np.float64]
# Structural error of systems with heads of their own, relative to that of plain ones: heads map stand-ins less well
# than real embeddings. docs/results/forecast.md: what intervals with it cover.
_OWN_HEADS = 2.0


@dataclass(frozen=True, eq=False)
class Forecast:
    """units: order -> metric -> curve. calibration, checked: of the model of other items."""

    units: Mapping[str, Mapping[str, Units]]
    calibration: Calibration
    checked: Sequence[Checked]


def forecast_pair(
    gallery: Forms | Slices, known: Known, forms: KnownForms, truth: GroundTruth, orders: Mapping[str, IntArray],
    switch: Switch, starts: Mapping[str, Floats], points: int,
    system: str, is_plain: bool, bar: Task | None = None,
) -> Forecast:  # fmt: skip
    """Forecast the curves of a method.

    gallery: distances to all items, or slices that have them. forms: to the known items. orders: name -> (N,) order.
    switch: see ``UpgradePair``. starts: metric -> (Q,) its exact values at t = 0; of queries without right answers they
    do not count. points: number of moments, evenly spaced. system: a name of the forward system; methods that share it
    share the structural error of its counts. is_plain: whether it is a plain {new, new}.
    Cost: 3 products of m queries with the gallery, 2 if the backward system is the old one, and O(m N) for each order.
    """
    threads = usable_cpus()
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        slices = LocalSlices(gallery, pool, threads) if isinstance(gallery, Forms) else gallery
        models = fit_models(known, forms, truth)
        moment_ON = np.stack([moments_of(order, points) for order in orders.values()])
        if switch == "at_end":
            moment_ON[:] = points - 1
        slices.begin(Plan(moment_ON, points, np.sort(known.position), models.others.cells))
        metrics = {name: SumMetric.of(name) for name in starts}
        measured = ChosenQueries(known, forms, truth, models, moment_ON, points, metrics).measure(slices, pool, bar)
    structure = 1.0 if is_plain else _OWN_HEADS
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    place = np.searchsorted(scored, known.queries)
    value = np.stack([each.found.value for each in measured])
    changes = np.stack([each.found.changes for each in measured])
    units = {
        order: {
            name: Units(
                starts[name][scored][:, None], place, known.group, known.n_groups, value[:, o, :, r],
                changes[:, 1:, o, :, r], {system: structure * changes[:, 0, o, :, r]},
                [Answers(each.found.own[o, :, :, r], each.pool) for each in measured],
            )
            for r, name in enumerate(metrics)
        }
        for o, order in enumerate(orders)
    }  # fmt: skip
    return Forecast(units, models.calibration, models.checked)


def moments_of(order: IntArray, points: int) -> NDArray[np.int16]:
    """(N,) index of the first of ``points`` moments at which each item is backfilled. order: (N,) positions."""
    done = np.floor(np.linspace(0, 1, points) * len(order) + 1e-9).astype(np.int64)
    out = np.empty(len(order), np.int16)
    out[order] = np.searchsorted(done, np.arange(len(order)), side="right")
    return out
