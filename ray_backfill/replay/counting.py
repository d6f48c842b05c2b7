"""Whole rankings by counting: how many items rank before each positive, at every point, without sorting the gallery.

The keys of a query's positives in both systems are its K thresholds. Each item falls into one of K + 1 places: the
first threshold that it is closer than, or K if there is none. Counts by place and slice, in both systems, give every
rank at every point. If the error bound of the float32 product decides an item's place, the place is looked up in a
table of bins over the range of the thresholds; the few undecided pairs are returned and placed by their exact keys.

Shapes: b queries, n items of a tile, K thresholds of a query (CSR), O orders, S slices, T = S + 1 points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm, Products
from ray_backfill.kernels import Array, kernel
from ray_backfill.replay.block import Block, Thresholds, Union, distances_of
from ray_backfill.systems import IntArray


@dataclass(frozen=True)
class Bins:
    """The thresholds on the scale of one system's products.

    low, high: CSR (``ProductForm.bounds``). Bin of v: (v - origin) * step + 1. table: (b, bins); an entry up to K is
    the place of all items in the bin; a larger one is K + 1 + the first threshold to compare such an item with.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    table: NDArray[np.uint16] | NDArray[np.uint32]
    origin: NDArray[np.float32]
    step: NDArray[np.float32]


def n_bins(n_thresholds: int) -> int:
    """Choose the number of bins: few should contain a threshold, and a query's table should fit in a core's cache."""
    return 1 << int(np.clip(np.ceil(np.log2(32 * n_thresholds)), 10, 16))


