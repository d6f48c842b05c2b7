"""Whole rankings by counting: how many items rank before each positive, at every point, without sorting the gallery.

The keys of a query's positives in both systems are its K thresholds. Each item falls into one of K + 1 places: the
first threshold that it is closer than, or K if there is none. Counts by place and segment, in both systems, give every
rank at every point (``before``). Positives and ignored items are left out. Places are looked up in a table of bins; for
the few items of a bin that a threshold is in, they are found by comparison, and if the error bound of the float32
product leaves them undecided, by the exact keys.

Shapes: b queries, n items of a tile, K thresholds of a query (CSR), P right answers, O orders, S segments, T points.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, count_up_to, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.distances.exact import as_float32, exact_pairs
from ray_backfill.engine.distances.form import DISTANCES, Products
from ray_backfill.engine.metrics import ABSENT, NO_PLACES, Rankings
from ray_backfill.engine.replay.before import CountArray
from ray_backfill.engine.replay.bins import RUN, bin_of, fill_table, make_bins, mark_bit
from ray_backfill.engine.replay.block import Block, Thresholds, Union
from ray_backfill.engine.replay.keys import distances_of, key_of
from ray_backfill.engine.systems import IntArray

# Nanoseconds of a pair on one thread of an AMD EPYC: a product for each column, one more part, and an exact key for
# each column and in all cases.
_PRODUCT, _PART, _EXACT, _UNDECIDED = 0.035, 1.0, 0.85, 45.0
# Fewest columns of a part, and undecided pairs that are counted together, so that a vector is used several times.
_FEWEST_COLUMNS, _UNSURE = 16, 1 << 16


class Counter:
    """Counts the items of all tiles by segment and place, without positives and ignored items, for some queries.

    first: gallery position of item 0. parts: of ``Products``. hist: (O, CSR of (S, K + 1)) of these queries, of the
    smallest type that holds the number of items; the last place is not counted. starts: (b + 1,) start of each query's
    counts.
    """

    def __init__(
        self, form: ProductForm, block: Block, union: Union, segments_ON: NDArray[np.uint16], n_segments: int,
        first: int, parts: int,
    ) -> None:  # fmt: skip
        self.form, self.block, self.union, self.first, self._parts = form, block, union, first, parts
        self.segments_ON = np.pad(segments_ON, ((0, 0), (0, 8)))  # items are counted by eight
        self._products: Products | None = None
        self.bins = make_bins(form, block, union, self._parts)
        most = int(np.diff(self.bins.starts).max())
        self._table = np.empty(self.bins.size + RUN, np.uint16 if most < 1 << 15 else np.uint32)  # of one query
        self.starts = hist_starts(union, n_segments)
        self.itemsize = 2 if len(form.length_N) < 1 << 16 else 4
        self._room = np.empty((len(segments_ON), 0), np.uint16 if self.itemsize == 2 else np.int32)
        # The next positive and the next ignored item of each query, while tiles proceed.
        self._next = np.empty((len(block), 2), np.int64)
        _find_first(block.positives, block.positive_starts, first, self._next[:, 0])
        _find_first(block.ignored, block.ignored_starts, first, self._next[:, 1])
        self._queries = as_float32(form.query[block.queries])
        self._lengths = form.length_Q[block.queries]

    def start(self, begin: int, end: int) -> None:
        """Begin to count for the queries begin .. end - 1 of the block, in the room of those before."""
        self.rows, self.ends = slice(begin, end), slice(begin, end + 1)
        size = self.starts[end] - self.starts[begin]
        if self._room.shape[1] < size:  # new memory costs more than to clear old
            self._room = np.empty((len(self.segments_ON), size), self._room.dtype)
        self.hist: CountArray = self._room[:, :size]
        self.hist[:] = 0

    def add(self, first: int, last: int) -> None:
        """Count the items first .. last - 1; tiles are added in ascending order."""
        bins, block, form, rows, ends = self.bins, self.block, self.form, self.rows, self.ends
        self._products = self._products or Products(form, block.queries, self._parts)
        products, factor, offset = self._products.tile(first, last)
        place_tile(
            products[rows], factor, offset, bins.low, bins.high, bins.starts[ends], self._table, bins.origin[rows],
            bins.step[rows], block.positives, block.positive_starts[ends], block.ignored, block.ignored_starts[ends],
            self._next[rows], self.first, first, self.segments_ON, self.hist, self.starts[ends], self.union.keys,
            self.union.starts[ends], self._queries[rows], as_float32(form.gallery[first:last]), self._lengths[rows],
            form.length_N[first:last], DISTANCES.index(form.distance),
        )  # fmt: skip

    def finish(self) -> CountArray:
        """Return all counts of these queries. After the block's last ones, products are forgotten."""
        if self.rows.stop == len(self.block):
            self._products = None
        return self.hist


