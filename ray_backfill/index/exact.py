"""The exact engine: the true nearest of the vectors as they are, equal to the replay's distances to the last bit.

Tile by tile one matrix product with the stored vectors, whatever the distance; one compiled pass turns products into v
(``ProductForm.factors``) and keeps the few smallest of each query, nearly always by one comparison. Of these, whatever
lies within twice the error bound of the k-th smallest gets its exact distance, which decides, ties by position. Where
more lies within than was kept (near-duplicates), the query is gone through once more with its limit known.

The proof: let e be the bound on |v - true v| and on all rounding of the exact distance. k rows have v up to the k-th
smallest v', so their true v is up to v' + e, and so is that of the k nearest by exact distance. In any other product,
too, these have v up to v' + 2 e.

Shapes: b queries, n rows of a tile, d dimensions, K kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm, lengths
from ray_backfill.index.partition import Found, as_new_positions, as_vectors, refuse_zero, sorted_found
from ray_backfill.index.rows import Column, Rows, refuse_living, refuse_missing, refuse_repeated
from ray_backfill.kernels import Array, kernel
from ray_backfill.systems import FloatArray, IntArray

# First row, (b, n) products, (n,) factor, (n,) offset.
_Tile = tuple[int, NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
# Queries that are searched at a time.
_QUERIES = 512
# Products of a tile: 1 MB, so that they stay in the cache; but rows at least, for the matrix product's sake.
_PRODUCTS = 1 << 18
_LEAST_ROWS = 512
# Queries that are gone through once more at a time: all rows may be candidates of each.
_QUERIES_AGAIN = 8
# Dead rows between living ones cost a share of every search; at the ends they cost memory only.
_DEAD_BETWEEN, _DEAD_IN_ALL, _FEW_DEAD = 0.25, 1.0, 1024


@dataclass(frozen=True, eq=False)
class ExactPartition:
    """A ``Partition``. Rows first .. last - 1 hold all that are alive: what is dead before and after costs no time.

    Cost: a search 2 b d operations for each row from first to last; an update a copy of one byte for each row.
    """

    distance: str
    dim: int
    _vectors: Column
    _length: Column
    _rows: Rows
    _first: int
    _last: int

    @classmethod
    def empty(cls, distance: str, dim: int) -> "ExactPartition":
        vectors, length = Column.of(np.empty((0, dim), np.float32)), Column.of(np.empty(0))
        return cls(distance, dim, vectors, length, Rows.none(), 0, 0)

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
        rows = self._rows.without(row)
        if not rows.n_alive:
            return ExactPartition.empty(self.distance, self.dim)
        # argmax: the first that is alive
        first = self._first + int(np.argmax(rows.alive[self._first : self._last]))
        last = self._last - int(np.argmax(rows.alive[self._first : self._last][::-1]))
        return replace(self, _rows=rows, _first=first, _last=last)

    def compacted(self) -> "ExactPartition":
        if not self._rows.n_dead:
            return self
        alive = np.flatnonzero(self._rows.alive)
        vectors, length = Column.of(self._vectors.array[alive]), Column.of(self._length.array[alive])
        return ExactPartition(self.distance, self.dim, vectors, length, self._rows.compacted(), 0, self.n)

    def positions(self) -> IntArray:
        return self._rows.positions()

    def vectors(self, position: IntArray) -> NDArray[np.float32]:
        row = self._rows.find(position)
        refuse_missing(position, row)
        return self._vectors.array[row]

    def search(self, query: FloatArray, k: int, share: float = 1.0) -> Found:
        query = as_vectors(query, self.dim, "query")
        found = Found.nothing(len(query), k)
        if self.n and k:
            for first in range(0, len(query), _QUERIES):
                some = slice(first, first + _QUERIES)
                part = _Search(self, query[some]).nearest(k)
                found.distance[some], found.position[some] = part.distance, part.position
        return found


class _Search:
    """One search of some queries. Rows are counted from the partition's first living one."""

    def __init__(self, partition: ExactPartition, query: NDArray[np.float32]) -> None:
        span = slice(partition._first, partition._last)
        self.n = partition.n
        self.position, self.alive = partition._rows.position[span], partition._rows.alive[span]
        self.form = ProductForm.of_lengths(
            partition.distance, query, partition._vectors.array[span], lengths(query), partition._length.array[span]
        )
        self.left = self.form.left(np.arange(len(query)))[:, : partition.dim]

    def nearest(self, k: int) -> Found:
        queries = np.arange(len(self.left))
        n_kept = k + k // 4 + 16
        if n_kept >= self.n:
            alive = np.flatnonzero(self.alive)
            return self._best(queries, np.repeat(queries, self.n), np.tile(alive, len(queries)), k)
        values, kept = self._smallest(n_kept)
        kth = np.partition(values, k - 1, axis=1)[:, k - 1]
        limits = kth.astype(np.float64) + 2.001 * self.form.error_of_factors(queries)
        # A root is the largest that was kept: if it is within the limit, rows that were not may be, too.
        is_cut = ~(values[:, 0] > limits)
        rows, places = np.nonzero(~(values > limits[:, None]) & ~is_cut[:, None])
        found = self._best(queries, rows, kept[rows, places], k)
        again = np.flatnonzero(is_cut)
        for first in range(0, len(again), _QUERIES_AGAIN):
            some = again[first : first + _QUERIES_AGAIN]
            part = self._best(some, *self._within(some, limits[some]), k)
            found.distance[some], found.position[some] = part.distance, part.position
        return found

    def _best(self, queries: IntArray, of_query: IntArray, items: IntArray, k: int) -> Found:
        """The k best candidates of these queries by exact distance. of_query: each candidate's place in ``queries``."""
        exact = self.form.exact(queries[of_query], items)
        return sorted_found(of_query, exact, self.position[items], len(queries), k)

    def _smallest(self, n_kept: int) -> tuple[NDArray[np.float32], IntArray]:
        """(b, K) the smallest v of each query, and their rows: as heaps, the largest first."""
        values = np.full((len(self.left), n_kept), np.inf, np.float32)
        kept = np.full((len(self.left), n_kept), -1, np.int64)
        for first, products, factor, offset in self._tiles(self.left):
            _keep_smallest(products, factor, offset, first, values, kept)
        return values, kept

    def _within(self, queries: IntArray, limits: NDArray[np.float64]) -> tuple[IntArray, IntArray]:
        """(place in ``queries``, row) of all v that are not above their query's limit."""
        parts = []
        for first, products, factor, offset in self._tiles(self.left[queries]):
            with np.errstate(invalid="ignore", over="ignore"):  # products that overflow count as within
                v_bn = products * factor + offset
                of_query, item = np.nonzero(~(v_bn > limits[:, None]) & self.alive[first : first + len(factor)])
            parts.append((of_query, first + item))
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([items for _, items in parts])

    def _tiles(self, left: NDArray[np.float32]) -> Iterator[_Tile]:
        """(first row, (b, n) products, (n,) factor, (n,) offset); the products are valid until the next tile."""
        rows = max(_LEAST_ROWS, _PRODUCTS // len(left))
        room = np.empty(len(left) * min(rows, len(self.alive)), np.float32)
        for first in range(0, len(self.alive), rows):
            last = min(first + rows, len(self.alive))
            alive = self.alive[first:last]
            if not alive.any():
                continue
            factor, offset = self.form.factors(first, last)
            if not alive.all():
                offset[~alive] = np.inf
            products = room[: len(left) * (last - first)].reshape(len(left), last - first)
            with np.errstate(invalid="ignore", over="ignore"):  # their error is infinite then
                np.matmul(left, self.form.gallery[first:last].T, out=products)
            yield first, products, factor, offset


@kernel
def _keep_smallest(products: Array, factor: Array, offset: Array, first: int, values: Array, kept: Array) -> None:
    """Put what is smaller than the root of a query's heap in its place."""
    # One byte a product says whether it is smaller; eight of them are looked at in one comparison.
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
