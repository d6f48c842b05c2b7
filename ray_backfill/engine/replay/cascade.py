"""Cascades: the backward system recalls its first K items, the forward system re-ranks them. At t = 1 it ranks all.

Nothing changes until then but the price: vectors of candidates that are not backfilled are computed for the query. So
the pair is ranked at two points, before and after its switch, and in one order. Right answers in the re-ranked list get
the ranks that they have there; any other keeps its own, as behind the candidates the backward system's ranking goes on.

Shapes: b queries of a block, Q of all, K candidates, T points.
"""

from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.lists import RankedLists, best_first, rank_lists
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.keys import distances_of
from ray_backfill.engine.replay.measure import Ranked, candidates, measure_pairs, rank
from ray_backfill.engine.replay.nearest import nearest_lists
from ray_backfill.engine.replay.prepare import Cascade, Pair, Prepared
from ray_backfill.engine.replay.shard import Shards
from ray_backfill.engine.systems import GroundTruth, IntArray


def measure_cascades(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> list[dict[str, Curve]]:
    """Compute the curves of each pair, all of which are cascades.

    Cost: that of pairs at two points, a search of both systems, and a product of d multiplications for each candidate.
    """
    deepest = max(each.recalls for each in prepared.cascades)
    embedded = [
        {order: np.empty((len(prepared.scored), each.points)) for order in each.segments} for each in prepared.cascades
    ]

    def rank_again(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Ranked:
        found, rows = candidates(shards, block, deepest), np.searchsorted(prepared.scored, block.queries)
        of_pairs = zip(prepared.pairs, prepared.cascades, rank(prepared, block, shards, with_places), strict=True)
        for index, (pair, cascade, (old,)) in enumerate(of_pairs):
            of_query, keys = found[pair.backward_scan]
            of_backward, segments_ON = np.zeros(len(keys), np.bool_), prepared.segments_of[pair.rows]
            (lists,) = nearest_lists(of_query, keys, of_backward, block, segments_ON, cascade.recalls, 1, RAW)
            item_bK = lists.item[:, 0]
            for order, segments in cascade.segments.items():
                embedded[index][order][rows] = _not_backfilled(item_bK, segments, cascade.points)
            new = replace(old, before=old.before.astype(np.int64), places=old.places.copy())
            rank_lists(_reranked(item_bK, pair, block, shards).item[:, None], truth, block.queries, new)
            yield iter([new])

    curves = [curve for (curve,) in map(dict.values, measure_pairs(prepared, truth, shards, threads, rank_again))]
    return [
        {order: _stretched(curve, cascade, counts) for order, counts in of_orders.items()}
        for curve, cascade, of_orders in zip(curves, prepared.cascades, embedded, strict=True)
    ]


def _reranked(item_bK: IntArray, pair: Pair, block: Block, shards: Shards) -> RankedLists:
    """The same items by exact distances of the forward system."""
    ascending = np.sort(item_bK, axis=1)
    there = ascending >= 0
    starts, nothing = np.concatenate([[0], np.cumsum(there.sum(axis=1))]), np.zeros(len(block) + 1, np.int64)
    asked = Block(block.queries, ascending[there], starts, nothing[:0], nothing)
    distance = distances_of(reduce(np.add, shards.positive_keys(asked))[pair.forward])
    return best_first(np.nonzero(there)[0], distance, asked.positives, *item_bK.shape)


def _not_backfilled(item_bK: IntArray, segments: NDArray[np.uint16], points: int) -> IntArray:
    """(b, T) number of items that are not backfilled: an item of segment s is, from point s + 1 on."""
    there, counts = item_bK >= 0, np.zeros((len(item_bK), points), np.int64)
    np.add.at(counts, (np.nonzero(there)[0], segments[item_bK[there]].astype(np.int64)), 1)
    return counts[:, ::-1].cumsum(axis=1)[:, ::-1]


def _stretched(curve: Curve, cascade: Cascade, embedded: NDArray[np.float64]) -> Curve:
    """The curve of T points from that of two."""
    times = [cascade.points - 1, 1]
    return replace(
        curve,
        t=np.linspace(0.0, 1.0, cascade.points),
        per_query={name: np.repeat(values, times, axis=1) for name, values in curve.per_query.items()},
        top1_correct=np.repeat(curve.top1_correct.astype(np.bool_, copy=False), times, axis=1),
        embedded=embedded,
    )
