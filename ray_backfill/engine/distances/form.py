"""Distances: smaller is closer. This is the only room that defines cosine, l2 and inner product.

Each distance is computed in two ways. ``exact`` takes one pair at a time, accumulated in float64 in a fixed order
and rounded to float32: the same bits on every machine and in any batch, so that equal vectors tie. ``ProductForm``
turns a system into float32 matrix products v with a proven error bound; where the bound does not decide a comparison,
the exact distance does. Adaptive geometric predicates (Shewchuk 1997) use the same pattern: a filter, then exactness.

Shapes: Q queries, N gallery items, d dimensions, D columns of the product (d, or d + 1 under l2), n items of a tile.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances.exact import ROWS, as_float32, exact_pairs, is_plain, lengths, round_grid, scale_rows
from ray_backfill.engine.systems import FloatArray, IntArray, RetrievalSystem

DISTANCES = ("cosine", "l2", "inner_product")

# Relative rounding error of one float32 operation, and of one float64 operation.
_U, _WIDE_U = 2.0**-24, 2.0**-53
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
# Products of vectors up to this length, times 2, do not overflow float32; neither does a factor up to this.
_LONGEST = _LARGEST_FACTOR = 1e38


def check_distance(distance: str) -> None:
    """Raise InputError for an unknown name; the message names similar ones."""
    if distance not in DISTANCES:
        raise unknown_name("distance", distance, DISTANCES)


def normalise(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the rows scaled to length 1, as a new float64 array; a zero row stays zero."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length == 0, 1, length)


def exact_distances(query: FloatArray, gallery: FloatArray, distance: str) -> NDArray[np.float32]:
    """Return the (Q, N) float32 exact distances of (Q, d) queries to (N, d) gallery vectors, pair by pair.

    cosine: 1 - cos, in [0, 2]. l2: Euclidean, not squared. inner_product: the negative inner product.
    Cost: Q N d operations in float64, about 20 times a matrix product: for small cases and as a test oracle.
    """
    form = ProductForm.of(RetrievalSystem(query, gallery), distance)
    of_query, of_item = np.divmod(np.arange(len(query) * len(gallery)), len(gallery))
    return form.exact(of_query, of_item).reshape(len(query), len(gallery))


@dataclass(frozen=True)
class ProductForm:
    """A system as matrix products: v = left(queries) @ tile(first, last).T increases with the distance.

    Embeddings are used as float32 (float64 is rounded). cosine: v = -cos. inner_product: v = -<q, g> / |q| * scale.
    l2: v = (|g|^2 - 2 <q, g>) * scale^2, with one extra column. length_Q, length_N: Euclidean norms, float64. scale:
    the power of two that brings the longest norm into (0.5, 1], so that no product overflows; 1.0 under cosine.
    """

    distance: str
    query: FloatArray
    gallery: FloatArray
    length_Q: NDArray[np.float64]
    length_N: NDArray[np.float64]
    scale: float

    @classmethod
    def of(cls, system: RetrievalSystem, distance: str) -> "ProductForm":
        """Prepare a system. Cost: one pass over queries and gallery; neither is copied.

        Raises:
            InputError: The distance is unknown, a vector is zero under cosine, or distances overflow float32.
        """
        length_Q = lengths(system.query)
        length_N = length_Q if system.gallery is system.query else lengths(system.gallery)
        return cls.of_lengths(distance, system.query, system.gallery, length_Q, length_N)

    @classmethod
    def of_lengths(
        cls,
        distance: str,
        query: FloatArray,
        gallery: FloatArray,
        length_Q: NDArray[np.float64],
        length_N: NDArray[np.float64],
    ) -> "ProductForm":
        """Like ``of``, for finite embeddings whose ``lengths`` are known. Cost: O(Q + N)."""
        check_distance(distance)
        longest_q, longest_g = float(length_Q.max()), float(length_N.max())
        scale = 1.0
        if distance == "cosine":
            refuse_zero(length_Q, "query")
            refuse_zero(length_N, "gallery")
        elif (longest_q * longest_g if distance == "inner_product" else longest_q + longest_g) > 3e38:
            raise InputError(f"{distance} distances of such long vectors overflow float32; scale the embeddings down")
        else:
            longest = longest_g if distance == "inner_product" else max(longest_q, longest_g)
            scale = float(2.0 ** -np.ceil(np.log2(max(longest, 1e-300))))  # without rounding
        return cls(distance, query, gallery, length_Q, length_N, scale)

    def part(self, first: int, last: int) -> "ProductForm":
        """Return the form of the gallery items first .. last - 1, without a copy."""
        return replace(self, gallery=self.gallery[first:last], length_N=self.length_N[first:last])

    def of_items(self, items: IntArray) -> "ProductForm":
        """Return the form of some gallery items, as a copy."""
        return replace(self, gallery=self.gallery[items], length_N=self.length_N[items])

    def approximate(self, queries: IntArray) -> NDArray[np.float32]:
        """Return the (b, N) float32 distances by products, for estimates that need no exact ones. Cost: 2 b N D."""
        out = np.empty((len(queries), len(self.gallery)), np.float32)
        left, dims = self.left(queries), self.gallery.shape[1]
        for first in range(0, out.shape[1], ROWS):
            last = min(first + ROWS, out.shape[1])
            part = out[:, first:last]
            if self.uses_factors:  # no copy of stored vectors
                factor, offset = self.factors(first, last)
                np.matmul(left[:, :dims], as_float32(self.gallery[first:last]).T, out=part)
                part *= factor
                part += offset
            else:
                np.matmul(left, self.tile(first, last).T, out=part)
        if self.distance == "cosine":
            return np.maximum(out + 1, 0, out=out)
        length = self.length_Q[queries].astype(np.float32)[:, None]
        if self.distance == "inner_product":
            return np.multiply(out, length / np.float32(self.scale), out=out)
        return np.sqrt(np.maximum(out / np.float32(self.scale) ** 2 + length**2, 0), out=out)

    @property
    def columns(self) -> int:
        """Number of columns of ``left`` and ``tile``, D."""
        return self.query.shape[1] + (self.distance == "l2")

    def left(self, queries: IntArray) -> NDArray[np.float32]:
        """Return the (b, D) left-hand side of the product for some queries."""
        rows = as_float32(self.query[queries])
        factor = np.full(len(rows), -2 * self.scale) if self.distance == "l2" else -1 / self._divisor(queries)
        out = np.ones((len(rows), self.columns), np.float32)
        scale_rows(rows, factor, out)
        return out

    def tile(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the (n, D) right-hand side of the product for the gallery items first .. last - 1. Cost: n d."""
        rows = as_float32(self.gallery[first:last])
        length = self.length_N[first:last]
        out = np.empty((len(rows), self.columns), np.float32)
        scale_rows(rows, 1 / length if self.distance == "cosine" else np.full(len(rows), self.scale), out)
        if self.distance == "l2":
            out[:, -1] = (length * self.scale) ** 2
        return out

    @cached_property
    def uses_factors(self) -> bool:
        """Whether products with the stored vectors, scaled by ``factors``, are as exact as products with ``tile``."""
        return bool(self.length_N.max() <= _LONGEST and self._underflow <= self.query.shape[1] * _U / 4)

    @cached_property
    def _factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        offset = np.zeros(len(self.length_N), np.float32)
        if self.distance == "cosine":
            return np.minimum(1 / self.length_N, _LARGEST_FACTOR).astype(np.float32), offset
        if self.distance == "l2":
            offset[:] = (self.length_N * self.scale) ** 2
        return np.full(len(offset), min(self.scale, _LARGEST_FACTOR), np.float32), offset

    def factors(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a (n,) factor and a (n,) offset that turn products with the stored vectors into v, without a copy:

        v = (left(queries)[:, :d] @ gallery[first:last].T) * factor + offset, with the error ``error_of_factors``.
        """
        factor, offset = self._factors
        return factor[first:last], offset[first:last]

    @property
    def _underflow(self) -> float:
        """The part of the error by factors that comes from numbers that are too small for float32."""
        factor = 1 / self.length_N.min() if self.distance == "cosine" else self.scale
        return float(8 * self.query.shape[1] * _SMALLEST_NORMAL * factor)

    def error_of_factors(self, queries: IntArray) -> NDArray[np.float64]:
        """Return ``error`` for v by ``factors``; infinite if the vectors are so long that their products can overflow.

        A sum of d products errs by at most d u |left| |g|, and |left| |g| factor is at most 1 (l2: 2), as with scaled
        vectors: instead of a scaled vector, the factor and its product are rounded, and under l2 the offset and its
        addition err by u and 3 u. So the error of scaled vectors holds except for underflow, which the factor
        amplifies: an entry of either side or a product below the smallest normal number is rounded or flushed to zero.
        """
        if self.length_N.max() > _LONGEST:
            return np.full(len(queries), np.inf)
        return self._error_of_tiles(queries) + self._underflow

    def exact(self, of_query: IntArray, of_item: IntArray) -> NDArray[np.float32]:
        """Return the exact distances of the pairs (of_query[i], of_item[i]). Cost: d operations in float64 per pair."""
        out = np.empty(len(of_query), np.float32)
        of_query, of_item = np.ascontiguousarray(of_query, np.int64), np.ascontiguousarray(of_item, np.int64)
        kind, norms_QN = DISTANCES.index(self.distance), (self.length_Q, self.length_N)
        query, row_of_query = self.query, of_query
        if not is_plain(query):
            queries, row_of_query = np.unique(of_query, return_inverse=True)
            query = as_float32(query[queries])
        if is_plain(self.gallery):
            exact_pairs(query, self.gallery, row_of_query, of_item, of_query, of_item, *norms_QN, kind, out)
            return out
        # The kernel cannot read float16: convert the rows to float32, a bounded number at a time.
        for i in range(0, len(out), ROWS):
            part = slice(i, i + ROWS)
            rows = as_float32(self.gallery[of_item[part]])
            exact_pairs(
                query, rows, row_of_query[part], np.arange(len(rows)), of_query[part], of_item[part], *norms_QN, kind,
                out[part],
            )  # fmt: skip
        return out

    def exact_grid(self, queries: IntArray, items: IntArray) -> NDArray[np.float32]:
        """Return the (b, n) ``exact`` distances of all pairs of b queries and n items, with the same bits.

        Cost: one float64 product, several times faster than pair by pair. Memory: 24 bytes per pair.
        """
        query, gallery = (as_float32(x).astype(np.float64) for x in (self.query[queries], self.gallery[items]))
        products = query @ gallery.T
        out, unsure = np.empty(products.shape, np.float32), np.empty((2, products.size), np.int32)
        d, kind = query.shape[1], DISTANCES.index(self.distance)
        n_unsure = round_grid(products, self.length_Q[queries], self.length_N[items], d, kind, out, unsure)
        if n_unsure:
            rows, columns = unsure[:, :n_unsure]
            out[rows, columns] = self.exact(queries[rows], items[columns])
        return out

    def error(self, queries: IntArray, parts: int = 1) -> NDArray[np.float64]:
        """Return for each query a bound on |v - exact value of v| plus all rounding between exact distances and v.

        It holds for v by ``tile``, and by ``factors`` if ``uses_factors``. parts: as in ``Products``.
        """
        return self._error_of_tiles(queries, parts) + (self._underflow if self.uses_factors else 0)

    def _error_of_tiles(self, queries: IntArray, parts: int = 1) -> NDArray[np.float64]:
        """A product of D columns errs by at most D u |q| |g| in any order of summation, with or without fused
        multiply-add. A sum of products of D / parts columns errs by D / parts u |q| |g|, because the lengths of the
        parts multiply to at most |q| |g| in all, and by u for each addition; a float64 product by its rounding to
        float32. The constants cover the rounding of the operands, of the exact distance and of ``bounds``; the terms
        with _SMALLEST cover distances close to the smallest float32 numbers.
        """
        d = self.query.shape[1]
        roundings = np.ceil(d / parts) + parts - 1 if parts else 1 + d * _WIDE_U / _U
        if self.distance == "l2":
            step = _SMALLEST * self.scale
            return np.full(len(queries), (3 * roundings + 50) * _U + 4 * step + step * step)
        error = np.full(len(queries), (roundings + 10) * _U)
        if self.distance == "inner_product":
            error += _SMALLEST * self.scale / self._divisor(queries)
        return error

    def bounds(
        self, queries: IntArray, of: IntArray, distances: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (low, high) for distances t of the queries queries[of]. Both increase with t.

        An item is certainly closer than t if its v < low, and certainly farther if its v > high.
        """
        low, high = np.empty((2, len(distances)), np.float32)
        _find_bounds(distances, np.ascontiguousarray(of), *self.bounds_of(queries), low, high)
        return low, high

    def bounds_of(
        self, queries: IntArray, parts: int = 1
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], bool]:
        """Return the arguments of ``bounds_of_distance`` for each query: factor, shift, error and is_squared."""
        factor, shift = np.ones(len(queries)), np.zeros(len(queries))
        if self.distance == "cosine":
            shift -= 1
        elif self.distance == "inner_product":
            factor = self.scale / self._divisor(queries)
        else:
            factor *= self.scale
            shift -= (self.length_Q[queries] * self.scale) ** 2
        return factor, shift, self.error(queries, parts), self.distance == "l2"

    def _divisor(self, queries: IntArray) -> NDArray[np.float64]:
        """Return |q|, or 1 for a zero vector."""
        length = self.length_Q[queries]
        return np.where(length == 0, 1, length)


