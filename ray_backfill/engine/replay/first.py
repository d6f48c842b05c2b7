"""The first item of single queries at every point of a backfill, and which system serves it.

A replay counts; it does not say which item stands first. This does, for the queries that are asked for: the candidates
for the first place (``nearest`` with k = 1), by exact keys, so that ties are broken by gallery position as in a replay.

Shapes: b queries of a block, K queries, T points.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.engine.merges import Merge
from ray_backfill.engine.replay.block import Block, merged_keys
from ray_backfill.engine.replay.engine import candidates, comparisons_bar, default_threads, full_float32, split_gallery
from ray_backfill.engine.replay.filtered import each_part
from ray_backfill.engine.replay.keys import KeyArray, positions_of
from ray_backfill.engine.replay.prepare import Prepared, Served, count_parts, prepare_replay, split_queries
from ray_backfill.engine.replay.shard import Found, LocalShards, Shards, make_forms
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray, RetrievalSystem

# Above every key of an item.
_NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)
# In ``FirstItems.item``: nothing can be found. A gallery has fewer items than this.
NOTHING = 0xFFFFFFFF


@dataclass(frozen=True)
class FirstItems:
    """What stands first for K queries at T points of one order.

    item: (K, T) uint32 gallery position; ``NOTHING`` where no item can be found. is_forward: (K, T) whether the forward
    system serves it. is_right: (K, T) whether it is a positive.
    """

    item: NDArray[np.uint32]
    is_forward: NDArray[np.bool_]
    is_right: NDArray[np.bool_]


def find_first(
    systems: list[RetrievalSystem],
    served: Served,
    truth: GroundTruth,
    queries: IntArray,
    points: int,
    distance: str,
    progress: bool = False,
    device: str = "cpu",
) -> dict[str, FirstItems]:
    """Find the first items of some queries of one pair of systems, in all its orders.

    Cost: a float32 product of K x N x d for each of the two systems, whatever the number of points and orders. Memory:
    6 bytes per query, point and order.

    Args:
        systems, truth, points, distance, progress, device: See ``replay_pairs``.
        served: The pair, with a merge that compares distances or scores, not ranks.
        queries: (K,) rows of queries that have a positive.

    Returns:
        Order -> first items, in the order of ``queries``.
    """
    if truth.filter is not None:
        return _first_of_parts(systems, served, truth, truth.filter, queries, points, distance, device)
    prepared = prepare_first(served, truth, queries, points)
    torch_device = None if device == "cpu" else device
    threads = default_threads(torch_device)
    parts = 1 if torch_device else count_parts(prepared, len(split_queries(prepared, truth, threads)), threads)
    with (
        comparisons_bar(prepared, progress) as bar,
        full_float32(torch_device),
        ThreadPoolExecutor(threads) as pool,
    ):
        shards = split_gallery(make_forms(systems, prepared, distance), parts, prepared, bar.advance, torch_device)
        return first_items(prepared, truth, LocalShards(shards, pool), threads)


def _first_of_parts(
    systems: list[RetrievalSystem], served: Served, truth: GroundTruth, parts: Filter, queries: IntArray, points: int,
    distance: str, device: str,
) -> dict[str, FirstItems]:  # fmt: skip
    """The same where a query finds items of its part only."""
    found = {order: _empty(len(queries), points) for order in served.orders}
    for part in each_part(truth, parts, systems, [served], points):
        at = np.flatnonzero(np.isin(queries, part.queries))
        own = np.searchsorted(part.queries, queries[at])
        if not len(own):
            continue
        of_part = find_first(part.systems, part.served[0], part.truth, own, points, distance, device=device)
        for order, first in of_part.items():
            there = first.item != NOTHING
            found[order].item[at] = np.where(there, part.items[np.where(there, first.item, 0)], NOTHING)
            found[order].is_forward[at], found[order].is_right[at] = first.is_forward, first.is_right
    return found


def _empty(queries: int, points: int) -> FirstItems:
    shape = queries, points
    return FirstItems(np.empty(shape, np.uint32), np.empty(shape, np.bool_), np.empty(shape, np.bool_))


def prepare_first(served: Served, truth: GroundTruth, queries: IntArray, points: int) -> Prepared:
    """Prepare a search for the first items of these queries: candidates, even where a replay would count."""
    return replace(prepare_replay(truth, [served], points, "CMC@1"), nearest=1, scored=queries)


def first_items(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> dict[str, FirstItems]:
    """Find the first items in each order of the one pair of ``prepared``; each thread asks for a block of queries."""
    (pair,) = prepared.pairs
    found = {order: _empty(len(prepared.scored), prepared.points) for order in pair.orders}

    def find_block(rows: IntArray) -> None:
        block = Block.of(truth, prepared.scored[rows])
        of_scans = candidates(shards, block, 1)
        forward = _allowed(of_scans[pair.forward_scan], block)
        backward = None if pair.hides_backward else _allowed(of_scans[pair.backward_scan], block)
        both = _merged(forward, backward, pair.merge)
        for order, segments_N in zip(pair.orders, prepared.segments_of[pair.rows], strict=True):
            keys, is_forward = _first_keys(*both, segments_N, len(block), prepared.points)
            own = found[order]
            own.item[rows] = np.where(keys == _NO_KEY, NOTHING, positions_of(keys))
            own.is_forward[rows] = is_forward
            own.is_right[rows] = _listed(own.item[rows], block.positives, block.positive_starts)

    _in_threads(find_block, split_queries(prepared, truth, threads), shards, threads)
    return found


def _in_threads(work: Callable[[IntArray], None], blocks: list[IntArray], shards: Shards, threads: int) -> None:
    """One thread per block, each with its own matrix products."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        try:
            for _ in pool.map(work, blocks):
                pass
        except BaseException:
            shards.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _allowed(found: Found, block: Block) -> Found:
    """Candidates without ignored items."""
    of_query, keys = found
    if not len(block.ignored):
        return found
    pairs = _numbers(of_query, positions_of(keys))
    stays = ~np.isin(pairs, _numbers(block.query_of_ignored, block.ignored))
    return of_query[stays], keys[stays]


