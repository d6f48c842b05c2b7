"""A gallery of several parts, such as tenants: a query finds items of its own part only.

Each part is replayed by itself, but backfilled in the order of the whole gallery: at progress t, as many of its items
are backfilled as the order has among its first floor(t N).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.prepare import Served, backfilled_at
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem


class GalleryPart(NamedTuple):
    """A part of the gallery with its queries. queries, items: rows in the whole; served: as in the whole."""

    queries: IntArray
    items: IntArray
    systems: list[RetrievalSystem]
    served: list[Served]
    truth: GroundTruth


def parts_of(
    truth: GroundTruth, systems: Sequence[RetrievalSystem], served: Sequence[Served], points: int
) -> Iterator[GalleryPart]:
    """The parts in which a query has a positive, as copies, one at a time. truth: with a filter."""
    assert truth.filter is not None
    for queries, items in truth.filter.parts():
        of_part = truth.part(queries, items)
        if len(of_part.skipped) < len(queries):
            some = [RetrievalSystem(system.query[queries], system.gallery[items]) for system in systems]
            yield GalleryPart(queries, items, some, [_of_part(pair, items, points) for pair in served], of_part)


def _of_part(served: Served, items: IntArray, points: int) -> Served:
    n_gallery = len(next(iter(served.orders.values())))
    place_N = np.full(n_gallery, -1)
    place_N[items] = np.arange(len(items))
    orders, backfilled = dict[str, IntArray](), dict[str, IntArray]()
    for name, order in served.orders.items():
        place = place_N[order]
        orders[name] = place[place >= 0]
        so_far = np.concatenate([[0], np.cumsum(place >= 0)])
        backfilled[name] = so_far[served.backfilled.get(name, backfilled_at(n_gallery, points))]
    return replace(served, orders=orders, backfilled=backfilled)


def united(truth: GroundTruth, queries: Sequence[IntArray], curves: Sequence[Curve]) -> Curve:
    """The curve of all queries, in their order. queries: of each part."""
    scored = np.concatenate([rows[curve.scored] for rows, curve in zip(queries, curves, strict=True)])
    by_query = np.argsort(scored)
    embedded = [curve.embedded for curve in curves if curve.embedded is not None]
    return replace(
        curves[0],
        per_query={
            metric: np.concatenate([curve.per_query[metric] for curve in curves])[by_query]
            for metric in curves[0].per_query
        },
        top1_correct=np.concatenate([curve.top1_correct for curve in curves])[by_query],
        scored=scored[by_query],
        n_skipped=truth.n_queries - len(scored),
        weights=None if truth.weights is None else truth.weights[scored[by_query]],
        embedded=np.concatenate(embedded)[by_query] if embedded else None,
    )
