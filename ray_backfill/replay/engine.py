"""Replays a backfill exactly, in one pass over each system, however many points and orders.

Put the gallery in backfill order and cut it into T - 1 slices. A positive's rank at point i is 1 + the number of
closer items: in slices < i by the forward system, in the others by the backward system. So per query the positives'
distances in both systems are thresholds, and per slice and system it is counted how many other items fall under each.
No ranking is ever sorted. Counts of slices add up, for every point, to exactly what a full sort of
where(backfilled, d_forward, d_backward) gives; ties go by distance, then gallery position.

Shapes: Q queries, N gallery items, P positives of a query, T points, S = T - 1 slices, K = 2 P thresholds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill.distances import check_system, distance_tile
from ray_backfill.errors import InputError
from ray_backfill.metrics import Metric, metric_values, parse_metric
from ray_backfill.orders import check_order
from ray_backfill.replay.curve import Curve
from ray_backfill.systems import GroundTruth, IntArray, RetrievalSystem, UpgradePair

# Queries and gallery items whose distances are held at a time: 2 systems x 128 x 16,384 of 20 bytes, about 80 MB.
_BLOCK_QUERIES = 128
_TILE_ITEMS = 16_384


@overload
def replay(
    pair: UpgradePair,
    truth: GroundTruth,
    order: IntArray,
    points: int = ...,
    metrics: Sequence[str] = ...,
    distance: str = ...,
    progress: bool = ...,
) -> Curve: ...
@overload
def replay(
    pair: UpgradePair,
    truth: GroundTruth,
    order: Mapping[str, IntArray],
    points: int = ...,
    metrics: Sequence[str] = ...,
    distance: str = ...,
    progress: bool = ...,
) -> dict[str, Curve]: ...
def replay(
    pair: UpgradePair,
    truth: GroundTruth,
    order: IntArray | Mapping[str, IntArray],
    points: int = 11,
    metrics: Sequence[str] = ("mAP", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
) -> Curve | dict[str, Curve]:
    """The exact curve M_t of a backfill at t = 0, 1/(points-1), ..., 1.

    Source: rank merge, eq. 5. At progress t the first floor(t * N) items of the order are served by the forward system.
    order: (N,) permutation, or a dict of them, which share one pass and give a dict of curves.
    metrics: see ``parse_metric``. distance: see ``distances.DISTANCES``. progress: show a bar if it takes long.

    Raises:
        InputError: sizes that do not match, no scored query, an order that is no permutation, unknown names, a zero
            vector under cosine.
    Cost: O(Q N d) for the distances, O(Q N log P) to place them, O(Q N) more for each order; independent of points.
    Memory beside the inputs: about 100 MB, O(points * positives) for each query of a block, and the result.
    """
    parsed = [parse_metric(name) for name in metrics]
    orders = dict(order) if isinstance(order, Mapping) else {"": order}
    _check(pair, truth, orders, points, distance)
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    slices = {name: _slice_of_item(pair, permutation, points) for name, permutation in orders.items()}
    per_query = {name: {x.name: np.empty((len(scored), points)) for x in parsed} for name in orders}
    top1 = {name: np.empty((len(scored), points), bool) for name in orders}

    with tqdm(total=len(scored), desc="replay", unit=" queries", disable=not progress, delay=2, leave=False) as bar:
        for start in range(0, len(scored), _BLOCK_QUERIES):
            queries = scored[start : start + _BLOCK_QUERIES]
            block = [_Query(truth.positives_of(q), truth.ignored_of(q)) for q in queries]
            for i, ranks in enumerate(_ranks_of_block(pair, queries, block, slices, points, distance)):
                for name, ranks_PT in ranks.items():
                    _record(parsed, ranks_PT, per_query[name], top1[name], start + i)
            bar.update(len(queries))

    t = np.linspace(0.0, 1.0, points)
    curves = {name: Curve(t, per_query[name], top1[name], scored, len(truth.skipped)) for name in orders}
    return curves if isinstance(order, Mapping) else curves[""]


def sort_keys(dist_QN: NDArray[np.float32], positions_N: IntArray) -> NDArray[np.uint64]:
    """Distances as (Q, N) uint64 that order by distance first and gallery position second.

    The upper half is the float32 with its bits arranged so that they order as unsigned integers; the lower half is the
    position. Comparing two keys is the tie rule.
    """
    bits = (dist_QN + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (ordered.astype(np.uint64) << np.uint64(32)) | positions_N.astype(np.uint64)


def _slice_of_item(pair: UpgradePair, order: IntArray, points: int) -> IntArray:
    """(N,) the slice s of each item: the forward system serves it at the points i > s."""
    n_gallery, n_slices = len(order), points - 1
    if pair.switch == "at_end":
        return np.full(n_gallery, n_slices - 1)
    backfilled = np.arange(1, points) * n_gallery // n_slices  # items done at points 1..S, in exact arithmetic
    slice_of_item = np.empty(n_gallery, np.int64)
    slice_of_item[order] = np.searchsorted(backfilled, np.arange(n_gallery), side="right")
    return slice_of_item


@dataclass(frozen=True)
class _Query:
    """One query's gallery positions that are right and that do not count, both ascending."""

    positives: IntArray
    ignored: IntArray


@dataclass(frozen=True)
class _Thresholds:
    """One query's K = 2P keys of its positives, forward ones first: ascending, and the place of each among them."""

    ascending: NDArray[np.uint64]
    place: IntArray