def refuse_zero(length: NDArray[np.float64], side: str) -> None:
    """Raise InputError if a vector has length 0. length: (n,) lengths of all vectors."""
    if not length.all():
        raise InputError(
            f"{side} row {int(np.argmin(length))} is a zero vector, for which the cosine distance is undefined; drop "
            "such rows or use the l2 distance"
        )


@kernel
def bounds_of_distance(t: float, factor: float, shift: float, error: float, is_squared: bool) -> Any:
    """Return (low, high) of ``ProductForm.bounds`` as float32."""
    x = t * factor
    v = (x * x if is_squared else x) + shift
    # The rounding to float32 must not cancel any of the error: it is less than the last two terms.
    margin = error + (abs(v) + error) * (2 * _U) + _SMALLEST
    return np.float32(v - margin), np.float32(v + margin)


@kernel
def _find_bounds(
    distances: Array, of: Array, factor: Array, shift: Array, error: Array, is_squared: bool, low: Array, high: Array
) -> None:
    for i in range(len(distances)):
        q = of[i]
        t = np.float64(distances[i])
        low[i], high[i] = bounds_of_distance(t, factor[q], shift[q], error[q], is_squared)


class Tile(NamedTuple):
    """v = products * factor + offset, as in ``ProductForm``. products: (b, n). factor, offset: (n,)."""

    products: NDArray[np.float32]
    factor: NDArray[np.float32]
    offset: NDArray[np.float32]


