"""Data that the engine and the shards of a gallery exchange, as plain arrays.

Lists per query are CSR: the list of query i of a block is entries starts[i] .. starts[i + 1] - 1 of a flat array.
Shapes: b queries of a block, P positives of a query, K = 2 P thresholds, S segments, O orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay.keys import KeyArray, distances_of, key_of, sort_keys
from ray_backfill.engine.systems import GroundTruth, IntArray, rows_of


@dataclass(frozen=True)
class Block:
    """Some queries of a replay. queries: (b,) rows. positives, ignored: gallery positions, ascending for each query."""

    queries: IntArray
    positives: IntArray
    positive_starts: IntArray
    ignored: IntArray
    ignored_starts: IntArray

    @classmethod
    def of(cls, truth: GroundTruth, queries: IntArray) -> "Block":
        return cls(
            queries,
            *rows_of(truth.positives, truth.positive_starts, queries),
            *rows_of(truth.ignored, truth.ignored_starts, queries),
        )

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def query_of_positive(self) -> IntArray:
        """The index 0 .. b - 1 of the query of each entry of ``positives``."""
        return np.repeat(np.arange(len(self)), np.diff(self.positive_starts))


@dataclass(frozen=True)
class Thresholds:
    """The keys of a block's positives in both systems, for each query in the order of the merged ranking.

    keys: CSR, 2 P for each query, for the forward and for the backward system: an item of that system ranks before a
    threshold if its own key is smaller. Without score maps both are the same array. owner: aligned with keys; p < P is
    the query's positive p in the forward system, P + p the same positive in the backward system. starts: (b + 1,).
    keys_2P: (2, all positives) each positive's own key by system, in the order of ``Block.positives``. segments:
    (O, all positives) the segment of each positive.
    """

    keys: tuple[KeyArray, KeyArray]
    keys_2P: KeyArray
    owner: NDArray[np.int32]
    starts: IntArray
    segments: NDArray[np.uint16]


@dataclass(frozen=True)
class Union:
    """The distinct thresholds of several pairs in one searched system.

    keys: CSR, ascending for each query. starts: (b + 1,). at: for each use, the index of each of its thresholds within
    its query's row of ``keys``; empty for a single use, which has them all.
    """

    keys: KeyArray
    starts: IntArray
    at: list[NDArray[np.int32]]


def unite(uses: Sequence[KeyArray], starts: IntArray) -> Union:
    """Unite thresholds. uses: U CSR keys of equal shape, ascending for each query. Cost: U comparisons for each."""
    if len(uses) == 1:
        return Union(uses[0], starts, [])
    keys_UK = np.stack(uses)
    keys, at_UK = np.empty(keys_UK.size, np.uint64), np.empty(keys_UK.shape, np.int32)
    union_starts = np.empty(len(starts), np.int64)
    _unite(keys_UK, starts, keys, union_starts, at_UK)
    return Union(keys[: union_starts[-1]], union_starts, list(at_UK))


def first_item(truth: "GroundTruth | Block", queries: IntArray) -> IntArray:
    """Return for each of some queries the first position among its positives and ignored items; equal within a class.

    queries: rows with a positive.
    """
    first = truth.positives[truth.positive_starts[queries]]
    has_ignored = truth.ignored_starts[queries + 1] > truth.ignored_starts[queries]
    some = queries[has_ignored]
    first[has_ignored] = np.minimum(first[has_ignored], truth.ignored[truth.ignored_starts[some]])
    return first


def make_thresholds(block: Block, keys_2P: KeyArray, segments_ON: NDArray[np.uint16], merge: Merge = RAW) -> Thresholds:
    """Sort thresholds. keys_2P: (2, all) keys of ``block.positives``, forward and backward. segments_ON: by item."""
    starts = 2 * block.positive_starts
    keys, owner = np.empty(starts[-1], np.uint64), np.empty(starts[-1], np.int32)
    n_positives_b = np.diff(block.positive_starts)
    # All queries with equally many positives at once, because numpy sorts faster than a compiled loop.
    groups = [np.flatnonzero(n_positives_b == n_positives) for n_positives in np.unique(n_positives_b)]
    if merge.is_mapped:
        both = keys, np.empty_like(keys)
        scores_2P, across_2P = np.empty(keys_2P.shape), np.empty_like(keys_2P)
        for side, distances in enumerate(distances_of(keys_2P)):
            scores_2P[side] = merge.scores(distances, np.full(len(distances), side == 0))
            # Exactly the other system's items with smaller keys rank before a positive. Without a tie, an item at
            # exactly this distance ranks after it, whatever its position.
            first, ties = merge.across(distances, from_forward=side == 0)
            across_2P[side] = sort_keys(first, np.where(ties, block.positives, 0))
        for queries in groups:
            n_positives = n_positives_b[queries[0]]
            of_query = block.positive_starts[queries][:, None]
            at_qn, at_qk = of_query + np.arange(n_positives), 2 * of_query + np.arange(2 * n_positives)
            own_2qn, across_2qn, scores_2qn = (of_2P[:, at_qn] for of_2P in (keys_2P, across_2P, scores_2P))
            own_qk = np.concatenate(own_2qn, axis=1)
            by_key = np.argsort(own_qk, axis=1)
            scores_qk = np.take_along_axis(np.concatenate(scores_2qn, axis=1), by_key, axis=1)
            owner_qk = np.take_along_axis(by_key, np.argsort(scores_qk, axis=1, kind="stable"), axis=1)
            owner[at_qk] = owner_qk
            for of_side, halves in zip(both, ((own_2qn[0], across_2qn[1]), (across_2qn[0], own_2qn[1])), strict=True):
                of_side[at_qk] = np.take_along_axis(np.concatenate(halves, axis=1), owner_qk, axis=1)
    else:
        both = keys, keys
        for queries in groups:
            sorted_keys = np.empty((len(queries), 2 * n_positives_b[queries[0]]), np.uint64)
            _gather(keys_2P, block.positive_starts, queries, sorted_keys)
            sorted_keys.sort(axis=1)
            _scatter(sorted_keys, keys_2P, block.positive_starts, queries, keys, owner)
    return Thresholds(both, keys_2P, owner, starts, segments_ON[:, block.positives])


@kernel
def _unite(keys_UK: Array, starts: Array, keys: Array, union_starts: Array, at_UK: Array) -> None:
    filled = 0
    n_uses = len(keys_UK)
    following = np.empty(n_uses, np.int64)  # the first key of each use that is not united yet
    for q in range(len(starts) - 1):
        following[:] = starts[q]
        union_starts[q], left = filled, n_uses * (starts[q + 1] - starts[q])
        while left:
            least = np.uint64(0xFFFFFFFFFFFFFFFF)
            for u in range(n_uses):
                if following[u] < starts[q + 1]:
                    least = min(least, keys_UK[u, following[u]])
            for u in range(n_uses):
                while following[u] < starts[q + 1] and keys_UK[u, following[u]] == least:
                    at_UK[u, following[u]] = filled - union_starts[q]
                    following[u] += 1
                    left -= 1
            keys[filled] = least
            filled += 1
    union_starts[len(starts) - 1] = filled


@kernel
def _gather(keys_2P: Array, starts: Array, queries: Array, both: Array) -> None:
    """Positives ascend, so that 2 p + system in the place of the position sorts alike, and tells whose key it is."""
    for i in range(len(queries)):
        first = starts[queries[i]]
        for p in range(both.shape[1] // 2):
            for s in range(2):
                both[i, 2 * p + s] = (keys_2P[s, first + p] >> np.uint64(32) << np.uint64(32)) | np.uint64(2 * p + s)


@kernel
def _scatter(both: Array, keys_2P: Array, starts: Array, queries: Array, keys: Array, owner: Array) -> None:
    n_positives = both.shape[1] // 2
    for i in range(len(queries)):
        first = starts[queries[i]]
        for k in range(both.shape[1]):
            p, s = np.int64((both[i, k] & np.uint64(0xFFFFFFFF)) >> np.uint64(1)), np.int64(both[i, k] & np.uint64(1))
            keys[2 * first + k], owner[2 * first + k] = keys_2P[s, first + p], p + s * n_positives


# Fewer queries share a product only if it has hardly more pairs than they need.
_MOST_WASTE = 1.5


def exact_keys(form: ProductForm, block: Block, first: int, last: int) -> KeyArray:
    """Return the key of each entry of ``block.positives`` at the positions first .. last - 1; 0 for the others.

    form: of these gallery items. Cost: a product of d multiplications for each entry; queries that share positives,
    such as those of one class, share one float64 product, with the same bits.
    """
    keys = np.zeros(len(block.positives), np.uint64)
    is_here = (block.positives >= first) & (block.positives < last)
    alone = is_here.copy()
    column_of_item = np.full(last - first, -1, np.int32)
    first_items = first_item(block, np.arange(len(block)))
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(first_items)) + 1).tolist(), len(block)]):
        if end - begin == 1:
            continue
        entries = np.flatnonzero(is_here[block.positive_starts[begin] : block.positive_starts[end]])
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
    n_items = 0
    for i in range(len(entries)):
        item = positives[entries[i]] - first
        if column_of_item[item] < 0:
            column_of_item[item] = n_items
            items[n_items] = item
            n_items += 1
        columns[i] = column_of_item[item]
    for i in range(n_items):
        column_of_item[items[i]] = -1
    return n_items
