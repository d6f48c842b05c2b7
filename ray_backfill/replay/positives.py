"""Exact keys of the positives of a block, which are its thresholds.

Queries that share positives, such as those of one class, share one float64 product; the others' are computed pair by
pair. The bits are the same.
"""

from itertools import pairwise

import numpy as np

from ray_backfill.distances import ProductForm
from ray_backfill.kernels import Array, kernel
from ray_backfill.replay.block import Block, first_item
from ray_backfill.replay.keys import KeyArray, sort_keys

# Fewer queries share a product only if it has hardly more pairs than they need.
_MOST_WASTE = 1.5


def exact_keys(form: ProductForm, block: Block, first: int, last: int) -> KeyArray:
    """Return the key of each entry of ``block.positives`` at the positions first .. last - 1; 0 for the others.

    form: of these gallery items. Cost: a product of d multiplications for each entry.
    """
    query = block.query_of_positive
    distances = np.zeros(len(block.positives), np.float32)
    is_own = (block.positives >= first) & (block.positives < last)
    alone = is_own.copy()
    column_of_item = np.full(last - first, -1, np.int32)
    for begin, end in _groups(block):
        part = slice(block.positive_starts[begin], block.positive_starts[end])
        own = np.flatnonzero(is_own[part]) + part.start
        items, columns = np.empty(len(own), np.int64), np.empty(len(own), np.int32)
        n_items = _find_columns(block.positives[own] - first, column_of_item, items, columns)
        if (end - begin) * n_items <= _MOST_WASTE * len(own):
            grid = form.exact_grid(block.queries[begin:end], items[:n_items])
            distances[own] = grid[query[own] - begin, columns]
            alone[own] = False
    distances[alone] = form.exact(block.queries[query[alone]], block.positives[alone] - first)
    keys = np.zeros(len(distances), np.uint64)
    keys[is_own] = sort_keys(distances[is_own], block.positives[is_own])
    return keys


@kernel
def _find_columns(entries: Array, column_of_item: Array, items: Array, columns: Array) -> int:
    """Number the distinct items of ``entries``. Return how many there are. column_of_item: (N,) -1, restored."""
    found = 0
    for i in range(len(entries)):
        if column_of_item[entries[i]] < 0:
            column_of_item[entries[i]] = found
            items[found] = entries[i]
            found += 1
        columns[i] = column_of_item[entries[i]]
    for i in range(found):
        column_of_item[items[i]] = -1
    return found


def _groups(block: Block) -> list[tuple[int, int]]:
    """Return (first, last + 1) of the runs of several queries whose positives and ignored items begin equally."""
    first = first_item(block, np.arange(len(block)))
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(first)) + 1, [len(block)]])
    return [(int(a), int(b)) for a, b in pairwise(cuts) if b - a > 1]
