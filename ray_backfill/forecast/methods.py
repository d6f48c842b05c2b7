"""Forecasts the methods of a comparison, whose folder has stand-ins as new embeddings, in this process or in shards."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.progress import Task
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay import Curve, replay
from ray_backfill.engine.systems import IntArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.forecast.counts import CountingShards, Forms
from ray_backfill.forecast.engine import Forecast, forecast_pair
from ray_backfill.forecast.estimate import exact_units
from ray_backfill.forecast.known_items import NewEmbeddings
from ray_backfill.forecast.models import Calibration, KnownForms
from ray_backfill.learn.methods import POLICIES, Embeddings, Method, find_methods

# Metric -> (Q,) exact values at t = 0; NaN for queries without right answers.
Starts = Mapping[str, NDArray[np.float64]]


class Gallery(NamedTuple):
    """Where the items of a comparison are. of_method: distances to them. starts: method -> its metrics at t = 0."""

    of_method: Callable[[Method], Forms | CountingShards]
    starts: Callable[[Sequence[Method]], Mapping[str, Starts]]


def gallery_here(comparison: Comparison) -> Gallery:
    """The gallery in this process."""

    def of_method(method: Method) -> Forms:
        pair = comparison.pair(method)
        return forms_of(method, comparison.embeddings, pair, comparison.evaluation.distance)

    return Gallery(of_method, lambda methods: exact_starts(comparison, methods))


def can_be_forecast(method: Method) -> bool:
    """Whether the engine knows how this method serves: no cascade, no step at the end, and nothing that hides items."""
    return (method.name == NEW or not method.is_reference) and method.family != POLICIES


def forecast_method(
    comparison: Comparison, method: Method, given: NewEmbeddings, gallery: Gallery, starts: Starts,
    bar: Task | None = None,
) -> Forecast:  # fmt: skip
    """The forecast of a method; if every item is known, its exact curves. Of {new, new}, only the end has a meaning."""
    known, size = given.known, len(comparison.folder.gallery)
    orders = {"": np.arange(size)} if method.name == NEW else comparison.orders_of(method)
    if len(known.position) == size:
        return _exact(comparison, method, given, orders)
    forms, switch = _known_forms(comparison, method, given)
    return forecast_pair(
        gallery.of_method(method), known, forms, comparison.truth, orders, switch, starts,
        comparison.evaluation.points, method.forward or method.name, bool(method.forward), bar,
    )  # fmt: skip


def forms_of(method: Method, embeddings: Embeddings, pair: UpgradePair, distance: str) -> Forms:
    """Distances to the items of these embeddings. {new, new} is forecast as a method that replaces {old, old}."""
    old = RetrievalSystem(embeddings.query["old"], embeddings.gallery["old"])
    is_old = method.name == NEW or method.backward == OLD
    return Forms.of(pair.forward, old, None if is_old else pair.backward, distance)


def _known_forms(comparison: Comparison, method: Method, given: NewEmbeddings) -> tuple[KnownForms, Switch]:
    """Distances to the known items, and how the method switches."""
    query, distance = comparison.embeddings.query, comparison.evaluation.distance
    old = comparison.folder.gallery.old[given.known.position]
    maps = comparison.maps.of(method)
    stand_in = method.pair(Embeddings(query, {"old": old, "new": given.stand_in(old)}), maps)
    after = method.pair(Embeddings(query, {"old": old, "new": given.new}), maps)
    systems = (stand_in.forward, RetrievalSystem(query["old"], old), after.forward)
    return KnownForms(*(ProductForm.of(system, distance) for system in systems)), after.switch


def exact_starts(
    comparison: Comparison, methods: Sequence[Method], replay_alone: Callable[[Method], Curve] | None = None
) -> dict[str, Starts]:
    """Method -> its metrics at t = 0, which need no new embedding of the gallery.

    replay_alone: the curve of a method's backward system alone; by default it is replayed in this process.
    Cost: one pass over the gallery for each distinct backward system.
    """
    how, truth = comparison.evaluation, comparison.truth

    def replay_here(method: Method) -> Curve:
        backward = comparison.pair(method).backward
        order = np.arange(len(backward.gallery))
        return replay(UpgradePair(backward, backward), truth, order, 2, how.metrics, how.distance)

    curves: dict[str, Curve] = {}
    found: dict[str, Starts] = {}
    for method in methods:
        name = OLD if method.backward in (OLD, NEW) else method.name
        if name not in curves:
            curves[name] = (replay_alone or replay_here)(*find_methods((name,)))
        starts = {metric: np.full(truth.n_queries, np.nan) for metric in how.metrics}
        for metric, values in curves[name].per_query.items():
            starts[metric][curves[name].scored] = values[:, 0]
        found[method.name] = starts
    return found


def _exact(comparison: Comparison, method: Method, given: NewEmbeddings, orders: Mapping[str, IntArray]) -> Forecast:
    """The exact curves of a method, as a forecast without any error."""
    how, old, query = comparison.evaluation, comparison.folder.gallery.old, comparison.embeddings.query
    new = np.empty((len(old), given.new.shape[1]), given.new.dtype)
    new[given.known.position] = given.new
    pair = method.pair(Embeddings(query, {"old": old, "new": new}), comparison.maps.of(method))
    if method.name == NEW:
        pair = UpgradePair(RetrievalSystem(query["old"], old), pair.forward)
    curves = replay(pair, comparison.truth, orders, how.points, how.metrics, how.distance)
    units = {order: {m: exact_units(values) for m, values in each.per_query.items()} for order, each in curves.items()}
    return Forecast(units, Calibration(1.0, 0.0), [])
