"""Cascades: the backward system recalls its first K items, the forward system re-ranks them. At t = 1 it ranks all.

Nothing changes until then but the price: vectors of candidates that are not backfilled are computed for the query. So
the pair is ranked at two points, before and after its switch, and in one order. Right answers in the re-ranked list get
the ranks that they have there; any other keeps its own, as behind the candidates the backward system's ranking goes on.

Shapes: b queries of a block, Q of all, K candidates, T points.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.lists import best_first, rank_lists
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.metrics import Rankings
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.keys import distances_of
from ray_backfill.engine.replay.nearest import nearest_lists
from ray_backfill.engine.replay.prepare import Prepared, ReplayedCascade
from ray_backfill.engine.replay.shard import Shards, candidates
from ray_backfill.engine.systems import GroundTruth, IntArray


def reranked(
    ranked: Iterator[Iterator[Rankings]], prepared: Prepared, truth: GroundTruth, block: Block, shards: Shards,
    rows: IntArray, embedded: Sequence[Mapping[str, NDArray[np.float64]]],
) -> Iterator[Iterator[Rankings]]:  # fmt: skip
    """Re-rank what the backward systems of cascades recall.

    Cost: a search of both systems, and a product of d multiplications for each candidate.

    Args:
        ranked: For each cascade, the ranking of its pair, whose first point is before the switch.
        prepared, truth: Of the replay.
        block: The queries.
        shards: Of the gallery.
        rows: Of the block's queries in ``embedded``.
        embedded: For each cascade, order -> (Q, T) number of items that are embedded for a query; is filled.
    """
    of_scans = candidates(shards, block, max(cascade.recalls for cascade in prepared.cascades))
    of_pairs = zip(prepared.pairs, prepared.cascades, embedded, ranked, strict=True)
    for pair, cascade, of_orders, (of_pair,) in of_pairs:
        # What the backward system recalls,
        of_query, keys = of_scans[pair.backward_scan]
        of_backward, segments_ON = np.zeros(len(keys), np.bool_), prepared.segments_of[pair.rows]
        (recalled,) = nearest_lists(of_query, keys, of_backward, block, segments_ON, cascade.recalls, 1, RAW)
        item_bK = recalled.item[:, 0]
        is_recalled = item_bK >= 0
        # which of it is not backfilled yet: an item of segment s is, from point s + 1 on,
        for order, segments in cascade.segments.items():
            until = np.zeros((len(block), cascade.points), np.int64)
            np.add.at(until, (np.nonzero(is_recalled)[0], segments[item_bK[is_recalled]].astype(np.int64)), 1)
            of_orders[order][rows] = until[:, ::-1].cumsum(axis=1)[:, ::-1]
        # and its order by exact distances of the forward system.
        ascending = np.sort(item_bK, axis=1)
        there = ascending >= 0
        starts, nothing = np.concatenate([[0], np.cumsum(there.sum(axis=1))]), np.zeros(len(block) + 1, np.int64)
        asked = Block(block.queries, ascending[there], starts, nothing[:0], nothing)
        distance = distances_of(reduce(np.add, shards.positive_keys(asked))[pair.forward])
        lists = best_first(np.nonzero(there)[0], distance, asked.positives, *item_bK.shape)
        rankings = of_pair._replace(before=of_pair.before.astype(np.int64), places=of_pair.places.copy())
        rank_lists(lists.item[:, None], truth, block.queries, rankings)
        yield iter([rankings])


def stretched(curve: Curve, cascade: ReplayedCascade, embedded: Mapping[str, NDArray[np.float64]]) -> dict[str, Curve]:
    """The curve of T points in each order, from that of two. embedded: order -> (Q, T)."""
    times = [cascade.points - 1, 1]
    whole = replace(
        curve,
        t=np.linspace(0.0, 1.0, cascade.points),
        per_query={name: np.repeat(values, times, axis=1) for name, values in curve.per_query.items()},
        top1_correct=np.repeat(curve.top1_correct.astype(np.bool_, copy=False), times, axis=1),
    )
    return {order: replace(whole, embedded=counts) for order, counts in embedded.items()}
