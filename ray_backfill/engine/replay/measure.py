"""Ranks and measures pairs of systems, one block of queries at a time.

Shapes: b queries of a block, O orders, T points.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.engine.metrics import Rankings, RightAnswers, measure, metric_codes
from ray_backfill.engine.replay.block import Block, make_thresholds
from ray_backfill.engine.replay.counting import counted_rankings
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.fused import fused_rankings
from ray_backfill.engine.replay.keys import KeyArray
from ray_backfill.engine.replay.nearest import nearest_rankings
from ray_backfill.engine.replay.prepare import Pair, Prepared, split_queries
from ray_backfill.engine.replay.shard import Found, Shards
from ray_backfill.engine.systems import GroundTruth, IntArray

# For each pair, the rankings of each order.
Ranked = Iterator[Iterator[Rankings]]
# Ranks the right answers of a block of queries; the last argument: whether to say which ones they are.
Rank = Callable[[Prepared, Block, Shards, bool], Ranked]


def rank(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Ranked:
    """The rankings of each pair, which are as deep as the metrics need."""
    of_depth = _rank_all if prepared.nearest is None else _rank_nearest
    return of_depth(prepared, block, shards, with_places)


def _rank_all(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Ranked:
    """Whole rankings, by counting."""
    keys = reduce(np.add, shards.positive_keys(block))
    segments_of = prepared.segments_of
    thresholds = [
        make_thresholds(block, keys[[pair.forward, pair.backward]], segments_of[pair.rows], pair.merge)
        for pair in prepared.pairs
    ]
    for index, of_shards in enumerate(zip(*shards.count(block, thresholds), strict=True)):
        pair, others, own = prepared.pairs[index], reduce(np.add, of_shards), thresholds[index]
        if pair.merge.by_rank and not pair.hides_backward:
            yield fused_rankings(others, block, own, segments_of[pair.rows], prepared.points, with_places)
        else:
            yield counted_rankings(others, block, own, prepared.points, with_places, pair.hides_backward)


def _rank_nearest(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Ranked:
    """The first ranks, from candidates."""
    assert prepared.nearest is not None
    found = candidates(shards, block, prepared.nearest)
    for pair in prepared.pairs:
        yield nearest_rankings(
            *candidates_of(pair, found), block, prepared.segments_of[pair.rows], prepared.nearest, prepared.points,
            pair.merge, with_places,
        )  # fmt: skip


def candidates_of(pair: Pair, found: Sequence[Found]) -> tuple[IntArray, KeyArray, NDArray[np.bool_]]:
    """Return (query, key, whether it is forward's) of all candidates of a pair. found: of each scan."""
    forward = found[pair.forward_scan]
    both = [forward] if pair.hides_backward else [forward, found[pair.backward_scan]]
    of_query, keys = (np.concatenate(part) for part in zip(*both, strict=True))
    return of_query, keys, np.arange(len(keys)) < len(forward[1])


def candidates(shards: Shards, block: Block, k: int) -> list[Found]:
    """Return for each scan all items of the gallery that can be among the first k at any point, possibly more."""
    return [
        (np.concatenate([rows for rows, _ in of_shards]), np.concatenate([keys for _, keys in of_shards]))
        for of_shards in zip(*shards.nearest(block, k), strict=True)
    ]


def measure_pairs(
    prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int, rank: Rank = rank
) -> list[dict[str, Curve]]:
    """Compute the curves of each pair; each thread asks the shards about one block of queries at a time."""
    codes = metric_codes(prepared.metrics)
    shapes = [(len(pair.orders), len(prepared.scored), prepared.points) for pair in prepared.pairs]
    measured = [(np.empty((*shape, len(codes.cuts))), np.empty(shape, np.bool_)) for shape in shapes]

    def measure_block(rows: IntArray) -> None:
        queries = prepared.scored[rows]
        right = RightAnswers.of(truth, queries, with_grades=any(metric.uses_grades for metric in prepared.metrics))
        block = Block.of(truth, queries)
        of_pairs = rank(prepared, block, shards, len(right.grades) > 0)
        for of_orders, (values, top1) in zip(of_pairs, measured, strict=True):
            for o, rankings in enumerate(of_orders):
                own_values, own_top1 = values[o, rows], top1[o, rows]
                measure(rankings, right, codes, own_values, own_top1)
                values[o, rows], top1[o, rows] = own_values, own_top1

    in_threads(measure_block, split_queries(prepared, truth, threads), shards, threads)
    weights = None if truth.weights is None else truth.weights[prepared.scored]
    t, names = np.linspace(0.0, 1.0, prepared.points), [metric.name for metric in prepared.metrics]
    curves = []
    for pair, (values, top1) in zip(prepared.pairs, measured, strict=True):
        per_query = [{name: values[o, :, :, m] for m, name in enumerate(names)} for o in range(len(pair.orders))]
        same = prepared.scored, prepared.n_skipped, pair.switch == "at_end", weights
        curves.append({order: Curve(t, per_query[o], top1[o], *same) for o, order in enumerate(pair.orders)})
    return curves


def in_threads(work: Callable[[IntArray], None], blocks: Sequence[IntArray], shards: Shards, threads: int) -> None:
    """Work on one block per thread, each with its own matrix products: BLAS threads would only wait for each other."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(work, rows) for rows in blocks]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            shards.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