def hist_starts(union: Union, n_segments: int) -> IntArray:
    """Return the (b + 1,) start of each query's (S, K + 1) counts."""
    return n_segments * (union.starts + np.arange(len(union.starts)))


def parts_of_products(form: ProductForm, block: Block, union: Union, first: int) -> int:
    """Choose the ``parts`` that make products, and exact keys of the pairs that these leave undecided, cheapest in all.

    A sample of pairs tells how many are undecided. The choice changes no result.
    """
    n, d = form.gallery.shape
    items, rows = (np.unique(np.linspace(0, size - 1, most).astype(int)) for size, most in ((n, 256), (len(block), 8)))
    products, factor, offset = Products(form.of_items(items), block.queries[rows]).tile(0, len(items))
    undecided = 0
    for q, v in zip(rows, products * factor + offset, strict=True):
        distances = distances_of(union.keys[union.starts[q] : union.starts[q + 1]])
        low, high = form.bounds(block.queries[q : q + 1], np.zeros(len(distances), int), distances)
        right = block.positives[block.positive_starts[q] : block.positive_starts[q + 1]]
        v = v[~np.isin(items + first, right)]
        undecided += int(np.count_nonzero(v >= np.append(low, np.inf)[np.searchsorted(high, v)]))
    choices = np.array([1, 0, 2, *range(4, d // _FEWEST_COLUMNS, 4)])
    products_cost = np.where(choices, (choices - 1) * _PART, d * _PRODUCT)
    errors = np.array([form.error(block.queries[:1], parts)[0] for parts in choices.tolist()])
    share = undecided / products.size * errors / errors[0]
    return int(choices[np.argmin(products_cost + share * (_EXACT * d + _UNDECIDED))])


@kernel
def _find_first(positions: Array, starts: Array, first: int, following: Array) -> None:
    for q in range(len(starts) - 1):
        following[q] = starts[q] + count_up_to(positions[starts[q] : starts[q + 1]], first - 1)


@kernel
def _leave_out(positions: Array, at: int, end: int, first: int, n: int, bins: Array, far: int) -> Any:
    """Put the listed items of a tile into the bin of far items. Return the index of the first position after it."""
    while at < end and positions[at] < first + n:
        bins[positions[at] - first] = far
        at += 1
    return at


@kernel
def _list_near(bins: Array, far: int, is_near: Array, groups: Array) -> Any:
    """List the groups of eight items of which one is not far, by their first items; return their number.

    Here and below, every index is written, and the next one overwrites it if it does not count: there is no branch to
    mispredict. Of separate classes, most groups are far.
    """
    for j in range(len(bins)):
        is_near[j] = bins[j] != far
    n_groups = np.uint64(0)
    words = is_near.view(np.uint64)
    for g in range(len(words)):
        groups[n_groups] = 8 * g
        n_groups += np.uint64(words[np.uint64(g)] != np.uint64(0))
    return n_groups


@kernel
def look_up(
    table: Array, bins: Array, mark: int, groups: Array, n_groups: int, places: Array, marked: Array, listed: Array
) -> Any:
    """Read the place of each item's bin. List the items of bins that a threshold is in; return their number."""
    n_marked, n_listed, bit, eight = np.uint64(0), np.uint64(0), np.uint32(mark), np.uint64(8)
    for i in range(n_groups):
        first, every = np.uint64(groups[np.uint64(i)]), np.uint32(0)
        for u in range(eight):
            place = np.uint32(table[np.uint64(bins[first + np.uint64(u)])])
            places[first + np.uint64(u)] = place
            every |= place
        marked[n_marked] = first
        n_marked += np.uint64((every & bit) != np.uint32(0))
    for i in range(n_marked):
        first = np.uint64(marked[np.uint64(i)])
        for u in range(eight):
            listed[n_listed] = first + np.uint64(u)
            n_listed += np.uint64((np.uint32(places[first + np.uint64(u)]) & bit) != np.uint32(0))
    return n_listed


@kernel
def count(groups: Array, n_groups: int, places: Array, segments: Array, width: int, counts: Array) -> None:
    w, eight = np.uint32(width), np.uint64(8)
    for i in range(n_groups):
        first = np.uint64(groups[np.uint64(i)])
        for u in range(eight):
            j = first + np.uint64(u)
            counts[np.uint64(np.uint32(segments[j]) * w + np.uint32(places[j]))] += np.int32(1)


@kernel
def place_tile(
    products: Array, factor: Array, offset: Array, low: Array, high: Array, starts: Array, table: Array, origin: Array,
    step: Array, positives: Array, positive_starts: Array, ignored: Array, ignored_starts: Array, following: Array,
    shard_first: int, first: int, segments_ON: Array, hist: Array, hist_starts: Array, keys: Array, key_starts: Array,
    queries: Array, items: Array, length_Q: Array, length_N: Array, kind: int,
) -> None:  # fmt: skip
    """Count the items of a tile. queries: (b, d). items: (n, d). The others: ``Counter``, ``Bins`` and ``Union``."""
    n, far, mark = products.shape[1], len(table) - RUN - 1, mark_bit(table)
    n_8 = (n + 7) // 8 * 8
    v, bins, places = np.empty(n, np.float32), np.empty(n_8, np.int32), np.empty(n_8, table.dtype)
    is_near, (groups, marked) = np.empty(n_8, np.uint8), np.empty((2, n_8 // 8 + 1), np.uint32)
    listed, unsure, n_unsure = np.empty(n_8 + 1, np.uint32), np.empty((3, n_8 + _UNSURE), np.uint32), np.uint64(0)
    position = shard_first + first  # of the tile's first item
    bins[n:] = far
    for q in range(len(products)):
        row, own_origin, own_step, width = products[q], origin[q], step[q], starts[q + 1] - starts[q]
        own_low, own_high = low[starts[q] : starts[q + 1]], high[starts[q] : starts[q + 1]]
        fill_table(own_low, own_high, own_origin, own_step, table)
        for j in range(n):
            v[j] = row[j] * factor[j] + offset[j]
            bins[j] = bin_of(v[j], own_origin, own_step, far)
        following[q, 0] = _leave_out(positives, following[q, 0], positive_starts[q + 1], position, n, bins, far)
        following[q, 1] = _leave_out(ignored, following[q, 1], ignored_starts[q + 1], position, n, bins, far)
        n_groups = _list_near(bins, far, is_near, groups)
        for i in range(look_up(table, bins, mark, groups, n_groups, places, marked, listed)):
            item = np.uint64(listed[i])
            place = np.uint32(places[item]) & np.uint32(mark - 1)
            while own_high[place] < v[item]:
                place += np.uint32(1)
            unsure[0, n_unsure], unsure[1, n_unsure], unsure[2, n_unsure] = q, item, place
            is_unsure = v[item] >= own_low[place]
            n_unsure += np.uint64(is_unsure)
            places[item] = width - 1 if is_unsure else place  # the last place is not counted
        for o in range(len(segments_ON)):
            count(groups, n_groups, places, segments_ON[o, first:], width, hist[o, hist_starts[q] - hist_starts[0] :])
        if n_unsure >= _UNSURE or q == len(products) - 1:
            _count_unsure(
                unsure[:, : np.int64(n_unsure)], queries, items, length_Q, length_N, kind, position, keys, key_starts,
                segments_ON[:, first:], hist, hist_starts,
            )  # fmt: skip
            n_unsure = np.uint64(0)


@kernel
def _count_unsure(
    unsure: Array, queries: Array, items: Array, length_Q: Array, length_N: Array, kind: int, position: int,
    keys: Array, key_starts: Array, segments_ON: Array, hist: Array, hist_starts: Array,
) -> None:  # fmt: skip
    """Count pairs by their exact keys, which are made in the order of items: vectors of items are far in memory.

    unsure: (3, pairs) query, item, and the first place that the pair can have.
    """
    n_pairs, left = unsure.shape[1], np.zeros(len(items), np.int64)
    at, of_query, of_item = np.empty(n_pairs, np.int64), np.empty(n_pairs, np.int64), np.empty(n_pairs, np.int64)
    distances = np.empty(n_pairs, np.float32)
    for i in range(n_pairs):
        left[unsure[1, i]] += 1
    for item in range(1, len(items)):
        left[item] += left[item - 1]
    for i in range(n_pairs):
        left[unsure[1, i]] -= 1
        at[i] = left[unsure[1, i]]
        of_query[at[i]], of_item[at[i]] = unsure[0, i], unsure[1, i]
    exact_pairs(queries, items, of_query, of_item, of_query, of_item, length_Q, length_N, kind, distances)
    for i in range(n_pairs):
        q, item, place = int(unsure[0, i]), int(unsure[1, i]), int(unsure[2, i])
        key, width = key_of(distances[at[i]], position + item), key_starts[q + 1] - key_starts[q] + 1
        while place < width - 1 and keys[key_starts[q] + place] <= key:
            place += 1
        for o in range(len(segments_ON)):
            hist[o, hist_starts[q] - hist_starts[0] + segments_ON[o, item] * width + place] += np.int32(1)


def counted_rankings(
    others: IntArray, block: Block, thresholds: Thresholds, points: int, with_places: bool, hides_backward: bool
) -> Iterator[Rankings]:
    """Return the rankings of each order. others: (O, CSR of (T, P)) ``others_before``, summed over shards.

    hides_backward: right answers that are not backfilled are not found, and ``others`` count backfilled items only.
    """
    for before, segments in zip(others, thresholds.segments, strict=True):
        places = NO_PLACES
        if with_places:
            places = np.empty(len(before), np.int32)
            _find_places(thresholds.starts, thresholds.owner, segments, points, places)
        if hides_backward:
            before = before.copy()
            _hide_backward(thresholds.starts, thresholds.owner, segments, points, before, places)
        yield Rankings(before, block.positive_starts, places)


@kernel
def _find_places(starts: Array, owner: Array, segments: Array, points: int, places: Array) -> None:
    """Which right answer is the j-th one at each point. Thresholds are in the order of the merged ranking."""
    at = 0
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_right = n_thresholds // 2
        for i in range(points):
            for k in range(n_thresholds):
                right = owner[first + k] % n_right
                is_forward = owner[first + k] < n_right
                # A right answer ranks by the threshold of the system that serves it now.
                if is_forward == (segments[first // 2 + right] < i):
                    places[at] = right
                    at += 1


@kernel
def _hide_backward(starts: Array, owner: Array, segments: Array, points: int, before: Array, places: Array) -> None:
    """Move the right answers that are backfilled to the front at each point; the others are absent."""
    at = 0
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_right = n_thresholds // 2
        for i in range(points):
            j, kept = 0, 0
            for k in range(n_thresholds):
                right = owner[first + k] % n_right
                is_forward = owner[first + k] < n_right
                is_backfilled = segments[first // 2 + right] < i
                if is_forward != is_backfilled:
                    continue
                if is_backfilled:
                    before[at + kept] = before[at + j]
                    if len(places) > 0:
                        places[at + kept] = places[at + j]
                    kept += 1
                j += 1
            before[at + kept : at + n_right] = ABSENT
            at += n_right