def _merged(forward: Found, backward: Found | None, merge: Merge) -> tuple[Found, Found | None]:
    """Candidates with keys that sort in the order of the merge."""
    if backward is None or not merge.is_mapped:
        return forward, backward
    n = len(forward[1])
    keys = np.concatenate([forward[1], backward[1]])
    places = merged_keys(keys, np.arange(len(keys)) < n, merge)
    return (forward[0], places[:n]), (backward[0], places[n:])


def _first_keys(
    forward: Found, backward: Found | None, segments_N: NDArray[np.uint16], b: int, points: int
) -> tuple[KeyArray, NDArray[np.bool_]]:
    """(b, T) smallest key of any item that is served, and whether the forward system serves it.

    The forward system serves the segments before a point, the backward system the others.
    """
    first_f, first_b = np.full((2, b, points), _NO_KEY)
    of_query, keys = forward
    np.minimum.at(first_f, (of_query, segments_N[positions_of(keys)].astype(np.int64) + 1), keys)
    first_f = np.minimum.accumulate(first_f, axis=1)
    if backward is not None:
        of_query, keys = backward
        np.minimum.at(first_b, (of_query, segments_N[positions_of(keys)].astype(np.int64)), keys)
        first_b = np.minimum.accumulate(first_b[:, ::-1], axis=1)[:, ::-1]
    return np.minimum(first_f, first_b), first_f < first_b


def _listed(items_bT: NDArray[np.uint32], flat: IntArray, starts: IntArray) -> NDArray[np.bool_]:
    """Whether each item is in the list of its query (CSR)."""
    of_query = np.repeat(np.arange(len(items_bT)), np.diff(starts))
    asked = _numbers(np.arange(len(items_bT))[:, None], items_bT.astype(np.int64))
    return np.isin(asked, _numbers(of_query, flat))


def _numbers(of_query: IntArray, items: IntArray) -> IntArray:
    """One number for each pair of a query of a block and an item (below 2^32)."""
    return (of_query << 32) | items
