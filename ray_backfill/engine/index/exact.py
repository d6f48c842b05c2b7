"""The exact engine: the true nearest neighbours, with distances that equal the replay's to the last bit.

For each tile there is one matrix product with the stored vectors, for any distance. One compiled pass turns products
into v (``ProductForm.factors``) and keeps the few smallest of each query, nearly always with one comparison. The exact
distance is computed for all kept rows within twice the error bound of the k-th smallest, and decides; ties are broken
by position. If more rows than were kept are within the limit (near-duplicates), the query is searched again with its
limit known.

Proof: let e be the bound on |v - true v| and on all rounding of the exact distance. At least k rows have v up to the
k-th smallest v', so their true v is at most v' + e, and so is that of the k nearest rows by exact distance. In any
other product, these rows also have v up to v' + 2 e.

Shapes: b queries, n rows of a tile, d dimensions, K kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances.exact import lengths
from ray_backfill.engine.distances.form import ProductForm, refuse_zero
from ray_backfill.engine.index.partition import (
    GrowingArray,
    IndexRows,
    as_new_positions,
    as_vectors,
    refuse_living,
    refuse_missing,
    refuse_repeated,
)
from ray_backfill.engine.lists import RankedLists, best_first, joined
from ray_backfill.engine.systems import FloatArray, IntArray

# Queries that are searched at a time.
_QUERIES = 512
# Products per tile: 1 MB, to stay in the cache; but at least this many rows, for an efficient matrix product.
_PRODUCTS = 1 << 18
_LEAST_ROWS = 512
# Queries that are searched again at a time: all rows may be candidates of each.
_QUERIES_AGAIN = 8
# Deleted rows between live ones slow down every search; at the ends they only take memory.
_DEAD_BETWEEN, _DEAD_IN_ALL, _FEW_DEAD = 0.25, 1.0, 1024


@dataclass(frozen=True, eq=False)
class ExactPartition:
    """An exact ``Partition``. The rows first .. last - 1 include all live rows; rows outside cost no search time.

    Cost: 2 b d operations per search for each row from first to last; a copy of one byte per row for an update.
    """

    distance: str
    dim: int
    _vectors: GrowingArray
    _length: GrowingArray
    _rows: IndexRows
    _first: int
    _last: int

    @classmethod
    def empty(cls, distance: str, dim: int) -> "ExactPartition":
        vectors, length = GrowingArray.of(np.empty((0, dim), np.float32)), GrowingArray.of(np.empty(0))
        return cls(distance, dim, vectors, length, IndexRows.none(), 0, 0)

    @property
    def n(self) -> int:
        return self._rows.n_alive

    @property
    def size_bytes(self) -> int:
        return self._vectors.size_bytes + self._length.size_bytes + self._rows.size_bytes

    @property
    def needs_compaction(self) -> bool:
        between = self._last - self._first - self.n
        return self._rows.n_dead > _FEW_DEAD and (
            between > _DEAD_BETWEEN * self.n or self._rows.n_dead > _DEAD_IN_ALL * self.n
        )

    def with_rows(self, vectors: FloatArray, position: IntArray) -> "ExactPartition":
        vectors = as_vectors(vectors, self.dim, "gallery")
        position = as_new_positions(position, vectors)
        refuse_repeated(position)
        refuse_living(position, self._rows.find(position))
        if not len(position):
            return self
        length = lengths(vectors)
        if self.distance == "cosine":
            refuse_zero(length, "gallery")
        return replace(
            self,
            _vectors=self._vectors.extended(vectors),
            _length=self._length.extended(length),
            _rows=self._rows.extended(position),
            _first=self._first if self.n else len(self._rows),
            _last=len(self._rows) + len(position),
        )

    def without(self, position: IntArray) -> "ExactPartition":
        refuse_repeated(position)
        row = self._rows.find(position)
        refuse_missing(position, row)
        return self._without(row)

    def only(self, stays: NDArray[np.bool_], first: int) -> "ExactPartition":
        return self._without(self._rows.others(stays, first))

    def _without(self, row: IntArray) -> "ExactPartition":
        rows = self._rows.without(row)
        if not rows.n_alive:
            return ExactPartition.empty(self.distance, self.dim)
        # argmax finds the first live row
        first = self._first + int(np.argmax(rows.alive[self._first : self._last]))
        last = self._last - int(np.argmax(rows.alive[self._first : self._last][::-1]))
        return replace(self, _rows=rows, _first=first, _last=last)

    def compacted(self) -> "ExactPartition":
        if not self._rows.n_dead:
            return self
        alive = np.flatnonzero(self._rows.alive)
        vectors, length = GrowingArray.of(self._vectors.array[alive]), GrowingArray.of(self._length.array[alive])
        return ExactPartition(self.distance, self.dim, vectors, length, self._rows.compacted(), 0, self.n)

    def positions(self) -> IntArray:
        return self._rows.positions()

    def vectors(self, position: IntArray) -> NDArray[np.float32]:
        row = self._rows.find(position)
        refuse_missing(position, row)
        return self._vectors.array[row]

    def search(self, query: FloatArray, k: int, share: float = 1.0) -> RankedLists:
        query = as_vectors(query, self.dim, "query")
        if not (self.n and k and len(query)):
            return RankedLists.nothing(len(query), k)
        batches = (query[first : first + _QUERIES] for first in range(0, len(query), _QUERIES))
        return joined([_Search(self, batch).nearest(k) for batch in batches])


class _Search:
    """A search for some queries. Rows are counted from the partition's first live row."""

    def __init__(self, partition: ExactPartition, query: NDArray[np.float32]) -> None:
        span = slice(partition._first, partition._last)
        self.n = partition.n
        self.position, self.alive = partition._rows.position[span], partition._rows.alive[span]
        self.form = ProductForm.of_lengths(
            partition.distance, query, partition._vectors.array[span], lengths(query), partition._length.array[span]
        )
        self.left = self.form.left(np.arange(len(query)))[:, : partition.dim]

    def nearest(self, k: int) -> RankedLists:
        queries = np.arange(len(self.left))
        n_kept = k + k // 4 + 16
        if n_kept >= self.n:
            alive = np.flatnonzero(self.alive)
            return self._best(queries, np.repeat(queries, self.n), np.tile(alive, len(queries)), k)
        # The smallest v of each query and their rows, as heaps with the largest at the root.
        values = np.full((len(queries), n_kept), np.inf, np.float32)
        kept = np.full((len(queries), n_kept), -1, np.int64)
        for first, products, factor, offset in self._tiles(self.left):
            _keep_smallest(products, factor, offset, first, values, kept)
        kth = np.partition(values, k - 1, axis=1)[:, k - 1]
        limits = kth.astype(np.float64) + 2.001 * self.form.error_of_factors(queries)
        # The root is the largest kept value: if it is within the limit, rows that were not kept may be as well.
        is_cut = ~(values[:, 0] > limits)
        rows, places = np.nonzero(~(values > limits[:, None]) & ~is_cut[:, None])
        lists = self._best(queries, rows, kept[rows, places], k)
        again = np.flatnonzero(is_cut)
        for first in range(0, len(again), _QUERIES_AGAIN):
            some = again[first : first + _QUERIES_AGAIN]
            lists.put(some, self._best(some, *self._within(some, limits[some]), k))
        return lists

    def _best(self, queries: IntArray, of_query: IntArray, items: IntArray, k: int) -> RankedLists:
        """Return the k best candidates by exact distance. of_query: each candidate's index in ``queries``."""
        exact = self.form.exact(queries[of_query], items)
        return best_first(of_query, exact, self.position[items], len(queries), k)

    def _within(self, queries: IntArray, limits: NDArray[np.float64]) -> tuple[IntArray, IntArray]:
        """Return (index in ``queries``, row) of all v that do not exceed their query's limit."""
        parts = []
        for first, products, factor, offset in self._tiles(self.left[queries]):
            with np.errstate(invalid="ignore", over="ignore"):  # products that overflow count as within
                v_bn = products * factor + offset
                of_query, item = np.nonzero(~(v_bn > limits[:, None]) & self.alive[first : first + len(factor)])
            parts.append((of_query, first + item))
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([items for _, items in parts])

    def _tiles(
        self, left: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]]:
        """Yield (first row, (b, n) products, (n,) factor, (n,) offset); products are valid until the next tile."""
        rows = max(_LEAST_ROWS, _PRODUCTS // len(left))
        room = np.empty(len(left) * min(rows, len(self.alive)), np.float32)
        for first in range(0, len(self.alive), rows):
            last = min(first + rows, len(self.alive))
            alive = self.alive[first:last]
            if not alive.any():
                continue
            factor, offset = self.form.factors(first, last)
            if not alive.all():
                offset = np.where(alive, offset, np.float32(np.inf))
            products = room[: len(left) * (last - first)].reshape(len(left), last - first)
            with np.errstate(invalid="ignore", over="ignore"):  # the error of such products is infinite
                np.matmul(left, self.form.gallery[first:last].T, out=products)
            yield first, products, factor, offset


@kernel
def _keep_smallest(products: Array, factor: Array, offset: Array, first: int, values: Array, kept: Array) -> None:
    """Replace the root of a query's heap by each smaller value."""
    # One byte per product says whether it is smaller; eight bytes are tested with one comparison.
    is_smaller = np.empty(256, np.uint8)
    eight = is_smaller.view(np.uint64)
    for q in range(len(products)):
        heap, rows = values[q], kept[q]
        for start in range(0, products.shape[1], 256):
            row, f, o = products[q, start : start + 256], factor[start : start + 256], offset[start : start + 256]
            root = heap[0]
            is_smaller[len(row) :] = 0
            for j in range(len(row)):
                is_smaller[j] = row[j] * f[j] + o[j] < root
            for word in range(len(eight)):
                if eight[word] != 0:
                    for j in range(8 * word, min(8 * word + 8, len(row))):
                        v = row[j] * f[j] + o[j]
                        if v < heap[0]:
                            _replace_root(heap, rows, v, first + start + j)


@kernel
def _replace_root(heap: Array, rows: Array, v: float, row: int) -> None:
    at, size = 0, len(heap)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= v:
            break
        heap[at], rows[at] = heap[child], rows[child]
        at = child
    heap[at], rows[at] = v, row
