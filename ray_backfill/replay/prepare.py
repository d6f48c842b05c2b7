"""Validated inputs of a replay as plain data. Shapes: Q queries, N items, T points, S = T - 1 slices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.merges import RAW, Merge, all_merges, check_merge, fit_merge
from ray_backfill.metrics import Metric, parse_metric
from ray_backfill.orders import GalleryColumns, check_order, find_order, make_order
from ray_backfill.replay.counting import n_bins
from ray_backfill.replay.nearest import room
from ray_backfill.systems import GroundTruth, IntArray, Switch, UpgradePair, as_array

# Queries per pass over the gallery: enough that reading and scaling a tile costs little compared with its products.
_BLOCK_QUERIES = 256
# Memory for the counts or candidates of a block.
_BLOCK_BYTES = 128 << 20
# With fewer items per possible candidate (k per slice), counting is cheaper than candidates.
_ITEMS_PER_CANDIDATE = 2


@dataclass(frozen=True)
class Prepared:
    """Validated inputs of a replay.

    orders: names of the orders. slices_ON: (O, N) uint16, the forward system serves items of slice s at the points
    i > s. scored: queries with a positive. nearest: depth of the rankings that are needed; None for whole rankings.
    switch: see ``UpgradePair``. merge: makes the two systems' distances comparable; the shards must use the same one.
    """

    orders: tuple[str, ...]
    metrics: tuple[Metric, ...]
    points: int
    slices_ON: NDArray[np.uint16]
    scored: IntArray
    n_skipped: int
    nearest: int | None
    switch: Switch
    merge: Merge


def prepare_replay(
    truth: GroundTruth,
    orders: Mapping[str, IntArray],
    points: int,
    metrics: str | Sequence[str],
    switch: Switch,
    merge: Merge = RAW,
) -> Prepared:
    """Validate the inputs of a replay. Raise InputError for unknown metrics, bad orders or points, or no positives."""
    parsed = tuple(parse_metric(name) for name in ([metrics] if isinstance(metrics, str) else metrics))
    if not 2 <= points <= 1 << 16:
        raise InputError(f"points must be at least 2 and at most {1 << 16}, got {points}")
    if not orders:
        raise InputError("no order was given; give at least one, such as random")
    if not parsed:
        raise InputError("no metric was given; give at least one, such as mAP")
    if truth.n_gallery >= 1 << 32:
        raise InputError(f"a gallery may have fewer than {1 << 32:,} items, got {truth.n_gallery:,}")
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    if not len(scored):
        raise InputError("no query has a positive in the gallery, so there is nothing to measure; check the labels")
    for permutation in orders.values():
        check_order(permutation, truth.n_gallery)
    slices = np.stack([_slice_of_item(permutation, points, switch) for permutation in orders.values()])
    cuts = [metric.k for metric in parsed]
    # With fusion by rank, a merged rank depends on the number of items before it in the other list: rank all items.
    nearest = None if None in cuts or merge.by_rank else max((k for k in cuts if k), default=1)
    if nearest is not None:
        deepest = nearest + int(np.diff(truth.ignored_starts).max())
        if _ITEMS_PER_CANDIDATE * deepest * (points - 1) > truth.n_gallery:
            nearest = None
    return Prepared(tuple(orders), parsed, points, slices, scored, len(truth.skipped), nearest, switch, merge)


def as_permutation(order: Any, pair: UpgradePair) -> IntArray:
    """An order as an array. The name of one is enough if it needs nothing but the number of items.

    Raises:
        InputError: The order of this name has to be made from columns of the gallery.
    """
    if not isinstance(order, str):
        return as_array(order, "an order")
    if find_order(order).needs:
        raise InputError(
            f"order {order!r} needs columns of the gallery; "
            f"pass rb.make_order({order!r}, rb.GalleryColumns(old, columns))"
        )
    return make_order(order, GalleryColumns(pair.backward.gallery))


def as_merge(merge: Merge | str, distance: str) -> Merge:
    """A merge. The name of one is enough if it needs no fit.

    Raises:
        InputError: The merge of this name has to be fitted on train items.
    """
    if isinstance(merge, Merge):
        return merge
    if not isinstance(merge, str):
        raise InputError(f"merge must be a Merge or a name, not {type(merge).__name__}; pass rb.fit_merge(...)")
    check_merge(merge, distance)
    if all_merges()[merge].needs_train:
        raise InputError(
            f"merge {merge!r} is fitted on train items; pass rb.fit_merge({merge!r}, train_pair, labels, {distance!r})"
        )
    return fit_merge(merge, None, None, distance)


def split_queries(prepared: Prepared, truth: GroundTruth, workers: int) -> list[IntArray]:
    """Split the scored queries into blocks of bounded memory, about equally many for each worker."""
    n_slices, n_orders = prepared.points - 1, len(prepared.orders)
    if prepared.nearest is None:
        n_positives = np.diff(truth.positive_starts)[prepared.scored]
        counts = 8 * n_orders * n_slices * (2 * n_positives + 1)
        bytes_Q = (
            counts
            + 8 * n_orders * prepared.points * n_positives
            + 80 * n_positives
            + 4 * n_bins(2 * int(n_positives.max()))
        )
    else:
        deepest = prepared.nearest + int(np.diff(truth.ignored_starts).max())
        bytes_Q = np.full(len(prepared.scored), 8 * room(deepest, n_slices, n_orders) + 4 * n_orders * n_slices)
    n_blocks = int(max(np.ceil(bytes_Q.sum() / _BLOCK_BYTES), np.ceil(len(prepared.scored) / _BLOCK_QUERIES)))
    n_blocks = min(len(prepared.scored), workers * -(-n_blocks // workers))
    # Cut when the running sum of queries or of bytes crosses a multiple, whichever comes first.
    share = np.cumsum(np.maximum(bytes_Q / bytes_Q.sum(), 1 / len(prepared.scored)))
    block_of_query = np.minimum((share * n_blocks * (1 - 1e-9)).astype(np.int64), len(prepared.scored))
    return np.split(prepared.scored, np.flatnonzero(np.diff(block_of_query)) + 1)


def _slice_of_item(order: IntArray, points: int, switch: Switch) -> NDArray[np.uint16]:
    n_gallery, n_slices = len(order), points - 1
    if switch == "at_end":
        return np.full(n_gallery, n_slices - 1, np.uint16)
    backfilled = np.arange(1, points) * n_gallery // n_slices  # items backfilled at points 1 .. S, exactly
    slice_of_item = np.empty(n_gallery, np.uint16)
    slice_of_item[order] = np.searchsorted(backfilled, np.arange(n_gallery), side="right")
    return slice_of_item
