"""The thresholds of a block on the scale of one system's products, and a table that finds the place of a product.

Shapes: b queries, K thresholds of a query (CSR).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances.form import ProductForm, bounds_of_distance
from ray_backfill.engine.replay.block import Block, Union
from ray_backfill.engine.replay.keys import distance_of
from ray_backfill.engine.systems import IntArray

# Smallest and largest size of a query's table, as powers of two: larger ones do not pay.
_FEWEST_BITS, _MOST_BITS = 12, 16
# Entries that are written at a time.
RUN = 32


@dataclass(frozen=True)
class Bins:
    """The thresholds of one system.

    low, high: CSR (``ProductForm.bounds``), with an infinite entry after those of each query. starts: (b + 1,) of
    these. origin, step: (b,) scale of a query's bins, v -> (v - origin) * step + 1. size: number of bins of a query.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    starts: IntArray
    origin: NDArray[np.float32]
    step: NDArray[np.float32]
    size: int


def n_bins(n_thresholds: int) -> int:
    """Choose the number of bins of a query: several for each threshold, so that few contain more than one."""
    return 1 << int(np.clip(np.ceil(np.log2(RUN * n_thresholds)), _FEWEST_BITS, _MOST_BITS))


def make_bins(form: ProductForm, block: Block, union: Union, parts: int = 1) -> Bins:
    """Build the bins of one system. parts: of ``Products``. Cost: O(b K)."""
    starts = union.starts + np.arange(len(block) + 1)
    low, high = np.empty((2, starts[-1]), np.float32)
    size = n_bins(int(np.diff(union.starts).max()))
    closest = -np.inf if form.distance == "inner_product" else 0.0
    top = 3.0 if form.distance == "l2" else 1.0  # products are in [-1, top], up to their error
    _find_bounds(union.keys, union.starts, *form.bounds_of(block.queries, parts), closest, top, low, high)
    # The thresholds use bins 1 .. size - 2; the first is for items before all of them, the last for those after.
    origin, most = low[starts[:-1]], high[starts[1:] - 2]
    step = ((size - 3) / (most.astype(np.float64) - origin)).astype(np.float32)
    return Bins(low, high, starts, origin, step, size)


@kernel
def _find_bounds(
    keys: Array, starts: Array, factor: Array, shift: Array, error: Array, is_squared: bool, closest: float, top: float,
    low: Array, high: Array,
) -> None:  # fmt: skip
    """Find the bounds of each threshold.

    A threshold of the other system can be outside the range of this system's distances. It is moved to just outside
    the range of products, which gives the same decisions without widening the bins.
    """
    for q in range(len(starts) - 1):
        # The same limits in float32: of low, and of high.
        least, most = np.float32(-1 - 3 * error[q]), np.float32(top + 2 * error[q])
        least_high, most_high = np.float32(-1 - 2 * error[q]), np.float32(top + 3 * error[q])
        for k in range(starts[q], starts[q + 1]):
            t = max(np.float64(distance_of(keys[k])), closest)
            below, above = bounds_of_distance(t, factor[q], shift[q], error[q], is_squared)
            low[k + q] = min(max(below, least), most)
            high[k + q] = min(max(above, least_high), most_high)
        low[starts[q + 1] + q] = high[starts[q + 1] + q] = np.float32(np.inf)


@kernel
def fill_table(low: Array, high: Array, origin: float, step: float, table: Array) -> None:
    """Write for each bin the first threshold that its products may be before; with the ``mark_bit`` if a threshold is
    in the bin, so that its products are not all before the same ones.

    low, high: of one query, (K + 1,). table: with room for a run after its bins.
    """
    last_bin, n, mark, filled = len(table) - RUN - 1, len(low) - 1, mark_bit(table), 0
    begins, ends = np.empty(n + 1, np.int32), np.empty(n + 1, np.int32)
    for k in range(n):
        begins[k] = bin_of(low[k], origin, step, last_bin)
        ends[k] = bin_of(high[k], origin, step, last_bin)
    begins[n], ends[n] = last_bin + 1, last_bin
    # A product of a bin is after the thresholds that end in earlier bins.
    for k in range(n + 1):
        end = int(ends[k])
        while filled <= end:
            for i in range(RUN):
                table[np.uint64(filled + i)] = k
            filled += RUN
        filled = end + 1
        for at in range(np.int64(begins[k]), end + 1):
            table[np.uint64(at)] |= mark


@kernel
def mark_bit(table: Array) -> Any:
    """The highest bit of an entry."""
    return 1 << (8 * table.itemsize - 1)


@kernel
def bin_of(v: float, origin: float, step: float, last_bin: int) -> Any:
    """Return the bin of v. Each operation is monotone after rounding, so v > high carries over to bins."""
    x = (v - origin) * step + np.float32(1)
    x = x if x > np.float32(0) else np.float32(0)
    top = np.float32(last_bin)
    x = x if x < top else top
    return np.int32(x)
