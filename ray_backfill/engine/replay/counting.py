"""Whole rankings by counting: how many items rank before each positive, at every point, without sorting the gallery.

The keys of a query's positives in both systems are its K thresholds. Each item falls into one of K + 1 places: the
first threshold that it is closer than, or K if there is none. Counts by place and segment, in both systems, give every
rank at every point (``before``). Positives and ignored items are left out. Most items are farther than all thresholds
and count nowhere. The others' places are looked up in a table of bins; the few items whose place the error bound of the
float32 product leaves undecided are placed by their exact keys.

Shapes: b queries, n items of a tile, K thresholds of a query (CSR), P right answers, O orders, S segments, T points.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.distances.form import Products
from ray_backfill.engine.metrics import ABSENT, NO_PLACES, Rankings
from ray_backfill.engine.replay.bins import bin_of, make_bins
from ray_backfill.engine.replay.block import Block, Thresholds, Union
from ray_backfill.engine.replay.keys import key_of
from ray_backfill.engine.systems import IntArray

# Undecided pairs are placed when there are this many, so that calls of numpy cost little per pair.
_MANY = 4096
# Items of a query that are placed before they are counted.
_WAITING = 2048


class Counter:
    """Counts the items of all tiles by segment and place, without positives and ignored items.

    first: gallery position of item 0. tile_items: largest number of items in a tile. hist: (O, CSR of (S, K + 1))
    int32; the last place is not counted. starts: (b + 1,) start of each query's counts.
    """

    def __init__(
        self, form: ProductForm, block: Block, union: Union, segments_ON: NDArray[np.uint16], n_segments: int,
        first: int, tile_items: int,
    ) -> None:  # fmt: skip
        self.form, self.block, self.union, self.segments_ON, self.first = form, block, union, segments_ON, first
        self.products = Products(form, block.queries)
        self.bins = make_bins(form, block, union)
        self.starts = hist_starts(union, n_segments)
        self.hist = np.zeros((len(segments_ON), self.starts[-1]), np.int32)
        # The next positive and the next ignored item of each query, while tiles proceed.
        self._next = np.empty((2, len(block)), np.int64)
        _find_first(block.positives, block.positive_starts, first, self._next[0])
        _find_first(block.ignored, block.ignored_starts, first, self._next[1])
        self._undecided = np.empty((3, len(block) * tile_items + _MANY), np.int32)
        self._found = 0
        # Placed items wait for being counted, because the counts of all queries together do not fit in a cache.
        self._placed = np.empty((len(block), 2, max(_WAITING, tile_items)), np.uint32)
        self._n_placed = np.zeros(len(block), np.uint32)

    def add(self, first: int, last: int) -> None:
        """Count the items first .. last - 1; tiles are added in ascending order."""
        bins, block = self.bins, self.block
        self._found = place_tile(
            *self.products.tile(first, last), bins.low, bins.high, bins.starts, bins.table, bins.origin, bins.step,
            block.positives, block.positive_starts, block.ignored, block.ignored_starts, self._next, self.first,
            first, self.segments_ON, self.hist, self.starts, self._placed, self._n_placed, self._undecided, self._found,
        )  # fmt: skip
        if self._found >= _MANY:
            self._place_undecided()

    def finish(self) -> NDArray[np.int32]:
        """Return all counts."""
        self._place_undecided()
        _count_all(self._placed, self._n_placed, self.segments_ON, self.hist, self.starts, self.bins.starts)
        return self.hist

    def _place_undecided(self) -> None:
        rows, items, places = self._undecided[:, : self._found].astype(np.int64)
        place_exactly(
            self.form, self.block, self.union, self.first, rows, items, places, self.segments_ON, self.hist, self.starts
        )
        self._found = 0


def place_exactly(
    form: ProductForm, block: Block, union: Union, first: int, rows: IntArray, items: IntArray, places: IntArray,
    segments_ON: NDArray[np.uint16], hist: NDArray[np.int32], starts: IntArray,
) -> None:  # fmt: skip
    """Count m pairs by their exact keys. places: (m,) a lower bound of each place."""
    distances = form.exact(block.queries[rows], items)
    _place_keys(rows, items, first, distances, places, union.keys, union.starts, segments_ON, hist, starts)


def hist_starts(union: Union, n_segments: int) -> IntArray:
    """Return the (b + 1,) start of each query's (S, K + 1) counts."""
    return n_segments * (union.starts + np.arange(len(union.starts)))


@kernel
def _find_first(positions: Array, starts: Array, first: int, found: Array) -> None:
    for q in range(len(starts) - 1):
        found[q] = starts[q] + np.searchsorted(positions[starts[q] : starts[q + 1]], first)


@kernel
def _leave_out(positions: Array, at: int, end: int, first: int, n: int, is_near: Array) -> Any:
    """Clear the flags of the listed items of a tile. Return the index of the first position after the tile."""
    while at < end and positions[at] < first + n:
        is_near[positions[at] - first] = 0
        at += 1
    return at


