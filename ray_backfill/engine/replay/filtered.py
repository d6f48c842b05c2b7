"""A gallery of several parts, such as tenants: a query finds items of its own part only.

Each part is replayed by itself, but backfilled in the order of the whole gallery: at progress t, as many of its items
are backfilled as the order has among its first floor(t N).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.prepare import Served, backfilled_at
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray, RetrievalSystem

Replay = Callable[[Sequence[RetrievalSystem], Sequence[Served], GroundTruth], list[dict[str, Curve]]]


class Part(NamedTuple):
    """A part of the gallery with its queries. queries, items: rows in the whole; served: as in the whole."""

    queries: IntArray
    items: IntArray
    systems: list[RetrievalSystem]
    served: list[Served]
    truth: GroundTruth


def each_part(
    truth: GroundTruth, parts: Filter, systems: Sequence[RetrievalSystem], served: Sequence[Served], points: int
) -> Iterator[Part]:
    """The parts in which a query has a positive, as copies, one at a time."""
    for queries, items in parts.parts():
        own_truth = truth.part(queries, items)
        if len(own_truth.skipped) < len(queries):
            own_systems = [RetrievalSystem(system.query[queries], system.gallery[items]) for system in systems]
            own_served = [_of_part(each, items, points) for each in served]
            yield Part(queries, items, own_systems, own_served, own_truth)


def replay_parts(
    truth: GroundTruth,
    parts: Filter,
    systems: Sequence[RetrievalSystem],
    served: Sequence[Served],
    points: int,
    replay: Replay,
) -> list[dict[str, Curve]]:
    """Replay every part and unite the curves. replay: replays a gallery without a filter.

    Cost: the products of each part's queries and items, and a copy of one part at a time.

    Raises:
        InputError: No query has a positive.
    """
    found = [
        (part.queries, replay(part.systems, part.served, part.truth))
        for part in each_part(truth, parts, systems, served, points)
    ]
    if not found:
        raise InputError("no query has a positive in its part of the gallery, so there is nothing to measure")
    return [
        {order: _united(truth, [(queries, curves[index][order]) for queries, curves in found]) for order in each.orders}
        for index, each in enumerate(served)
    ]


def _of_part(served: Served, items: IntArray, points: int) -> Served:
    n_gallery = len(next(iter(served.orders.values())))
    place_N = np.full(n_gallery, -1)
    place_N[items] = np.arange(len(items))
    orders, backfilled = dict[str, IntArray](), dict[str, IntArray]()
    for name, order in served.orders.items():
        place = place_N[order]
        orders[name] = place[place >= 0]
        so_far = np.concatenate([[0], np.cumsum(place >= 0)])
        backfilled[name] = so_far[backfilled_at(n_gallery, points)]
    return replace(served, orders=orders, backfilled=backfilled)


def _united(truth: GroundTruth, parts: Sequence[tuple[IntArray, Curve]]) -> Curve:
    """The curve of all queries, in their order."""
    scored = np.concatenate([queries[curve.scored] for queries, curve in parts])
    by_query = np.argsort(scored)
    curves = [curve for _, curve in parts]
    per_query: Mapping[str, list[np.ndarray]] = {
        metric: [curve.per_query[metric] for curve in curves] for metric in curves[0].per_query
    }
    embedded = [curve.embedded for curve in curves if curve.embedded is not None]
    return replace(
        curves[0],
        per_query={metric: np.concatenate(values)[by_query] for metric, values in per_query.items()},
        top1_correct=np.concatenate([curve.top1_correct for curve in curves])[by_query],
        scored=scored[by_query],
        n_skipped=truth.n_queries - len(scored),
        weights=None if truth.weights is None else truth.weights[scored[by_query]],
        embedded=np.concatenate(embedded)[by_query] if embedded else None,
    )
