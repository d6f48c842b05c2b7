"""How many items are within a cut-off: all that a service shows which has a limit on distances instead of a top k.

One pass over a system counts its items by segment and cut-off, exactly, for any number of cut-offs, orders and moments:
cut-offs take the place of the thresholds of ``counting``, the same for every query.

Shapes: Q scored queries, N gallery items, K cut-offs, R orders, S segments, T = S + 1 points, b queries of a block.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay.block import Block, Union, exact_keys, first_item
from ray_backfill.engine.replay.counting import Counter, parts_of_products
from ray_backfill.engine.replay.engine import usable_cpus
from ray_backfill.engine.replay.filtered import parts_of
from ray_backfill.engine.replay.keys import distances_of, sort_keys
from ray_backfill.engine.replay.shard import COUNTED_ITEMS
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem

# Queries per pass over the gallery, and memory for their counts.
_BLOCK_QUERIES, _BLOCK_BYTES = 256, 64 << 20
# After every gallery position, so that an item at the distance of a cut-off is before it.
_LAST = 0xFFFFFFFF


@dataclass(frozen=True)
class Within:
    """Pairs of a scored query and an item that is not ignored, within cut-offs of one system.

    cutoffs: (K,) float32 distances, ascending; a pair at exactly this distance is within. backfilled: (2, R, T, K)
    float64, sums of the queries' weights over the pairs whose item is backfilled at each point; first axis: all items,
    then right answers only. waiting: the same of the items that are not backfilled yet. Weights are those of
    ``relative_weights``, 1 if they are equal.
    """

    cutoffs: NDArray[np.float32]
    backfilled: NDArray[np.float64]
    waiting: NDArray[np.float64]


def count_within(
    system: RetrievalSystem,
    truth: GroundTruth,
    cutoffs: NDArray[np.float32],
    segments_RN: NDArray[np.uint16],
    points: int,
    distance: str,
    report: Callable[[int], object] = lambda comparisons: None,
) -> Within:
    """Count the pairs within each cut-off.

    Cost: a float32 product of Q x N x d, in one thread for each CPU, and about 100 MB for each thread.

    Args:
        system: The system that is searched.
        truth: Right answers, ignored items and weights.
        cutoffs: (K,) finite float32 distances.
        segments_RN: The segment of each item in each order, see ``segment_of_item``.
        points: Number of points, T.
        distance: "cosine", "l2" or "inner_product".
        report: Called with the number of comparisons of a query and an item after each tile.
    """
    cutoffs = np.unique(cutoffs)
    total = np.zeros((2, 2, len(segments_RN), points, len(cutoffs)))
    if truth.filter is not None:  # a query finds items of its part only: sums over the parts
        largest = 1.0 if truth.weights is None else np.delete(truth.weights, truth.skipped).max()
        for part in parts_of(truth, [system], [], points):
            segments_Rn = segments_RN[:, part.items]
            within = count_within(part.systems[0], part.truth, cutoffs, segments_Rn, points, distance, report)
            # Weights are relative to the largest of those that are counted together.
            weights = part.truth.weights
            unit = 1.0 if weights is None else np.delete(weights, part.truth.skipped).max() / largest
            total += unit * np.stack([within.backfilled, within.waiting])
        return Within(cutoffs, total[0], total[1])
    form, scored = ProductForm.of(system, distance), np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    weights = None if truth.weights is None else relative_weights(truth.weights[scored])
    weights_Q = np.ones(truth.n_queries)
    weights_Q[scored] = 1.0 if weights is None else weights

    def count(queries: IntArray) -> NDArray[np.float64]:
        block = Block.of(truth, queries)
        return _weigh(*_count_block(form, block, cutoffs, segments_RN, points - 1, report), weights_Q[queries])

    # Queries that share positives share the products with them. The blocks do not depend on the number of threads.
    scored = scored[np.argsort(first_item(truth, scored), kind="stable")]
    of_query = 4 * 8 * len(segments_RN) * points * (len(cutoffs) + 1)
    size = max(1, min(_BLOCK_QUERIES, _BLOCK_BYTES // of_query))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(usable_cpus()) as pool:
        for of_block in pool.map(count, [scored[i : i + size] for i in range(0, len(scored), size)]):
            total += of_block
    return Within(cutoffs, total[0], total[1])


def _count_block(
    form: ProductForm, block: Block, cutoffs: NDArray[np.float32], segments_RN: NDArray[np.uint16], n_segments: int,
    report: Callable[[int], object],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Return (R, b, S, K + 1) numbers of items that are no right answers, and of right answers, by segment and place.

    The place is the first cut-off that an item is within, or K.
    """
    n_items, shape = segments_RN.shape[1], (len(segments_RN), len(block), n_segments, len(cutoffs) + 1)
    keys = np.tile(sort_keys(cutoffs, np.full(len(cutoffs), _LAST)), len(block))
    union = Union(keys, np.arange(len(block) + 1) * len(cutoffs), [])
    counter = Counter(form, block, union, segments_RN, n_segments, 0, parts_of_products(form, block, union, 0))
    counter.start(0, len(block))
    for first in range(0, n_items, COUNTED_ITEMS):
        last = min(first + COUNTED_ITEMS, n_items)
        counter.add(first, last)
        report(len(block) * (last - first))
    place = np.searchsorted(cutoffs, distances_of(exact_keys(form, block, 0, n_items)))
    right = np.empty(shape, np.int64)
    for of_order, segments in zip(right, segments_RN, strict=True):
        at = (block.query_of_positive * n_segments + segments[block.positives]) * (len(cutoffs) + 1) + place
        of_order[:] = np.bincount(at, minlength=of_order.size).reshape(of_order.shape)
    return counter.finish().reshape(shape).astype(np.int64), right


def _weigh(others: NDArray[np.int64], right: NDArray[np.int64], weights_b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (2, 2, R, T, K): backfilled and waiting, of all items and of right answers.

    Each sum adds the queries in the same order, so that equal numbers of each query give equal sums.
    """
    n_orders, _, n_segments, n_places = right.shape
    out = np.empty((2, 2, n_orders, n_segments + 1, n_places - 1))
    for kind, counts in enumerate((others + right, right)):
        for r, of_order in enumerate(counts):
            within_bSK = np.cumsum(of_order[:, :, :-1], axis=2)
            backfilled_bTK = np.zeros((len(within_bSK), n_segments + 1, n_places - 1), np.int64)
            np.cumsum(within_bSK, axis=1, out=backfilled_bTK[:, 1:])
            waiting_bTK = backfilled_bTK[:, -1:] - backfilled_bTK
            for side, counts_bTK in enumerate((backfilled_bTK, waiting_bTK)):
                out[side, kind, r] = (weights_b[:, None, None] * counts_bTK).sum(axis=0)
    return out