@kernel
def _list_flagged(flags: Array, flags_4: Array, groups: Array, flagged: Array) -> Any:
    """Write the indices of the set flags into ``flagged``; return their number. flags_4: the same bytes as uint32.

    Every index is written, and the next one overwrites it if its flag is not set: there is no branch to mispredict.
    First find groups of four with a set flag, because most have none.
    """
    n_groups, n = np.uint32(0), np.uint32(0)
    for g in range(len(flags_4)):
        groups[n_groups] = g
        n_groups += np.uint32(flags_4[g] != 0)
    for i in range(n_groups):
        first = np.uint32(4) * groups[i]
        for j in range(np.uint32(4)):
            flagged[n] = first + np.uint32(j)
            n += np.uint32(flags[first + np.uint32(j)])
    return n


@kernel
def place_tile(
    products: Array, factor: Array, offset: Array, low: Array, high: Array, starts: Array, table: Array, origin: Array,
    step: Array, positives: Array, positive_starts: Array, ignored: Array, ignored_starts: Array, following: Array,
    shard_first: int, first: int, segments_ON: Array, hist: Array, hist_starts: Array, placed: Array, n_placed_Q: Array,
    undecided: Array, found: int,
) -> int:  # fmt: skip
    """Place the items of a tile; append the (row, item, place) of undecided pairs to ``undecided``.

    Return the number of pairs in ``undecided``, (3, room) int32. For the other arguments, see ``Counter`` and ``Bins``.
    """
    n, last_bin = products.shape[1], table.shape[1] - 1
    v, is_near, near = np.empty(n, np.float32), np.zeros((n + 3) // 4 * 4, np.uint8), np.empty(n + 4, np.uint32)
    is_near_4, groups = is_near.view(np.uint32), np.empty(len(is_near) // 4 + 1, np.uint32)
    position = shard_first + first  # of the tile's first item
    for q in range(len(products)):
        row, own_table = products[q], table[q]
        width = starts[q + 1] - starts[q]
        own_low, own_high = low[starts[q] : starts[q + 1]], high[starts[q] : starts[q + 1]]
        farthest = own_high[width - 2]
        for j in range(n):
            v[j] = row[j] * factor[j] + offset[j]
            is_near[j] = v[j] <= farthest
        following[0, q] = _leave_out(positives, following[0, q], positive_starts[q + 1], position, n, is_near)
        following[1, q] = _leave_out(ignored, following[1, q], ignored_starts[q + 1], position, n, is_near)
        n_near = _list_flagged(is_near, is_near_4, groups, near)
        if n_placed_Q[q] + n_near > placed.shape[2]:
            _count_placed(placed[q], n_placed_Q[q], segments_ON, hist, hist_starts[q], width)
            n_placed_Q[q] = 0
        own_placed, n_placed = placed[q], n_placed_Q[q]
        for i in range(n_near):
            j = near[i]
            place = np.uint32(own_table[np.uint32(bin_of(v[j], origin[q], step[q], last_bin))])
            while own_high[place] < v[j]:
                place += np.uint32(1)
            if v[j] >= own_low[place]:
                undecided[0, found], undecided[1, found], undecided[2, found] = q, first + j, place
                found += 1
                continue
            own_placed[0, n_placed], own_placed[1, n_placed] = first + j, place
            n_placed += np.uint32(1)
        n_placed_Q[q] = n_placed
    return found


@kernel
def _count_placed(placed: Array, n_placed: int, segments_ON: Array, hist: Array, hist_start: int, width: int) -> None:
    """placed: (2, room) items and places of a query."""
    for o in range(len(segments_ON)):
        segments, counts = segments_ON[o], hist[o, hist_start:]
        for i in range(n_placed):
            counts[np.uint64(segments[placed[0, i]] * width + placed[1, i])] += np.int32(1)


@kernel
def _count_all(
    placed: Array, n_placed_Q: Array, segments_ON: Array, hist: Array, hist_starts: Array, starts: Array
) -> None:
    for q in range(len(n_placed_Q)):
        _count_placed(placed[q], n_placed_Q[q], segments_ON, hist, hist_starts[q], starts[q + 1] - starts[q])


@kernel
def _place_keys(
    rows: Array, items: Array, first: int, distances: Array, places: Array, keys: Array, starts: Array,
    segments_ON: Array, hist: Array, hist_starts: Array,
) -> None:  # fmt: skip
    for i in range(len(rows)):
        q, place = rows[i], places[i]
        own = keys[starts[q] : starts[q + 1]]
        key = key_of(distances[i], first + items[i])
        while place < len(own) and own[place] <= key:
            place += 1
        for o in range(len(segments_ON)):
            hist[o, hist_starts[q] + segments_ON[o, items[i]] * (len(own) + 1) + place] += 1


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
            before = before.astype(np.int64)
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
