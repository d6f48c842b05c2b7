"""Rankings cut at k from candidates: the few items of each system that can be among the first k at some point.

The forward system serves the slices before a point, the backward system the others. Therefore an item can be among the
first k only if it is among the k closest of the prefix (forward) or suffix (backward) of slices that ends with its own.
One scan keeps these items and skips nearly all others with one comparison, for any number of points; for several
orders it keeps the union. Candidates are selected by float32 products with a margin of twice the error bound, and
finally, or if ties overflow a list, by exact keys.

Shapes: b queries, n items of a tile, C capacity for candidates, O orders, S slices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay.keys import KeyArray, distance_of, item_of, key_of, positions_of, sort_keys
from ray_backfill.engine.replay.products import Products
from ray_backfill.engine.systems import IntArray

_INFINITY = np.float32(np.inf)
# Smallest capacity for candidates, so that pruning them is rare.
_LEAST_ROOM = 1024
# Bins of products used to find the k-th closest item.
_BINS = 256


# (row in the block, item, product) of some pairs, sorted by row: int32, int32, float32.
Passing = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


@dataclass
class Candidates:
    """The candidates of a scan of one system, for each query of a block.

    keys: (b, C) uint64 of product and item, in any order; the first counts[q] of a row are in use. needed: (b,) number
    of closest items that must be kept. slices_ON: (O, N) slice of each item, counted from the slice that is served
    longest: forward from the start, backward from the end. limits: (b, O, S) items of that slice with larger products
    can be dropped; gates: (b,) the largest limit. ceilings: (b, O, S) items with larger products are certainly behind
    ``needed`` items of the other system when this one serves the slices up to that one. margins: (b,) twice the error
    bound.
    """

    keys: KeyArray
    counts: NDArray[np.int32]
    needed: IntArray
    limits: NDArray[np.float32]
    gates: NDArray[np.float32]
    margins: NDArray[np.float32]
    ceilings: NDArray[np.float32]
    slices_ON: NDArray[np.uint16]
    form: ProductForm
    queries: IntArray

    @classmethod
    def empty(
        cls,
        form: ProductForm,
        queries: IntArray,
        needed: IntArray,
        slices_ON: NDArray[np.uint16],
        n_slices: int,
        ceilings: NDArray[np.float32] | None = None,
    ) -> "Candidates":
        b, n_orders = len(queries), len(slices_ON)
        with np.errstate(over="ignore"):  # an infinite margin keeps everything
            margins = (2.0001 * form.error(queries)).astype(np.float32)
        return cls(
            keys=np.empty((b, room(int(needed.max()), n_slices, n_orders)), np.uint64),
            counts=np.zeros(b, np.int32),
            needed=needed,
            limits=np.full((b, n_orders, n_slices), _INFINITY),
            gates=np.full(b, _INFINITY),
            margins=margins,
            ceilings=np.full((b, n_orders, n_slices), _INFINITY) if ceilings is None else ceilings,
            slices_ON=slices_ON,
            form=form,
            queries=queries,
        )

    def add(self, passing: Passing) -> None:
        """Keep the items within the limits, of those that passed the gates."""
        rows, items, values = passing
        at = 0
        while at < len(rows):
            at = _keep(
                rows, items, values, at, self.keys, self.counts, self.needed, self.limits, self.gates,
                self.margins, self.ceilings, self.slices_ON,
            )  # fmt: skip
            if at < len(rows):
                # This row is full of items that the error bound cannot separate: exact keys decide.
                self._drop_exactly(int(rows[at]))
                if 2 * self.counts[rows[at]] > self.keys.shape[1]:
                    self.keys = np.hstack([self.keys, np.empty_like(self.keys)])

    def finish(self) -> tuple[IntArray, KeyArray]:
        """Return (row of each candidate, its exact key)."""
        _drop_all(
            self.keys, self.counts, self.needed, self.limits, self.gates, self.margins, self.ceilings, self.slices_ON
        )
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        used = np.arange(self.keys.shape[1]) < self.counts[:, None]
        return rows, self._exact_keys(rows, self.keys[used])

    def _exact_keys(self, rows: IntArray, keys: KeyArray) -> KeyArray:
        items = positions_of(keys)
        return sort_keys(self.form.exact(self.queries[rows], items), items)

    def _drop_exactly(self, q: int) -> None:
        own = self.keys[q, : self.counts[q]]
        exact = self._exact_keys(np.full(len(own), q), own)
        by_key = np.argsort(exact)
        kept = np.zeros(len(own), np.bool_)
        _mark_nearest(exact[by_key], self.slices_ON, self.needed[q], self.limits.shape[2], kept)
        survivors = own[by_key[kept]]
        self.keys[q, : len(survivors)] = survivors
        self.counts[q] = len(survivors)


def room(needed: int, n_slices: int, n_orders: int) -> int:
    """Return the capacity: twice what a random order keeps, needed / 1 + needed / 2 + ... + needed / S."""
    expected = n_orders * needed * (1 + np.log(n_slices))
    return 1 << int(np.ceil(np.log2(max(_LEAST_ROOM, 2 * expected))))


def ceilings_of_other(
    rows: IntArray,
    keys: KeyArray,
    needed: IntArray,
    slices_ON: NDArray[np.uint16],
    n_slices: int,
    form: ProductForm,
    queries: IntArray,
    merge: Merge = RAW,
) -> NDArray[np.float32]:
    """Return the ``ceilings`` of the backward system from the forward system's finished candidates.

    rows, keys: result of ``finish`` for the forward system; slices_ON: as counted there. form: the backward system.
    """
    farthest = np.full((len(needed), len(slices_ON), n_slices), np.inf, np.float32)
    _find_farthest(rows, keys, needed, slices_ON, farthest)
    # At the point at which this system serves the slices up to r, the other one serves those up to S - 2 - r.
    ceilings = np.full(farthest.shape, _INFINITY)
    q, o, s = np.nonzero(np.isfinite(farthest[:, :, : n_slices - 1]))
    surely_behind, _ = merge.across(farthest[q, o, s], from_forward=True)
    ceilings[q, o, n_slices - 2 - s] = form.bounds(queries, q, surely_behind)[1]
    return ceilings


@kernel
def _find_farthest(rows: Array, keys: Array, needed: Array, slices_ON: Array, farthest: Array) -> None:
    """Find the distance of the needed-th closest item of the slices up to each slice. rows: ascending."""
    saturating = np.empty(farthest.shape[2], np.int64)
    first = 0
    while first < len(rows):
        q, last = rows[first], first
        while last < len(rows) and rows[last] == q:
            last += 1
        own = np.sort(keys[first:last])
        for o in range(len(slices_ON)):
            _find_saturating(own, slices_ON[o], needed[q], saturating)
            for s in range(len(saturating)):
                if saturating[s] >= 0:
                    farthest[q, o, s] = distance_of(own[saturating[s]])
        first = last


class Finder:
    """Finds the few items of a tile that pass the gates. tile_items: largest number of items in a tile."""

    def __init__(self, products: Products, tile_items: int) -> None:
        self.products = products
        room = len(products.left) * tile_items
        self.rows, self.items = np.empty(room, np.int32), np.empty(room, np.int32)
        self.values = np.empty(room, np.float32)

    def passing(self, first: int, last: int, gates: NDArray[np.float32]) -> Passing:
        tile = self.products.tile(first, last)
        found = _find_passing(*tile, gates, first, self.rows, self.items, self.values)
        return self.rows[:found], self.items[:found], self.values[:found]


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
    found = 0
    for q in range(len(products)):
        row, gate = products[q], gates[q]
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
            rows[found], items[found], values[found] = q, first + j, v[j]
            found += 1
    return found


@kernel
def _keep(
    rows: Array, items: Array, values: Array, at: int, keys: Array, counts: Array, needed: Array,
    limits: Array, gates: Array, margins: Array, ceilings: Array, slices_ON: Array,
) -> int:  # fmt: skip
    """Continue with pair ``at``; return the first pair whose row is full, or the number of pairs."""
    capacity = keys.shape[1]
    for i in range(at, len(rows)):
        q = rows[i]
        if not _is_within(values[i], items[i], q, limits, slices_ON):
            continue
        if counts[q] == capacity:
            _drop(q, keys, counts, needed, limits, gates, margins, ceilings, slices_ON)
            if 2 * counts[q] > capacity:
                return i
        keys[q, counts[q]] = key_of(values[i], items[i])
        counts[q] += 1
    return len(rows)


@kernel
def _is_within(v: float, item: int, q: int, limits: Array, slices_ON: Array) -> bool:
    # numba cannot compile a generator expression
    for o in range(len(slices_ON)):  # noqa: SIM110
        if v <= limits[q, o, slices_ON[o, item]]:
            return True
    return False


@kernel
def _drop_all(
    keys: Array, counts: Array, needed: Array, limits: Array, gates: Array, margins: Array, ceilings: Array,
    slices_ON: Array,
) -> None:  # fmt: skip
    for q in range(len(counts)):
        _drop(q, keys, counts, needed, limits, gates, margins, ceilings, slices_ON)


@kernel
def _drop(
    q: int, keys: Array, counts: Array, needed: Array, limits: Array, gates: Array, margins: Array, ceilings: Array,
    slices_ON: Array,
) -> None:  # fmt: skip
    """Lower the limits of a query using its candidates, and drop the candidates above them.

    The needed-th closest item of the slices up to s is found by counting products in bins: a limit may be too high by
    the width of a bin, but never too low.
    """
    own = keys[q, : counts[q]]
    lowest, highest = np.float32(np.inf), np.float32(-np.inf)
    for key in own:
        lowest, highest = min(lowest, distance_of(key)), max(highest, distance_of(key))
    if highest - lowest < np.float32(1e-30):
        return  # practically equal: bins cannot separate them
    n_orders, n_slices = len(slices_ON), limits.shape[2]
    scale = np.float32(_BINS - 1) / (highest - lowest)
    farthest = np.full(_BINS, -np.inf, np.float32)
    counts_SB = np.zeros((n_slices, _BINS), np.int32)
    gates[q] = -np.float32(np.inf)
    for o in range(n_orders):
        counts_SB[:] = 0
        for key in own:
            v = distance_of(key)
            in_bin = min(int((v - lowest) * scale), _BINS - 1)
            counts_SB[slices_ON[o, item_of(key)], in_bin] += 1
            farthest[in_bin] = max(farthest[in_bin], v)
        # With every slice there are more items, and the bin that contains the needed-th one moves down.
        running = np.zeros(_BINS, np.int32)
        last, within = _BINS - 1, 0
        for s in range(n_slices):
            for j in range(_BINS):
                running[j] += counts_SB[s, j]
            within += counts_SB[s, : last + 1].sum()
            while within - running[last] >= needed[q]:
                within -= running[last]
                last -= 1
            limits[q, o, s] = farthest[last] + margins[q] if within >= needed[q] else np.float32(np.inf)
        # If the other system alone has enough closer items at a point, items of this one are not needed there.
        at_most = -np.float32(np.inf)
        for s in range(n_slices - 1, -1, -1):
            at_most = max(at_most, min(limits[q, o, s], ceilings[q, o, s]))
            limits[q, o, s] = at_most
        gates[q] = max(gates[q], limits[q, o].max())
    kept = 0
    for i in range(len(own)):
        if _is_within(distance_of(own[i]), item_of(own[i]), q, limits, slices_ON):
            own[kept] = own[i]
            kept += 1
    counts[q] = kept


@kernel
def _mark_nearest(keys: Array, slices_ON: Array, needed: int, n_slices: int, kept: Array) -> None:
    """Mark the ascending exact keys that are among the first ``needed`` of the slices up to their own."""
    saturating = np.empty(n_slices, np.int64)
    for o in range(len(slices_ON)):
        _find_saturating(keys, slices_ON[o], needed, saturating)
        for i in range(len(keys)):
            at = saturating[slices_ON[o, item_of(keys[i])]]
            if at < 0 or i <= at:
                kept[i] = True


@kernel
def _find_saturating(keys: Array, slice_of_item: Array, needed: int, saturating: Array) -> None:
    """Find for each s the index in ascending ``keys`` at which slices up to s have ``needed`` items; -1 if never."""
    n_slices = len(saturating)
    saturating[:] = -1
    count = np.zeros(n_slices, np.int64)
    full = n_slices  # all slices from here on have enough items
    for i in range(len(keys)):
        for s in range(slice_of_item[item_of(keys[i])], full):
            count[s] += 1
        while full > 0 and count[full - 1] >= needed:
            full -= 1
            saturating[full] = i
        if full == 0:
            break
