"""Rankings cut at k from candidates: the few items of each system that can be among the first k at some point.

The forward system serves the segments before a point, the backward system the others. Therefore an item can be among
the first k only if it is among the k closest of the prefix (forward) or suffix (backward) of segments that ends with
its own. One scan keeps these items and skips nearly all others with one comparison, for any number of points; for
several orders it keeps the union. Candidates are selected by float32 products with a margin of twice the error bound,
and finally, or if ties overflow a list, by exact keys.

Shapes: b queries, n items of a tile, C capacity for candidates, P right answers, O orders, S segments, T points.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.distances.form import Products
from ray_backfill.engine.lists import RankedLists, joined, place_of
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.metrics import ABSENT, NO_PLACES, Rankings
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.keys import (
    KeyArray,
    distance_of,
    distances_of,
    item_of,
    key_of,
    positions_of,
    sort_keys,
)
from ray_backfill.engine.systems import IntArray

_INFINITY = np.float32(np.inf)
# Smallest capacity for candidates, so that pruning them is rare.
_LEAST_ROOM = 1024
# Bins of products used to find the k-th closest item.
_BINS = 256


# (row in the block, item, product) of some pairs, sorted by row: int32, int32, float32.
Passing = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


class _Lists(NamedTuple):
    """The candidates of each query, and what limits them: arrays that compiled loops read and write.

    keys: (b, C) uint64 of product and item, in any order; the first counts[q] of a row are in use. needed: (b,) number
    of closest items that must be kept. segments_ON: (O, N) segment of each item, counted from the one that is served
    longest: forward from the start, backward from the end. limits: (b, O, S) items of that segment with larger products
    can be dropped; gates: (b,) the largest limit. ceilings: (b, O, S) items with larger products are certainly behind
    ``needed`` items of the other system when this one serves the segments up to that one. margins: (b,) twice the error
    bound.
    """

    keys: KeyArray
    counts: NDArray[np.int32]
    needed: IntArray
    limits: NDArray[np.float32]
    gates: NDArray[np.float32]
    margins: NDArray[np.float32]
    ceilings: NDArray[np.float32]
    segments_ON: NDArray[np.uint16]


class Candidates:
    """The candidates of a scan of one system, for each query of a block. The arguments: as in ``_Lists``."""

    def __init__(
        self, form: ProductForm, queries: IntArray, needed: IntArray, segments_ON: NDArray[np.uint16], n_segments: int,
        ceilings: NDArray[np.float32] | None = None,
    ) -> None:  # fmt: skip
        self.form, self.queries, b, n_orders = form, queries, len(queries), len(segments_ON)
        with np.errstate(over="ignore"):  # an infinite margin keeps everything
            margins = (2.0001 * form.error(queries)).astype(np.float32)
        if ceilings is None:
            ceilings = np.full((b, n_orders, n_segments), _INFINITY)
        limits = np.maximum.accumulate(ceilings[:, :, ::-1], axis=2)[:, :, ::-1].copy()
        self.lists = _Lists(
            keys=np.empty((b, room(int(needed.max()), n_segments, n_orders)), np.uint64),
            counts=np.zeros(b, np.int32),
            needed=needed,
            limits=limits,
            gates=limits.max((1, 2)),
            margins=margins,
            ceilings=ceilings,
            segments_ON=segments_ON,
        )

    @property
    def gates(self) -> NDArray[np.float32]:
        """(b,) products above it belong to no candidate."""
        return self.lists.gates

    def add(self, passing: Passing) -> None:
        """Keep the items within the limits, of those that passed the gates."""
        rows, items, values = passing
        at = 0
        while (at := _keep(rows, items, values, at, self.lists)) < len(rows):
            # This row is full of items that the error bound cannot separate: exact keys decide.
            q, lists = int(rows[at]), self.lists
            listed = lists.keys[q, : lists.counts[q]]
            exact = self._exact_keys(np.full(len(listed), q), listed)
            by_key = np.argsort(exact)
            stays = np.zeros(len(listed), np.bool_)
            mark_nearest(exact[by_key], lists.segments_ON, lists.needed[q], lists.limits.shape[2], stays)
            survivors = listed[by_key[stays]]
            lists.keys[q, : len(survivors)], lists.counts[q] = survivors, len(survivors)
            if 2 * len(survivors) > lists.keys.shape[1]:
                self.lists = lists._replace(keys=np.hstack([lists.keys, np.empty_like(lists.keys)]))

    def finish(self) -> tuple[IntArray, KeyArray]:
        """Return (row of each candidate, its exact key)."""
        _drop_all(self.lists)
        keys, counts = self.lists.keys, self.lists.counts
        rows = np.repeat(np.arange(len(counts)), counts)
        used = np.arange(keys.shape[1]) < counts[:, None]
        return rows, self._exact_keys(rows, keys[used])

    def _exact_keys(self, rows: IntArray, keys: KeyArray) -> KeyArray:
        items = positions_of(keys)
        return sort_keys(self.form.exact(self.queries[rows], items), items)


def room(needed: int, n_segments: int, n_orders: int) -> int:
    """Return the capacity: twice what a random order keeps, needed / 1 + needed / 2 + ... + needed / S."""
    expected = n_orders * needed * (1 + np.log(n_segments))
    return 1 << int(np.ceil(np.log2(max(_LEAST_ROOM, 2 * expected))))


def find_farthest(
    rows: IntArray, keys: KeyArray, needed: IntArray, segments_ON: NDArray[np.uint16], farthest: NDArray[np.float32]
) -> None:
    """Find the distance of the needed-th closest item of the segments up to each segment. rows: ascending."""
    order, starts = _by_row(rows, keys, len(needed))
    _find_farthest(keys[order], starts, needed, segments_ON, farthest)


def _by_row(rows: IntArray, keys: KeyArray, n_rows: int) -> tuple[IntArray, IntArray]:
    """Sort candidates by row and key, because numpy sorts faster than a compiled loop. Return starts of rows, too."""
    order, starts = np.argsort(rows, kind="stable"), np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=n_rows), out=starts[1:])
    for first, last in pairwise(starts.tolist()):
        order[first:last] = order[first:last][np.argsort(keys[order[first:last]])]
    return order, starts


@kernel
def _find_farthest(keys: Array, starts: Array, needed: Array, segments_ON: Array, farthest: Array) -> None:
    saturating = np.empty(farthest.shape[2], np.int64)
    for q in range(len(starts) - 1):
        ascending = keys[starts[q] : starts[q + 1]]
        for o in range(len(segments_ON)):
            _find_saturating(ascending, segments_ON[o], needed[q], saturating)
            for s in range(len(saturating)):
                if saturating[s] >= 0:
                    farthest[q, o, s] = distance_of(ascending[saturating[s]])


class Finder:
    """Finds the few items of a tile that pass the gates. tile_items: largest number of items in a tile."""

    def __init__(self, products: Products, tile_items: int) -> None:
        self.products = products
        room = len(products.left) * tile_items
        self.rows, self.items = np.empty(room, np.int32), np.empty(room, np.int32)
        self.values = np.empty(room, np.float32)

    def passing(self, first: int, last: int, gates: NDArray[np.float32]) -> Passing:
        tile = self.products.tile(first, last)
        n_passing = _find_passing(*tile, gates, first, self.rows, self.items, self.values)
        return self.rows[:n_passing], self.items[:n_passing], self.values[:n_passing]


@kernel
def _find_passing(
    products: Array, factor: Array, offset: Array, gates: Array, first: int, rows: Array, items: Array, values: Array
) -> int:
    """Write the (row, item, v) of all v up to their row's gate; return their number."""
    n = products.shape[1]
    v = np.empty(n, np.float32)
    # One byte per item says whether it passes the gate; eight bytes are tested with one comparison.
    passes = np.zeros((n + 7) // 8 * 8, np.uint8)
    eight = passes.view(np.uint64)
    columns = np.empty(n + 8, np.int64)
    n_passing = 0
    for q in range(len(products)):
        row, gate = products[q], gates[q]
        # Of most rows no item passes, which is found out without storing anything.
        within = np.int32(0)
        for j in range(n):
            within += np.int32(row[j] * factor[j] + offset[j] <= gate)
        if within == 0:
            continue
        for j in range(n):
            v[j] = row[j] * factor[j] + offset[j]
            passes[j] = v[j] <= gate
        passing = 0
        for word in range(len(eight)):
            if eight[word] != 0:
                # Write every item and let the next one overwrite it if it does not pass: no branch to mispredict.
                for j in range(8 * word, 8 * word + 8):
                    columns[passing] = j
                    passing += passes[j]
        for j in columns[:passing]:
            rows[n_passing], items[n_passing], values[n_passing] = q, first + j, v[j]
            n_passing += 1
    return n_passing


@kernel
def _keep(rows: Array, items: Array, values: Array, at: int, lists: _Lists) -> int:
    """Continue with pair ``at``; return the first pair whose row is full, or the number of pairs."""
    keys, counts = lists.keys, lists.counts
    capacity = keys.shape[1]
    for i in range(at, len(rows)):
        q: Any = np.int64(rows[i])  # as elsewhere: each type is compiled on its own
        item: Any = np.int64(items[i])
        if not _is_within(values[i], item, q, lists.limits, lists.segments_ON):
            continue
        if counts[q] == capacity:
            _drop(q, lists)
            if 2 * counts[q] > capacity:
                return i
        keys[q, counts[q]] = key_of(values[i], item)
        counts[q] += 1
    return len(rows)


@kernel
def _is_within(v: float, item: int, q: int, limits: Array, segments_ON: Array) -> bool:
    # numba cannot compile a generator expression
    for o in range(len(segments_ON)):  # noqa: SIM110
        if v <= limits[q, o, segments_ON[o, item]]:
            return True
    return False


@kernel
def _drop_all(lists: _Lists) -> None:
    for q in range(len(lists.counts)):
        _drop(q, lists)


@kernel
def _drop(q: int, lists: _Lists) -> None:
    """Lower the limits of a query using its candidates, and drop the candidates above them.

    The needed-th closest item of the segments up to s is found by counting products in bins: a limit may be too high by
    the width of a bin, but never too low.
    """
    counts, needed, segments_ON = lists.counts, lists.needed, lists.segments_ON
    limits, gates, ceilings, margin = lists.limits, lists.gates, lists.ceilings, lists.margins[q]
    listed = lists.keys[q, : counts[q]]
    lowest, highest = np.float32(np.inf), np.float32(-np.inf)
    for key in listed:
        lowest, highest = min(lowest, distance_of(key)), max(highest, distance_of(key))
    if highest - lowest < np.float32(1e-30):
        return  # practically equal: bins cannot separate them
    n_orders, n_segments = len(segments_ON), limits.shape[2]
    scale = np.float32(_BINS - 1) / (highest - lowest)
    farthest = np.empty(_BINS, np.float32)
    farthest[:] = -np.float32(np.inf)
    counts_SB = np.zeros((n_segments, _BINS), np.int32)
    gates[q] = -np.float32(np.inf)
    for o in range(n_orders):
        counts_SB[:] = 0
        for key in listed:
            v = distance_of(key)
            in_bin = min(int((v - lowest) * scale), _BINS - 1)
            counts_SB[segments_ON[o, item_of(key)], in_bin] += 1
            farthest[in_bin] = max(farthest[in_bin], v)
        # With every segment there are more items, and the bin that contains the needed-th one moves down.
        running = np.zeros(_BINS, np.int32)
        last, within = _BINS - 1, 0
        for s in range(n_segments):
            for j in range(_BINS):
                running[j] += counts_SB[s, j]
            for j in range(last + 1):
                within += counts_SB[s, j]
            while within - running[last] >= needed[q]:
                within -= running[last]
                last -= 1
            limits[q, o, s] = farthest[last] + margin if within >= needed[q] else np.float32(np.inf)
        # If the other system alone has enough closer items at a point, items of this one are not needed there.
        at_most = -np.float32(np.inf)
        for s in range(n_segments - 1, -1, -1):
            at_most = max(at_most, min(limits[q, o, s], ceilings[q, o, s]))
            limits[q, o, s] = at_most
        gates[q] = max(gates[q], at_most)
    kept = 0
    for i in range(len(listed)):
        if _is_within(distance_of(listed[i]), item_of(listed[i]), q, limits, segments_ON):
            listed[kept] = listed[i]
            kept += 1
    counts[q] = kept


@kernel
def mark_nearest(keys: Array, segments_ON: Array, needed: int, n_segments: int, kept: Array) -> None:
    """Mark the ascending exact keys that are among the first ``needed`` of the segments up to their own."""
    saturating = np.empty(n_segments, np.int64)
    for o in range(len(segments_ON)):
        _find_saturating(keys, segments_ON[o], needed, saturating)
        for i in range(len(keys)):
            at = saturating[segments_ON[o, item_of(keys[i])]]
            if at < 0 or i <= at:
                kept[i] = True


@kernel
def _find_saturating(keys: Array, segment_of_item: Array, needed: int, saturating: Array) -> None:
    """Find for each s the index in ascending ``keys`` at which segments up to s have ``needed`` items; -1 if never."""
    n_segments = len(saturating)
    saturating[:] = -1
    count = np.zeros(n_segments, np.int64)
    full = n_segments  # all segments from here on have enough items
    for i in range(len(keys)):
        for s in range(segment_of_item[item_of(keys[i])], full):
            count[s] += 1
        while full > 0 and count[full - 1] >= needed:
            full -= 1
            saturating[full] = i
        if full == 0:
            break


def nearest_rankings(
    rows: IntArray, keys: KeyArray, is_forward: NDArray[np.bool_], block: Block, segments_ON: NDArray[np.uint16],
    k: int, points: int, merge: Merge, with_places: bool,
) -> Iterator[Rankings]:  # fmt: skip
    """Return the first k ranks of each order, from the candidates of all shards and both systems, by exact keys.

    rows: the query of each candidate, in any order. k: at most what the candidates were found for.
    """
    ranked, starts, places_of = ranked_candidates(rows, keys, is_forward, merge, block)
    width_starts = np.concatenate([[0], np.cumsum(np.minimum(np.diff(block.positive_starts), k))])
    for segments in segments_ON:
        before = np.full(points * width_starts[-1], ABSENT, np.int32)
        places = np.zeros(len(before), np.int32) if with_places else NO_PLACES
        _rank(ranked, starts, places_of, keys, is_forward, segments, k, points, width_starts, before, places)
        yield Rankings(before, width_starts, places)


def nearest_lists(
    rows: IntArray, keys: KeyArray, is_forward: NDArray[np.bool_], block: Block, segments_ON: NDArray[np.uint16],
    k: int, points: int, merge: Merge,
) -> Iterator[RankedLists]:  # fmt: skip
    """Return the (b, T, k) first items at each point, in each order. The arguments: as of ``nearest_rankings``."""
    ranked, starts, _ = ranked_candidates(rows, keys, is_forward, merge, block)
    distance = distances_of(keys)
    of_candidates = RankedLists(positions_of(keys), distance, merge.scores(distance, is_forward), is_forward)
    filled = joined([of_candidates, RankedLists.nothing(1)])  # index -1 fills up a list
    for segments in segments_ON:
        at = np.full((len(block), points, k), -1)
        _list(ranked, starts, of_candidates.item, is_forward, segments, at)
        yield filled.at(at)


@kernel
def _list(ranked: Array, starts: Array, item: Array, is_forward: Array, segments: Array, at: Array) -> None:
    """Write the candidates that stand first at each point. ranked: of each query, the closest first."""
    points, k = at.shape[1:]
    for q in range(len(starts) - 1):
        listed = np.zeros(points, np.int64)
        for c in ranked[starts[q] : starts[q + 1]]:
            after = np.int64(segments[item[c]]) + 1
            begin, end = (after, points) if is_forward[c] else (0, after)
            for i in range(begin, end):
                if listed[i] < k:
                    at[q, i, listed[i]] = c
                    listed[i] += 1


def ranked_candidates(
    rows: IntArray, keys: KeyArray, is_forward: NDArray[np.bool_], merge: Merge, block: Block
) -> tuple[IntArray, IntArray, NDArray[np.int32]]:
    """Sort the candidates of each query that are not ignored by the order of the merge.

    Returns: CSR of indices of candidates; (b + 1,) their starts; aligned with the indices, which of the query's right
    answers it is, or -1.
    """
    if merge.is_mapped:  # in the place of the distance, the place by score and key over all queries
        places = np.empty(len(keys), np.uint64)
        places[np.lexsort((keys, merge.scores(distances_of(keys), is_forward)))] = np.arange(len(keys), dtype=np.uint64)
        keys = (places << np.uint64(32)) | (keys & np.uint64(0xFFFFFFFF))
    ranked, starts = np.empty(len(rows), np.int64), np.empty(len(block) + 1, np.int64)
    places_of = np.empty(len(rows), np.int32)
    _leave_out_ignored(
        *_by_row(rows, keys, len(block)), keys, block.positives, block.positive_starts, block.ignored,
        block.ignored_starts, ranked, starts, places_of,
    )  # fmt: skip
    return ranked[: starts[-1]], starts, places_of[: starts[-1]]


@kernel
def _leave_out_ignored(
    order: Array, starts_all: Array, keys: Array, positives: Array, positive_starts: Array, ignored: Array,
    ignored_starts: Array, ranked: Array, starts: Array, places_of: Array,
) -> None:  # fmt: skip
    at = 0
    for q in range(len(starts) - 1):
        starts[q] = at
        right = positives[positive_starts[q] : positive_starts[q + 1]]
        left_out = ignored[ignored_starts[q] : ignored_starts[q + 1]]
        for c in order[starts_all[q] : starts_all[q + 1]]:
            if place_of(left_out, item_of(keys[c])) < 0:
                ranked[at] = c
                places_of[at] = place_of(right, item_of(keys[c]))
                at += 1
    starts[-1] = at


@kernel
def _rank(
    ranked: Array, starts: Array, places_of: Array, keys: Array, is_forward: Array, segments: Array, k: int,
    points: int, width_starts: Array, before: Array, places: Array,
) -> None:  # fmt: skip
    for q in range(len(starts) - 1):
        first, n_ranked = starts[q], starts[q + 1] - starts[q]
        width = width_starts[q + 1] - width_starts[q]
        # A candidate's system serves it at the points begin .. begin + length - 1.
        begin, length = np.empty(n_ranked, np.uint32), np.empty(n_ranked, np.uint32)
        for c in range(n_ranked):
            after = segments[item_of(keys[ranked[first + c]])] + 1
            begin[c] = after if is_forward[ranked[first + c]] else 0
            length[c] = points - after if is_forward[ranked[first + c]] else after
        for i in range(points):
            at, wrong, right = points * width_starts[q] + i * width, 0, 0
            for c in range(n_ranked):
                if np.uint32(np.uint32(i) - begin[c]) < length[c]:
                    if places_of[first + c] < 0:
                        wrong += 1
                    else:
                        before[at + right] = wrong
                        if len(places) > 0:
                            places[at + right] = places_of[first + c]
                        right += 1
                    if wrong + right == k:
                        break
