"""Exact keys of the positives of a block, which are its thresholds.

Queries that share positives, such as those of one class, share one float64 product; the others' are computed pair by
pair. The bits are the same.
"""

from itertools import pairwise

import numpy as np

from ray_backfill.distances import ProductForm
from ray_backfill.replay.block import Block, first_item
from ray_backfill.replay.keys import KeyArray, sort_keys

# Fewer queries share a product only if it has hardly more pairs than they need.
_MOST_WASTE = 1.5


def exact_keys(form: ProductForm, block: Block, first: int, last: int) -> KeyArray:
    """Return the key of each entry of ``block.positives`` at the positions first .. last - 1; 0 for the others.

    form: of these gallery items. Cost: a product of d multiplications for each entry.
    """
    distances = np.zeros(len(block.positives), np.float32)
    is_own = (block.positives >= first) & (block.positives < last)
    alone = is_own.copy()
    for begin, end in _groups(block):
        entries = np.arange(block.positive_starts[begin], block.positive_starts[end])
        entries = entries[is_own[entries]]
        if not len(entries):
            continue
        items, column = np.unique(block.positives[entries], return_inverse=True)
        if (end - begin) * len(items) <= _MOST_WASTE * len(entries):
            grid = form.exact_grid(block.queries[begin:end], items - first)
            distances[entries] = grid[block.query_of_positive[entries] - begin, column]
            alone[entries] = False
    query = block.queries[block.query_of_positive[alone]]
    distances[alone] = form.exact(query, block.positives[alone] - first)
    keys = np.zeros(len(distances), np.uint64)
    keys[is_own] = sort_keys(distances[is_own], block.positives[is_own])
    return keys


def _groups(block: Block) -> list[tuple[int, int]]:
    """Return (first, last + 1) of the runs of several queries whose positives and ignored items begin equally."""
    first = first_item(block, np.arange(len(block)))
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(first)) + 1, [len(block)]])
    return [(int(a), int(b)) for a, b in pairwise(cuts) if b - a > 1]
