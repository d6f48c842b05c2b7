"""The first items of single queries at every point of a backfill, and which system serves them.

A replay counts; it does not say which items stand first. This does, for the queries that are asked for: from candidates
(``nearest``), by exact keys, so that ties are broken by gallery position as in a replay.

Shapes: K queries, T points, k items of a list.
"""

from dataclasses import replace

import numpy as np

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.lists import RankedLists, best_first, merge_sides
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.engine import in_threads, shards_here
from ray_backfill.engine.replay.filtered import parts_of
from ray_backfill.engine.replay.nearest import nearest_lists
from ray_backfill.engine.replay.prepare import Prepared, Served, as_served, prepare_replay, split_queries
from ray_backfill.engine.replay.shard import Shards, candidates, candidates_of
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, UpgradePair


def find_first(
    systems: list[RetrievalSystem],
    served: Served,
    truth: GroundTruth,
    queries: IntArray,
    points: int,
    distance: str,
    k: int = 1,
    progress: bool = False,
    device: str = "cpu",
) -> dict[str, RankedLists]:
    """Find the first k items of some queries of one pair of systems, in all its orders.

    Cost: a float32 product of K x N x d for each of the two systems, whatever the number of points and orders. Memory:
    21 bytes per query, point, order and item.

    Args:
        systems, truth, points, distance, progress, device: See ``replay_pairs``.
        served: The pair, with a merge that compares distances or scores, not ranks.
        queries: (K,) rows of queries that have a positive.
        k: Number of items. Those that a query ignores are not listed.

    Returns:
        Order -> (K, T, k) lists, in the order of ``queries``.
    """
    if truth.filter is not None:
        lists = {order: RankedLists.nothing(len(queries), points, k) for order in served.orders}
        for part in parts_of(truth, systems, [served], points):
            at = np.flatnonzero(np.isin(queries, part.queries))
            if len(at):
                rows = np.searchsorted(part.queries, queries[at])
                of_orders = find_first(
                    part.systems, part.served[0], part.truth, rows, points, distance, k, device=device
                )
                for order, of_part in of_orders.items():
                    item = np.where(of_part.item >= 0, part.items[of_part.item], -1)
                    lists[order].put(at, of_part._replace(item=item))
        return lists
    prepared = prepare_first(served, truth, queries, points, k)
    with shards_here(systems, prepared, truth, distance, progress, None, device) as (shards, threads):
        return first_lists(prepared, truth, shards, threads)


def prepare_first(served: Served, truth: GroundTruth, queries: IntArray, points: int, k: int = 1) -> Prepared:
    """Prepare a search for the first items of these queries: candidates, even where a replay would count."""
    return replace(prepare_replay(truth, [served], points, "CMC@1"), nearest=k, scored=queries)


def first_lists(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> dict[str, RankedLists]:
    """Find the lists of each order of the one pair of ``prepared``; each thread asks for a block of queries."""
    (pair,), k = prepared.pairs, prepared.nearest
    assert k is not None
    lists = {order: RankedLists.nothing(len(prepared.scored), prepared.points, k) for order in pair.orders}

    def find_block(rows: IntArray) -> None:
        block = Block.of(truth, prepared.scored[rows])
        of_pair = candidates_of(pair, candidates(shards, block, k))
        segments_ON = prepared.segments_of[pair.rows]
        of_orders = nearest_lists(*of_pair, block, segments_ON, k, prepared.points, pair.merge)
        for order, of_block in zip(pair.orders, of_orders, strict=True):
            lists[order].put(rows, of_block)

    in_threads(find_block, split_queries(prepared, truth, threads), shards, threads)
    return lists


def lists_at(
    pair: UpgradePair, truth: GroundTruth, queries: IntArray, order: IntArray, backfilled: int, k: int, distance: str,
    merge: Merge = RAW, recalls: int = 0,
) -> RankedLists:  # fmt: skip
    """Find the (K, k) first items of some queries when the first ``backfilled`` items of an order are backfilled.

    recalls: number of candidates of a cascade; 0 for other pairs. The others: see ``find_first``, but any merge will
    do. Cost: two searches of the gallery. Memory: 63 bytes per query and item.
    """
    n = pair.n_gallery

    def first_of(pair: UpgradePair, order: IntArray, backfilled: int, k: int, merge: Merge = RAW) -> RankedLists:
        systems, served = as_served(pair, {"": order}, merge)
        served = replace(served, backfilled={"": np.array([backfilled, n])})
        # Of three points the second; what switches at the end does so at the third.
        return find_first(systems, served, truth, queries, 3, distance, k)[""].at((slice(None), 1 + (backfilled == n)))

    if merge.by_rank:
        sides = (pair.backward, order[::-1].copy(), n - backfilled), (pair.forward, order, backfilled)
        lists = (first_of(UpgradePair(one, one, "only_backfilled"), items, served, k) for one, items, served in sides)
        old, new = (of._replace(score=np.where(of.item < 0, np.inf, np.arange(k))) for of in lists)
        return merge_sides(old, new, merge, k)
    if not recalls or backfilled == n:
        return first_of(pair, order, backfilled, k, merge)
    # The candidates in the forward system's order; behind them, the backward system's ranking goes on.
    recalled = first_of(UpgradePair(pair.backward, pair.backward), order, 0, max(k, recalls))
    row, place = np.nonzero(recalled.item[:, :recalls] >= 0)
    exact = ProductForm.of(pair.forward, distance).exact(queries[row], recalled.item[row, place])
    first = best_first(row, exact, recalled.item[row, place], *recalled.item[:, :recalls].shape)
    recalled.put(np.s_[:, :recalls], first._replace(is_forward=first.item >= 0))
    return recalled.at(np.s_[:, :k])
