"""Exact keys of the positives of a block, which are its thresholds.

Queries that share positives, such as those of one class, share one float64 product; the others' are computed pair by
pair. The bits are the same.
"""

from itertools import pairwise

import numpy as np

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay.block import Block, first_item
from ray_backfill.engine.replay.keys import KeyArray, key_of, sort_keys

# Fewer queries share a product only if it has hardly more pairs than they need.
_MOST_WASTE = 1.5


def exact_keys(form: ProductForm, block: Block, first: int, last: int) -> KeyArray:
    """Return the key of each entry of ``block.positives`` at the positions first .. last - 1; 0 for the others.

    form: of these gallery items. Cost: a product of d multiplications for each entry.
    """
    keys = np.zeros(len(block.positives), np.uint64)
    is_own = (block.positives >= first) & (block.positives < last)
    alone = is_own.copy()
    column_of_item = np.full(last - first, -1, np.int32)
    for begin, end in _groups(block):
        entries = np.flatnonzero(is_own[block.positive_starts[begin] : block.positive_starts[end]])
        entries += block.positive_starts[begin]
        items, columns = np.empty(len(entries), np.int64), np.empty(len(entries), np.int32)
        n_items = _find_columns(block.positives, entries, first, column_of_item, items, columns)
        if (end - begin) * n_items <= _MOST_WASTE * len(entries):
            grid = form.exact_grid(block.queries[begin:end], items[:n_items])
            _fill_keys(grid, begin, entries, columns, block.positive_starts, block.positives, keys)
            alone[entries] = False
    entries = np.flatnonzero(alone)
    positions, query = block.positives[entries], block.queries[block.query_of_positive[entries]]
    keys[entries] = sort_keys(form.exact(query, positions - first), positions)
    return keys


@kernel
def _fill_keys(
    grid: Array, begin: int, entries: Array, columns: Array, starts: Array, positives: Array, keys: Array
) -> None:
    """grid: distances of the queries from ``begin`` on to the items of each column."""
    q = begin
    for i in range(len(entries)):
        while entries[i] >= starts[q + 1]:
            q += 1
        keys[entries[i]] = key_of(grid[q - begin, columns[i]], positives[entries[i]])


@kernel
def _find_columns(
    positives: Array, entries: Array, first: int, column_of_item: Array, items: Array, columns: Array
) -> int:
    """Number the distinct items among some positives. Return how many there are. column_of_item: -1, restored."""
    found = 0
    for i in range(len(entries)):
        item = positives[entries[i]] - first
        if column_of_item[item] < 0:
            column_of_item[item] = found
            items[found] = item
            found += 1
        columns[i] = column_of_item[item]
    for i in range(found):
        column_of_item[items[i]] = -1
    return found


def _groups(block: Block) -> list[tuple[int, int]]:
    """Return (first, last + 1) of the runs of several queries whose positives and ignored items begin equally."""
    first = first_item(block, np.arange(len(block)))
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(first)) + 1, [len(block)]])
    return [(int(a), int(b)) for a, b in pairwise(cuts) if b - a > 1]