def _ranks_of_block(
    pair: UpgradePair,
    queries: IntArray,
    block: Sequence[_Query],
    slices: Mapping[str, IntArray],
    points: int,
    distance: str,
) -> Iterator[dict[str, IntArray]]:
    """For each query of the block, its (P, T) ranks for each order. Goes over the gallery tile by tile."""
    systems = (pair.forward, pair.backward)
    thresholds = _thresholds(systems, queries, block, distance)
    # histogram[order][system][query]: (S * (K + 1)) counts of items by slice and first threshold above them.
    histogram = {
        name: [[np.zeros((points - 1) * (len(t.ascending) + 1), np.int64) for t in thresholds] for _ in systems]
        for name in slices
    }
    for first in range(0, pair.n_gallery, _TILE_ITEMS):
        tile = np.arange(first, min(first + _TILE_ITEMS, pair.n_gallery))
        for s, system in enumerate(systems):
            keys_QN = sort_keys(distance_tile(system.query[queries], system.gallery[tile], distance), tile)
            for q, query in enumerate(block):
                above = _first_threshold_above(keys_QN[q], thresholds[q].ascending, query, first)
                width = len(thresholds[q].ascending) + 1
                for name, slice_of_item in slices.items():
                    counts = np.bincount(slice_of_item[tile] * width + above)
                    histogram[name][s][q][: len(counts)] += counts
    for q, query in enumerate(block):
        yield {
            name: _ranks(histogram[name][0][q], histogram[name][1][q], thresholds[q], query, slice_of_item, points)
            for name, slice_of_item in slices.items()
        }


def _thresholds(
    systems: Sequence[RetrievalSystem], queries: IntArray, block: Sequence[_Query], distance: str
) -> list[_Thresholds]:
    """The keys of each query's positives in both systems."""
    union = np.unique(np.concatenate([query.positives for query in block]))
    keys: list[list[NDArray[np.uint64]]] = [[] for _ in block]
    for system in systems:
        for first in range(0, len(union), _TILE_ITEMS):
            tile = union[first : first + _TILE_ITEMS]
            keys_QU = sort_keys(distance_tile(system.query[queries], system.gallery[tile], distance), tile)
            for q, query in enumerate(block):
                own = query.positives[np.isin(query.positives, tile, assume_unique=True)]
                keys[q].append(keys_QU[q, np.searchsorted(tile, own)])
    thresholds = []
    for of_query in keys:
        both = np.concatenate(of_query)
        sorted_by = np.argsort(both)
        place = np.empty_like(sorted_by)
        place[sorted_by] = np.arange(len(both))
        thresholds.append(_Thresholds(both[sorted_by], place))
    return thresholds


def _first_threshold_above(
    keys_N: NDArray[np.uint64], thresholds_K: NDArray[np.uint64], query: _Query, first: int
) -> IntArray:
    """(N,) for each item of a tile the first threshold that it is closer than; K for none, or if it does not count."""
    above = np.searchsorted(thresholds_K, keys_N, side="right")
    for positions in (query.positives, query.ignored):
        inside = np.searchsorted(positions, (first, first + len(keys_N)))
        above[positions[inside[0] : inside[1]] - first] = len(thresholds_K)
    return above


def _ranks(
    histogram_f: IntArray,
    histogram_b: IntArray,
    thresholds: _Thresholds,
    query: _Query,
    slice_of_item: IntArray,
    points: int,
) -> IntArray:
    """One query's (P, T) ranks of its positives, every column ascending."""
    n_positives = len(query.positives)
    counts_f, counts_b = (_counts(h, len(thresholds.ascending), points) for h in (histogram_f, histogram_b))
    closer_TK = counts_f + (counts_b[-1] - counts_b)
    is_forward_PT = slice_of_item[query.positives][:, None] < np.arange(points)
    place_PT = np.where(is_forward_PT, thresholds.place[:n_positives, None], thresholds.place[n_positives:, None])
    others_PT = np.sort(closer_TK[np.arange(points), place_PT], axis=0)
    # A farther positive never has fewer other items before it, so after sorting, row j is the j-th positive.
    return others_PT + np.arange(1, n_positives + 1)[:, None]


def _counts(histogram: IntArray, n_thresholds: int, points: int) -> IntArray:
    """(T, K) entry [i, k] = how many counted items of the slices < i are closer than threshold k."""
    counts = np.zeros((points, n_thresholds), np.int64)
    by_slice = histogram.reshape(points - 1, n_thresholds + 1)[:, :-1]
    counts[1:] = by_slice.cumsum(axis=1).cumsum(axis=0)
    return counts


def _record(
    parsed: Sequence[Metric],
    ranks_PT: IntArray,
    per_query: Mapping[str, NDArray[np.float64]],
    top1: NDArray[np.bool_],
    row: int,
) -> None:
    for metric in parsed:
        per_query[metric.name][row] = metric_values(metric, ranks_PT)
    top1[row] = ranks_PT[0] == 1


def _check(pair: UpgradePair, truth: GroundTruth, orders: Mapping[str, IntArray], points: int, distance: str) -> None:
    if points < 2:
        raise InputError(f"a curve needs at least 2 points, got {points}")
    if not orders:
        raise InputError("no order was given")
    if truth.n_queries != pair.n_queries or truth.n_gallery != pair.n_gallery:
        raise InputError(
            f"the ground truth is of {truth.n_queries} queries and {truth.n_gallery} gallery items, "
            f"the systems have {pair.n_queries} and {pair.n_gallery}"
        )
    if len(truth.skipped) == truth.n_queries:
        raise InputError("no query has a positive in the gallery: there is nothing to measure")
    for permutation in orders.values():
        check_order(permutation, pair.n_gallery)
    check_system(pair.backward, distance)
    check_system(pair.forward, distance)