# Items whose products are summed at a time.
_PART_ITEMS = 512


class Products:
    """Computes products of some queries with one tile at a time, in reused memory.

    queries: rows of ``form.query``. parts: the columns are multiplied in so many parts, whose products are added, which
    errs less; 0: one product of float64 numbers, rounded to float32.
    """

    def __init__(self, form: ProductForm, queries: IntArray, parts: int = 1) -> None:
        self.form, self.parts = form, parts
        left = form.left(queries)
        left = left[:, : form.query.shape[1]] if form.uses_factors else left
        self.left = left if parts else left.astype(np.float64)
        self.out = np.empty((len(queries), 0), np.float32)
        self.last: tuple[int, int, Tile] | None = None

    def tile(self, first: int, last: int) -> Tile:
        """Return the products with the gallery items first .. last - 1, valid until another tile's. Cost: 2 b n D."""
        if self.last is not None and self.last[:2] == (first, last):
            return self.last[2]
        if self.out.shape[1] != last - first:
            self.out = np.empty((len(self.left), last - first), np.float32)
        if self.form.uses_factors:
            rows = as_float32(self.form.gallery[first:last])
            factor, offset = self.form.factors(first, last)
        else:
            # Stored vectors are too long or too short for float32: scale a copy.
            rows = self.form.tile(first, last)
            factor, offset = np.ones(last - first, np.float32), np.zeros(last - first, np.float32)
        if self.parts == 1:
            np.matmul(self.left, rows.T, out=self.out)
        else:  # part by part, for so few items at a time that their sums stay in the cache
            width = -(-self.left.shape[1] // max(self.parts, 1))
            part = np.empty((len(self.left), min(_PART_ITEMS, len(rows))), self.left.dtype)
            for item in range(0, len(rows), _PART_ITEMS):
                some = rows[item : item + _PART_ITEMS].astype(self.left.dtype, copy=False)
                out, product = self.out[:, item : item + len(some)], part[:, : len(some)]
                for column in range(0, some.shape[1], width):
                    columns = slice(column, column + width)
                    np.matmul(self.left[:, columns], some[:, columns].T, out=product)
                    np.copyto(out, product, "same_kind") if column == 0 else np.add(out, product, out=out)
        self.last = first, last, Tile(self.out, factor, offset)
        return self.last[2]