def threshold_bounds(form: ProductForm, block: Block, union: Union) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return ``ProductForm.bounds`` of thresholds in the system of ``form``; both ascend.

    A threshold of the other system can be outside the range of this system's distances. It is moved to just outside
    the range of products, which gives the same decisions without widening the bins.
    """
    query = np.repeat(block.queries, np.diff(union.starts))
    t = distances_of(union.keys)
    if form.distance != "inner_product":
        t = np.maximum(t, np.float32(0))
    low, high = form.bounds(query, t)
    error = form.error(query)
    top = 3 if form.distance == "l2" else 1  # products are in [-1, top], up to their error
    with np.errstate(over="ignore"):
        low = np.clip(low, -1 - 3 * error, top + 2 * error).astype(np.float32)
        high = np.clip(high, -1 - 2 * error, top + 3 * error).astype(np.float32)
    return low, high


def make_bins(form: ProductForm, block: Block, union: Union) -> Bins:
    """Build the bins of one system. Cost: O(b (bins + K))."""
    lengths = np.diff(union.starts)
    low, high = threshold_bounds(form, block, union)
    most = int(lengths.max())
    table = np.empty((len(block), n_bins(most)), np.uint16 if 2 * most + 1 < 1 << 16 else np.uint32)
    bins = Bins(low, high, table, np.empty(len(block), np.float32), np.empty(len(block), np.float32))
    _fill_tables(low, high, union.starts, bins.table, bins.origin, bins.step)
    return bins


class Counter:
    """Counts the items of all tiles by slice and place. tile_items: largest number of items in a tile.

    hist: (O, CSR of (S, K + 1)) int32. starts: (b + 1,) start of each query's counts.
    """

    def __init__(
        self, products: Products, block: Block, union: Union, slices_ON: NDArray[np.uint16], n_slices: int,
        tile_items: int,
    ) -> None:  # fmt: skip
        self.products, self.union, self.slices_ON = products, union, slices_ON
        self.bins = make_bins(products.form, block, union)
        self.starts = hist_starts(union, n_slices)
        self.hist = np.zeros((len(slices_ON), self.starts[-1]), np.int32)
        self._undecided = np.empty((2, len(block) * tile_items), np.int32)

    def add(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """Count the items first .. last - 1. Return (row, item) of the pairs left out because they are undecided."""
        v_bn, bins = self.products.tile(first, last), self.bins
        slices_On = np.ascontiguousarray(self.slices_ON[:, first:last])
        found = place_tile(
            v_bn, bins.low, bins.high, self.union.starts, bins.table, bins.origin, bins.step, slices_On,
            self.hist, self.starts, self._undecided,
        )  # fmt: skip
        rows, columns = self._undecided[:, :found].astype(np.int64)
        return rows, first + columns

    def finish(self) -> NDArray[np.int32]:
        """Return all counts."""
        return self.hist


@kernel
def _fill_tables(low: Array, high: Array, starts: Array, table: Array, origin: Array, step: Array) -> None:
    last_bin = table.shape[1] - 1
    for q in range(len(starts) - 1):
        first, last = starts[q], starts[q + 1]
        origin[q] = low[first]
        # The thresholds use bins 1 .. last_bin - 1: the first and last bin are for items before or after all of them.
        step[q] = np.float32((last_bin - 2) / (np.float64(high[last - 1]) - np.float64(low[first])))
        at = 0
        for k in range(last - first):
            begin = _bin(low[first + k], origin[q], step[q], last_bin)
            end = _bin(high[first + k], origin[q], step[q], last_bin)
            while at < begin:
                table[q, at] = k
                at += 1
            while at <= end:
                table[q, at] = last - first + 1 + k
                at += 1
        while at <= last_bin:
            table[q, at] = last - first
            at += 1


@kernel
def _bin(v: float, origin: float, step: float, last_bin: int) -> Any:
    """Return the bin of v. Each operation is monotone after rounding, so v < low or v > high carries over to bins."""
    x = (v - origin) * step + np.float32(1)
    x = x if x > np.float32(0) else np.float32(0)
    top = np.float32(last_bin)
    x = x if x < top else top
    return np.int32(x)


@kernel
def place_tile(
    v_bn: Array,
    low: Array,
    high: Array,
    starts: Array,
    table: Array,
    origin: Array,
    step: Array,
    slices_On: Array,
    hist: Array,
    hist_starts: Array,
    undecided: Array,
) -> int:
    """Count the items of a tile into ``hist``. Return the number of pairs (row, column) put into ``undecided`` instead.

    v_bn: (b, n) product. slices_On: (O, n). hist: (O, CSR of (S, K + 1)) int32. undecided: (2, b * n) int32.
    """
    n = v_bn.shape[1]
    last_bin = table.shape[1] - 1
    bins = np.empty(n, np.int32)
    places = np.empty(n, table.dtype)
    found = 0
    for q in range(len(v_bn)):
        row, own_table = v_bn[q], table[q]
        first = starts[q]
        n_thresholds = starts[q + 1] - first
        for j in range(n):
            bins[j] = _bin(row[j], origin[q], step[q], last_bin)
        for j in range(n):
            place = np.int64(own_table[np.uint32(bins[j])])
            if place > n_thresholds:
                place -= n_thresholds + 1
                while place < n_thresholds and high[first + place] < row[j]:
                    place += 1
                if place < n_thresholds and row[j] >= low[first + place]:
                    undecided[0, found] = q
                    undecided[1, found] = j
                    found += 1
                    place = n_thresholds  # before no positive: counts nowhere
            places[j] = place
        width = np.int32(n_thresholds + 1)
        for o in range(len(slices_On)):
            counts = hist[o, hist_starts[q] : hist_starts[q + 1]]
            slices = slices_On[o]
            for j in range(n):
                bins[j] = slices[j] * width + places[j]
            for j in range(n):
                counts[np.uint32(bins[j])] += np.int32(1)
    return found


@kernel
def count_exactly(
    query: Array,
    keys: Array,
    slices_Om: Array,
    sign: int,
    threshold_keys: Array,
    starts: Array,
    hist: Array,
    hist_starts: Array,
) -> None:
    """Add ``sign`` to the counts of m pairs by their exact keys. query: (m,) rows of the block. slices_Om: (O, m)."""
    for i in range(len(query)):
        q = query[i]
        own = threshold_keys[starts[q] : starts[q + 1]]
        place = np.searchsorted(own, keys[i], side="right")
        for o in range(len(slices_Om)):
            hist[o, hist_starts[q] + slices_Om[o, i] * (len(own) + 1) + place] += sign


@dataclass(frozen=True)
class Counted:
    """How many items of one system rank before its thresholds. counts: (O, CSR of (S, K + 1)) int32, cumulative.

    counts[s, k]: items of the slices up to s that rank before threshold k, without positives and ignored items.
    """

    counts: NDArray[np.int32]
    union: Union


def accumulate(hist: NDArray[np.int32], union: Union, n_slices: int) -> Counted:
    """Sum counts by place and slice, in place."""
    for of_order in hist:
        _accumulate(of_order, union.starts, n_slices)
    return Counted(hist, union)


@kernel
def _accumulate(hist: Array, starts: Array, n_slices: int) -> None:
    for q in range(len(starts) - 1):
        width = starts[q + 1] - starts[q] + 1
        base = n_slices * (starts[q] + q)
        for s in range(n_slices):
            row = hist[base + s * width : base + (s + 1) * width]
            before = np.int32(0)
            for k in range(width):
                before += row[k]
                row[k] = before
            if s > 0:
                above = hist[base + (s - 1) * width : base + s * width]
                for k in range(width):
                    row[k] += above[k]


class Side(NamedTuple):
    """One system of a pair: its counts, the pair's use of its thresholds, and the pair's rows of its counts."""

    counted: Counted
    use: int
    rows: Sequence[int]


def others_before(forward: Side | None, backward: Side | None, thresholds: Thresholds, points: int) -> IntArray:
    """Return (O, CSR of (T, P)): how many counted items rank before the j-th positive at each point.

    None: items of that system are not counted. Results for disjoint sets of items add up.
    """
    n_orders, n_positives = thresholds.slices.shape
    others = np.empty((n_orders, points * n_positives + 1), np.int64)
    for o in range(n_orders):
        sides = [_of_order(side or forward or backward, o) for side in (forward, backward)]
        _others_before(
            *sides[0], forward is not None, *sides[1], backward is not None, thresholds.starts, thresholds.owner,
            thresholds.slices[o], points, others[o],
        )  # fmt: skip
    return np.ascontiguousarray(others[:, :-1])


def _of_order(side: Side | None, order: int) -> tuple[NDArray[np.int32], IntArray, NDArray[np.int32]]:
    """Counts of one order, starts of the union, and the place of each threshold in it."""
    assert side is not None
    union = side.counted.union
    return side.counted.counts[side.rows[order]], union.starts, union.at[side.use]


@kernel
def _others_before(
    counts_f: Array, starts_f: Array, at_f: Array, use_f: bool, counts_b: Array, starts_b: Array, at_b: Array,
    use_b: bool, starts: Array, owner: Array, slices: Array, points: int, others: Array,
) -> None:  # fmt: skip
    n_slices = points - 1
    for q in range(len(starts) - 1):
        first, n_thresholds = starts[q], starts[q + 1] - starts[q]
        n_positives = n_thresholds // 2
        width_f, width_b = starts_f[q + 1] - starts_f[q] + 1, starts_b[q + 1] - starts_b[q] + 1
        base_f, base_b = n_slices * (starts_f[q] + q), n_slices * (starts_b[q] + q)
        place_f, place_b = at_f[first : first + n_thresholds], at_b[first : first + n_thresholds]
        # A positive ranks by its forward threshold at the points after its slice, before them by its backward one.
        begin, length = np.empty(n_thresholds, np.uint32), np.empty(n_thresholds, np.uint32)
        all_b, before = np.zeros(n_thresholds, np.int32), np.empty(n_thresholds, np.int32)
        last_b = counts_b[base_b + (n_slices - 1) * width_b : base_b + n_slices * width_b]
        for k in range(n_thresholds):
            own = slices[first // 2 + owner[first + k] % n_positives] + 1
            is_forward = owner[first + k] < n_positives
            begin[k] = own if is_forward else 0
            length[k] = points - own if is_forward else own
            if use_b:
                all_b[k] = last_b[place_b[k]]
        at = np.uint64(points * (first // 2))
        for i in range(points):
            before[:] = all_b
            if i > 0 and use_f:
                row = counts_f[base_f + (i - 1) * width_f : base_f + i * width_f]
                for k in range(n_thresholds):
                    before[k] += row[place_f[k]]
            if i > 0 and use_b:
                row = counts_b[base_b + (i - 1) * width_b : base_b + i * width_b]
                for k in range(n_thresholds):
                    before[k] -= row[place_b[k]]
            for k in range(n_thresholds):
                # The entry of a threshold that does not rank its positive now is overwritten by the next one.
                others[at] = before[k]
                at += np.uint64(np.uint32(np.uint32(i) - begin[k]) < length[k])


def hist_starts(union: Union, n_slices: int) -> IntArray:
    """Return the (b + 1,) start of each query's (S, K + 1) counts."""
    return n_slices * (union.starts + np.arange(len(union.starts)))
