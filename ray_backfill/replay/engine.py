"""Replays a backfill exactly, in one pass over each system, however many points and orders.

Put the gallery in backfill order and cut it into T - 1 slices. A positive's rank at point i is 1 + the number of
closer items: in slices < i by the forward system, in the others by the backward system. So per query the positives'
distances in both systems are thresholds, and per slice and system it is counted how many other items fall under each.
No ranking is ever sorted. Counts of slices add up, for every point, to exactly what a full sort of
where(backfilled, d_forward, d_backward) gives; ties go by distance, then gallery position.

Shapes: Q queries, N gallery items, P positives of a query, T points, S = T - 1 slices, K = 2 P thresholds.
"""

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill.distances import check_system, distance_tile
from ray_backfill.errors import InputError
from ray_backfill.metrics import Metric, metric_values, parse_metric
from ray_backfill.orders import check_order
from ray_backfill.replay.curve import Curve
from ray_backfill.systems import GroundTruth, IntArray, UpgradePair

# Distances held at a time, over both systems: bounds memory at about 200 MB whatever N is.
_BLOCK_DISTANCES = 4_000_000


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
    """
    parsed = [parse_metric(name) for name in metrics]
    orders = dict(order) if isinstance(order, Mapping) else {"": order}
    _check(pair, truth, orders, points, distance)
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    slices = {name: _slice_of_item(pair, permutation, points) for name, permutation in orders.items()}
    per_query = {name: {x.name: np.empty((len(scored), points)) for x in parsed} for name in orders}
    top1 = {name: np.empty((len(scored), points), bool) for name in orders}

    block = max(1, _BLOCK_DISTANCES // (2 * pair.n_gallery))
    with tqdm(total=len(scored), desc="replay", unit=" queries", disable=not progress, delay=2, leave=False) as bar:
        for start in range(0, len(scored), block):
            rows = scored[start : start + block]
            keys_f = sort_keys(distance_tile(pair.forward.query[rows], pair.forward.gallery, distance))
            keys_b = sort_keys(distance_tile(pair.backward.query[rows], pair.backward.gallery, distance))
            for i, query in enumerate(rows):
                positives, ignored = truth.positives_of(query), truth.ignored_of(query)
                ranks = _ranks(keys_f[i], keys_b[i], positives, ignored, slices, points)
                for name, ranks_PT in ranks.items():
                    _record(parsed, ranks_PT, per_query[name], top1[name], start + i)
            bar.update(len(rows))

    t = np.linspace(0.0, 1.0, points)
    curves = {name: Curve(t, per_query[name], top1[name], scored, len(truth.skipped)) for name in orders}
    return curves if isinstance(order, Mapping) else curves[""]


def sort_keys(dist_QN: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Distances as (Q, N) uint64 that order by distance first and gallery position second.

    The upper half is the float32 with its bits arranged so that they order as unsigned integers; the lower half is the
    position. Comparing two keys is the tie rule.
    """
    bits = (dist_QN + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (ordered.astype(np.uint64) << np.uint64(32)) | np.arange(dist_QN.shape[1], dtype=np.uint64)


def _slice_of_item(pair: UpgradePair, order: IntArray, points: int) -> IntArray:
    """(N,) the slice s of each item: the forward system serves it at the points i > s."""
    n_gallery, n_slices = len(order), points - 1
    if pair.switch == "at_end":
        return np.full(n_gallery, n_slices - 1)
    backfilled = np.arange(1, points) * n_gallery // n_slices  # items done at points 1..S, in exact arithmetic
    slice_of_item = np.empty(n_gallery, np.int64)
    slice_of_item[order] = np.searchsorted(backfilled, np.arange(n_gallery), side="right")
    return slice_of_item


def _ranks(
    keys_f: NDArray[np.uint64],
    keys_b: NDArray[np.uint64],
    positives: IntArray,
    ignored: IntArray,
    slices: Mapping[str, IntArray],
    points: int,
) -> dict[str, IntArray]:
    """One query's (P, T) ranks of its positives for each order, every column ascending."""
    n_positives = len(positives)
    both = np.concatenate([keys_f[positives], keys_b[positives]])
    sorted_by = np.argsort(both)
    place = np.empty_like(sorted_by)  # of each positive's forward (first P) and backward (last P) threshold
    place[sorted_by] = np.arange(len(both))
    under_f = _first_threshold_above(keys_f, both[sorted_by], positives, ignored)
    under_b = _first_threshold_above(keys_b, both[sorted_by], positives, ignored)

    ranks = {}
    for name, slice_of_item in slices.items():
        counts_f = _counts(slice_of_item, under_f, len(both), points)
        counts_b = _counts(slice_of_item, under_b, len(both), points)
        closer_TK = counts_f[:points] + (counts_b[-1] - counts_b)
        is_forward_PT = slice_of_item[positives][:, None] < np.arange(points)
        place_PT = np.where(is_forward_PT, place[:n_positives, None], place[n_positives:, None])
        others_PT = np.sort(closer_TK[np.arange(points), place_PT], axis=0)
        # A farther positive never has fewer other items before it, so after sorting, row j is the j-th positive.
        ranks[name] = others_PT + np.arange(1, n_positives + 1)[:, None]
    return ranks


def _first_threshold_above(
    keys: NDArray[np.uint64], thresholds: NDArray[np.uint64], positives: IntArray, ignored: IntArray
) -> IntArray:
    """(N,) for each item the first of the K sorted thresholds that it is closer than; K for none, or if not counted."""
    first = np.searchsorted(thresholds, keys, side="right")
    first[positives] = len(thresholds)
    first[ignored] = len(thresholds)
    return first


def _counts(slice_of_item: IntArray, first_above: IntArray, n_thresholds: int, points: int) -> IntArray:
    """(T, K) entry [i, k] = how many counted items of the slices < i are closer than threshold k."""
    width = n_thresholds + 1
    histogram = np.bincount(slice_of_item * width + first_above, minlength=(points - 1) * width)
    counts = np.zeros((points, n_thresholds), np.int64)
    counts[1:] = histogram.reshape(points - 1, width)[:, :-1].cumsum(axis=1).cumsum(axis=0)
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
