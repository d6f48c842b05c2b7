"""The thresholds of a block on the scale of one system's products, and a table that finds the place of a product.

Shapes: b queries, K thresholds of a query (CSR).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm, bounds_of_distance
from ray_backfill.engine.replay.block import Block, Union
from ray_backfill.engine.replay.keys import distance_of
from ray_backfill.engine.systems import IntArray

# Smallest and largest size of a query's table, as powers of two: larger ones do not pay.
_FEWEST_BITS, _MOST_BITS = 10, 15


@dataclass(frozen=True)
class Bins:
    """The thresholds of one system.

    low, high: CSR (``ProductForm.bounds``), with an infinite entry after those of each query. starts: (b + 1,) of
    these. table: (b, bins) the first threshold that a product of the bin v -> (v - origin) * step + 1 may be before.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    starts: IntArray
    table: NDArray[np.uint16] | NDArray[np.uint32]
    origin: NDArray[np.float32]
    step: NDArray[np.float32]


def n_bins(n_thresholds: int) -> int:
    """Choose the number of bins of a query: several for each threshold, so that few contain more than one."""
    return 1 << int(np.clip(np.ceil(np.log2(2 * n_thresholds)), _FEWEST_BITS, _MOST_BITS))


def make_bins(form: ProductForm, block: Block, union: Union) -> Bins:
    """Build the bins of one system. Cost: O(b (bins + K))."""
    most = int(np.diff(union.starts).max())
    starts = union.starts + np.arange(len(block) + 1)
    low, high = np.empty((2, starts[-1]), np.float32)
    table = np.empty((len(block), n_bins(most)), np.uint16 if most < 1 << 16 else np.uint32)
    bins = Bins(low, high, starts, table, np.empty(len(block), np.float32), np.empty(len(block), np.float32))
    closest = -np.inf if form.distance == "inner_product" else 0.0
    top = 3.0 if form.distance == "l2" else 1.0  # products are in [-1, top], up to their error
    _find_bounds(union.keys, union.starts, *form.bounds_of(block.queries), closest, top, low, high)
    _fill_tables(low, high, starts, table, bins.origin, bins.step)
    return bins


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
def _fill_tables(low: Array, high: Array, starts: Array, table: Array, origin: Array, step: Array) -> None:
    last_bin = table.shape[1] - 1
    for q in range(len(starts) - 1):
        first, n_thresholds, own = starts[q], starts[q + 1] - starts[q] - 1, table[q]
        origin[q] = low[first]
        # The thresholds use bins 1 .. last_bin - 1; the first one is for items before all of them.
        step[q] = np.float32((last_bin - 2) / (np.float64(high[first + n_thresholds - 1]) - np.float64(low[first])))
        # Count the thresholds that end in each bin: a product of a bin is after those of all earlier bins.
        own[:] = 0
        for k in range(n_thresholds):
            own[np.uint32(bin_of(high[first + k], origin[q], step[q], last_bin))] += 1
        before = 0
        for at in range(len(own)):
            ending = own[at]
            own[at] = before
            before += ending


@kernel
def bin_of(v: float, origin: float, step: float, last_bin: int) -> Any:
    """Return the bin of v. Each operation is monotone after rounding, so v > high carries over to bins."""
    x = (v - origin) * step + np.float32(1)
    x = x if x > np.float32(0) else np.float32(0)
    top = np.float32(last_bin)
    x = x if x < top else top
    return np.int32(x)
