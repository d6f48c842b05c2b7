"""Forecasts the methods of a comparison, whose folder has stand-ins as new embeddings, in this process or in shards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.progress import Task
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.merges.csls import References
from ray_backfill.engine.replay import Curve, replay
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.forecast.counts import CountingShards, Forms
from ray_backfill.forecast.engine import Forecast, forecast_pair
from ray_backfill.forecast.estimate import exact_units, mean_of
from ray_backfill.forecast.known_items import NewEmbeddings
from ray_backfill.forecast.models import EXACT, KnownForms
from ray_backfill.learn.methods import Embeddings, Method, find_methods

# Metric -> (Q,) exact values at t = 0; NaN for queries without right answers.
Starts = Mapping[str, NDArray[np.float64]]
# What a sample shows of the first results.
FIRST_RESULTS = "nDCG@10"


class Merged(NamedTuple):
    """A method with its fitted merge."""

    method: Method
    merge: Merge

    @property
    def title(self) -> str:
        """As in the tables of a comparison by ``best``."""
        return self.method.title + f" + {self.merge.name}" * (self.merge.name != RAW.name)

    @property
    def references(self) -> tuple[References, References] | tuple[None, None]:
        """Of CSLS, for the backward and the forward system."""
        return self.merge.references or (None, None)

    @property
    def has_csls(self) -> bool:
        return self.merge.references is not None


class Gallery(NamedTuple):
    """Where the items of a comparison are. of_method: distances to them. starts: the metrics of each at t = 0."""

    of_method: Callable[[Merged], Forms | CountingShards]
    starts: Callable[[Sequence[Merged]], Sequence[Starts]]


def gallery_here(comparison: Comparison) -> Gallery:
    """The gallery in this process."""

    def of_method(merged: Merged) -> Forms:
        pair = comparison.pair(merged.method)
        return forms_of(merged, comparison.embeddings, pair, comparison.evaluation.distance)

    return Gallery(of_method, lambda several: exact_starts(comparison, several))


def can_be_forecast(method: Method) -> bool:
    """Whether the engine knows how this method serves: no cascade, no step at the end, and nothing that hides items."""
    return method.name == NEW or method.is_merged


def with_merges(comparison: Comparison) -> list[Merged]:
    """The methods that can be forecast, with their merges; {new, new} also with CSLS if a method has that."""
    methods = [method for method in comparison.methods if can_be_forecast(method)]
    merged = [Merged(method, merge) for method in methods for merge in comparison.merges_of(method).values()]
    if names := [each.merge.name for each in merged if each.has_csls]:
        old, new = (comparison.merges.of_reference(each)[names[0]].references for each in find_methods((OLD, NEW)))
        assert old is not None and new is not None, "they change what a system finds alone"  # noqa: PT018
        csls = Merge(names[0], references=(old[0], new[1]))
        merged += [Merged(method, csls) for method in methods if method.name == NEW]
    return merged


def forecast_method(
    comparison: Comparison, merged: Merged, given: NewEmbeddings, gallery: Gallery, starts: Starts,
    bar: Task | None = None,
) -> Forecast:  # fmt: skip
    """The forecast of a method; if every item is known, its exact curves. Of {new, new}, only the end has a meaning."""
    known, size, method = given.known, len(comparison.folder.gallery), merged.method
    orders = {"": np.arange(size)} if method.name == NEW else comparison.orders_of(method)
    if len(known.position) == size:
        return _exact(comparison, merged, given, orders)
    # Distances to the known items: to their stand-ins, by the old model, and by their new embeddings.
    query, distance, of_forward = comparison.embeddings.query, comparison.evaluation.distance, merged.references[1]
    old = comparison.folder.gallery.old[known.position]
    stand_in, after = (
        method.pair(Embeddings(query, {"old": old, "new": new}), comparison.maps.of(method))
        for new in (given.stand_in(old), given.new)
    )
    forms = KnownForms(
        form_of(stand_in.forward, of_forward, distance),
        ProductForm.of(RetrievalSystem(query["old"], old), distance),
        form_of(after.forward, of_forward, distance),
    )
    system = (method.forward.plain or method.name) + " with CSLS" * merged.has_csls
    return forecast_pair(
        gallery.of_method(merged), known, forms, comparison.truth, orders, after.switch, starts,
        comparison.evaluation.points, system, bool(method.forward.plain), bar, merged.merge,
    )  # fmt: skip


def forms_of(merged: Merged, embeddings: Embeddings, pair: UpgradePair, distance: str) -> Forms:
    """Distances to the items of these embeddings. {new, new} is forecast as a method that replaces {old, old}."""
    old = RetrievalSystem(embeddings.query["old"], embeddings.gallery["old"])
    is_old, (of_backward, of_forward) = merged.method.backward.plain in (OLD, NEW), merged.references
    of_old = before = ProductForm.of(old, distance)
    if not is_old or of_backward is not None:
        before = form_of(old if is_old else pair.backward, of_backward, distance)
    return Forms(form_of(pair.forward, of_forward, distance), of_old, before)


def form_of(system: RetrievalSystem, references: References | None, distance: str) -> ProductForm:
    """Distances by a system. With CSLS, 1 - CSLS / 2, because the models need positive distances."""
    if references is None:
        return ProductForm.of(system, distance)
    changed = references.replace(system, distance)
    changed.gallery[:, -2] -= 1  # vectors of our own; the queries have 1 there
    return ProductForm.of(changed, "inner_product")


def exact_starts(
    comparison: Comparison, several: Sequence[Merged], replay_alone: Callable[[Merged], Curve] | None = None
) -> list[Starts]:
    """The metrics of each at t = 0, which need no new embedding of the gallery.

    replay_alone: the curve of a backward system alone; by default it is replayed in this process.
    Cost: one pass over the gallery for each distinct backward system.
    """
    how, truth = comparison.evaluation, comparison.truth

    def replay_here(merged: Merged) -> Curve:
        backward = comparison.pair(merged.method).backward
        order = np.arange(len(backward.gallery))
        pair = UpgradePair(backward, backward)
        return replay(pair, truth, order, 2, how.metrics, how.distance, merge=merged.merge)

    curves: dict[tuple[str, bool], Curve] = {}
    starts_of: list[Starts] = []
    for method, merge in several:
        name = OLD if method.backward.plain in (OLD, NEW) else method.name
        (serves,) = find_methods((name,))
        # Other merges keep each system's ranking.
        alone = Merged(serves, replace(merge, references=merge.references[:1] * 2) if merge.references else RAW)
        key = name, alone.has_csls
        if key not in curves:
            curves[key] = (replay_alone or replay_here)(alone)
        starts = {metric: np.full(truth.n_queries, np.nan) for metric in how.metrics}
        for metric, values in curves[key].per_query.items():
            starts[metric][curves[key].scored] = values[:, 0]
        starts_of.append(starts)
    return starts_of


def first_results(comparison: Comparison, given: NewEmbeddings) -> dict[str, Any] | None:
    """What the first results say, which no forecast does: nDCG@10 of the chosen queries among the items that were drawn
    at random, by the old and the new model, and 95 % limits of the difference; None if no right answer is among them.

    In so few items it is higher than in the gallery; both models have the same ones. Cost: O(n) for each chosen query.
    """
    known, truth, query = given.known, comparison.truth, comparison.embeddings.query
    rows = np.flatnonzero(known.at_random)
    place_N = np.full(truth.n_gallery, -1)
    place_N[known.position[rows]] = np.arange(len(rows))
    positives, ignored = (
        [places[places >= 0] for places in (place_N[of(number)] for number in known.queries.tolist())]
        for of in (truth.positives_of, truth.ignored_of)
    )
    old, new = comparison.folder.gallery.old[known.position[rows]], given.new[rows]
    backward, forward = (
        RetrievalSystem(query[model][known.queries], items) for model, items in (("old", old), ("new", new))
    )
    small = GroundTruth.from_positives(positives, ignored, n_gallery=len(rows))
    if (parts := truth.filter) is not None:
        small = small.with_filter(Filter(parts.of_query[known.queries], parts.of_item[known.position[rows]]))
    if not len(small.positives):
        return None
    order, distance = np.arange(len(rows)), comparison.evaluation.distance
    curve = replay(UpgradePair(backward, forward), small, order, 2, (FIRST_RESULTS,), distance)
    of_old, of_new = curve.per_query[FIRST_RESULTS].T
    more = mean_of(of_new - of_old, known.group[curve.scored])
    means = {"old": float(of_old.mean()), "new": float(of_new.mean()), "more": list(more)}
    return {"metric": FIRST_RESULTS, "items": len(rows), "queries": len(of_old)} | means


def _exact(comparison: Comparison, merged: Merged, given: NewEmbeddings, orders: Mapping[str, IntArray]) -> Forecast:
    """The exact curves of a method, as a forecast without any error."""
    how, old, query = comparison.evaluation, comparison.folder.gallery.old, comparison.embeddings.query
    new = np.empty((len(old), given.new.shape[1]), given.new.dtype)
    new[given.known.position] = given.new
    pair = merged.method.pair(Embeddings(query, {"old": old, "new": new}), comparison.maps.of(merged.method))
    if merged.method.name == NEW:
        pair = UpgradePair(RetrievalSystem(query["old"], old), pair.forward)
    curves = replay(pair, comparison.truth, orders, how.points, how.metrics, how.distance, merge=merged.merge)
    units = {order: {m: exact_units(values) for m, values in each.per_query.items()} for order, each in curves.items()}
    return Forecast(units, EXACT, [])
