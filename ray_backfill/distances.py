"""Distances; smaller is closer. The only place that knows what cosine, l2 and inner product are.

Each distance has two faces. ``exact`` computes one pair at a time, accumulated in float64 in a fixed order and rounded
to float32: the same bits on every machine, alone or in any batch, so that equal vectors tie. ``ProductForm`` turns a
system into float32 matrix products v, whose error has a proven bound; where the bound does not decide a comparison, the
exact distance does. The pattern is that of adaptive geometric predicates (Shewchuk 1997): a filter, then the truth.

Shapes: Q queries, N gallery items, d dimensions, D columns of the product (d, or d + 1 under l2), n items of a tile.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.kernels import Array, kernel
from ray_backfill.systems import FloatArray, IntArray, RetrievalSystem

DISTANCES = ("cosine", "l2", "inner_product")

# Relative rounding error of one float32 operation.
_U = 2.0**-24
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
# Vectors up to this length, times 2, have products that float32 holds; a factor up to this is a float32 number.
_LONGEST = _LARGEST_FACTOR = 1e38
# Rows that are read at a time where a whole gallery is gone through: 64 MB as float32 of 256 dimensions.
_ROWS = 65_536


def check_distance(distance: str) -> None:
    """Raises InputError for an unknown name; the message lists the known ones."""
    if distance not in DISTANCES:
        raise InputError(f"unknown distance {distance!r}; known: {', '.join(DISTANCES)}")


def normalise(vectors: FloatArray) -> NDArray[np.float64]:
    """Rows scaled to length 1, as a new float64 array."""
    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def exact_distances(query: FloatArray, gallery: FloatArray, distance: str) -> NDArray[np.float32]:
    """(Q, N) float32 exact distances of (Q, d) queries to (N, d) gallery vectors, pair by pair.

    cosine: 1 - cos, in [0, 2]. l2: Euclidean, not squared. inner_product: minus the inner product.
    Cost: Q N d operations in float64, about 20 times a matrix product: for small cases and as an oracle.
    """
    form = ProductForm.of(RetrievalSystem(query, gallery), distance)
    of_query, of_item = np.divmod(np.arange(len(query) * len(gallery)), len(gallery))
    return form.exact(of_query, of_item).reshape(len(query), len(gallery))


@dataclass(frozen=True)
class ProductForm:
    """A system as matrix products: v = left(queries) @ tile(first, last).T rises with the distance.

    Embeddings count as float32; float64 ones are rounded. cosine: v = -cos. inner_product: v = -<q, g> / |q| * scale.
    l2: v = (|g|^2 - 2 <q, g>) * scale^2, by one column more. length_Q, length_N: Euclidean norms, float64. scale: the
    power of two that brings the longest vector's norm into (0.5, 1], so that no product overflows; 1.0 under cosine.
    """

    distance: str
    query: FloatArray
    gallery: FloatArray
    length_Q: NDArray[np.float64]
    length_N: NDArray[np.float64]
    scale: float

    @classmethod
    def of(cls, system: RetrievalSystem, distance: str) -> "ProductForm":
        """Cost: one pass over queries and gallery; no copy of either.

        Raises:
            InputError: unknown distance, a zero vector under cosine, distances that overflow float32.
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
        """``of`` for two sides that are known to be finite, and whose ``lengths`` are known. Cost: O(Q + N)."""
        check_distance(distance)
        longest_q, longest_g = float(length_Q.max()), float(length_N.max())
        scale = 1.0
        if distance == "cosine":
            _refuse_zero_vectors(length_Q, length_N)
        elif (longest_q * longest_g if distance == "inner_product" else longest_q + longest_g) > 3e38:
            raise InputError(f"{distance} distances of vectors this long overflow float32; scale the embeddings down")
        else:
            scale = _power_of_two(longest_g if distance == "inner_product" else max(longest_q, longest_g))
        return cls(distance, query, gallery, length_Q, length_N, scale)

    @property
    def columns(self) -> int:
        """D, the columns of ``left`` and ``tile``."""
        return self.query.shape[1] + (self.distance == "l2")

    def left(self, queries: IntArray) -> NDArray[np.float32]:
        """(b, D) left-hand side of the product for some queries."""
        rows = _as_float32(self.query[queries])
        factor = np.full(len(rows), -2 * self.scale) if self.distance == "l2" else -1 / self._divisor(queries)
        out = np.ones((len(rows), self.columns), np.float32)
        _scale_rows(rows, factor, out)
        return out

    def tile(self, first: int, last: int) -> NDArray[np.float32]:
        """(n, D) right-hand side of the product for the gallery items first .. last - 1. Cost: n d."""
        rows = _as_float32(self.gallery[first:last])
        length = self.length_N[first:last]
        out = np.empty((len(rows), self.columns), np.float32)
        _scale_rows(rows, 1 / length if self.distance == "cosine" else np.full(len(rows), self.scale), out)
        if self.distance == "l2":
            out[:, -1] = (length * self.scale) ** 2
        return out

    def factors(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(n,) factor and (n,) offset that make v of products with the vectors as they are, without a copy of them:

        v = (left(queries)[:, :d] @ gallery[first:last].T) * factor + offset, with the error ``error_of_factors``.
        """
        length = self.length_N[first:last]
        offset = np.zeros(len(length), np.float32)
        if self.distance == "cosine":
            return np.minimum(1 / length, _LARGEST_FACTOR).astype(np.float32), offset
        if self.distance == "l2":
            offset[:] = (length * self.scale) ** 2
        return np.full(len(length), min(self.scale, _LARGEST_FACTOR), np.float32), offset

    def error_of_factors(self, queries: IntArray) -> NDArray[np.float64]:
        """``error`` for v by ``factors``; infinite if the vectors are so long that their products can overflow.

        A sum of d products errs by at most d u |left| |g|, and |left| |g| factor is at most 1 (l2: 2), as where the
        vectors are scaled before: the rounding of a scaled vector is that of the factor and of its product now, and the
        offset and its addition err by u and 3 u under l2. So ``error`` holds, but for what underflows, which the factor
        makes larger: an entry of either side or a product, each below the smallest normal number, whether it is rounded
        or taken for zero.
        """
        if self.length_N.max() > _LONGEST:
            return np.full(len(queries), np.inf)
        factor = 1 / self.length_N.min() if self.distance == "cosine" else self.scale
        return self.error(queries) + 8 * self.query.shape[1] * _SMALLEST_NORMAL * factor

    def exact(self, of_query: IntArray, of_item: IntArray) -> NDArray[np.float32]:
        """Exact distances of the pairs (of_query[i], of_item[i]). Cost: d operations in float64 for each."""
        out = np.empty(len(of_query), np.float32)
        kind, norms_QN = DISTANCES.index(self.distance), (self.length_Q, self.length_N)
        query, row_of_query = self.query, of_query
        if not _is_plain(query):
            queries, row_of_query = np.unique(of_query, return_inverse=True)
            query = _as_float32(query[queries])
        if _is_plain(self.gallery):
            _exact_pairs(query, self.gallery, row_of_query, of_item, of_query, of_item, *norms_QN, kind, out)
            return out
        # The kernel knows no float16: bring the rows in as float32, a bounded number at a time.
        for i in range(0, len(out), _ROWS):
            part = slice(i, i + _ROWS)
            rows = _as_float32(self.gallery[of_item[part]])
            _exact_pairs(
                query, rows, row_of_query[part], np.arange(len(rows)), of_query[part], of_item[part], *norms_QN, kind,
                out[part],
            )  # fmt: skip
        return out

    def error(self, queries: IntArray) -> NDArray[np.float64]:
        """For each of the queries: |v - its exact value| plus all rounding from an exact distance to v is below it.

        A product of D columns errs by at most D u |q| |g| in any order of summation, with or without fused
        multiply-add. The constants hold the rounding of the operands, of the exact distance and of ``bounds``; the
        terms with _SMALLEST that of distances which float32 can hardly tell from zero.
        """
        d = self.query.shape[1]
        if self.distance == "l2":
            step = _SMALLEST * self.scale
            return np.full(len(queries), (3 * d + 50) * _U + 4 * step + step * step)
        error = np.full(len(queries), (d + 10) * _U)
        if self.distance == "inner_product":
            error += _SMALLEST * self.scale / self._divisor(queries)
        return error

    def bounds(
        self, of_query: IntArray, distances: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """For distances t of the queries of_query: (low, high), such that an item is

        surely closer than t if its v < low, and surely farther if its v > high. Both rise with t.
        """
        t = distances.astype(np.float64)
        if self.distance == "cosine":
            v = t - 1
        elif self.distance == "inner_product":
            v = t * self.scale / self._divisor(of_query)
        else:
            v = (t * self.scale) ** 2 - (self.length_Q[of_query] * self.scale) ** 2
        error = self.error(of_query)
        with np.errstate(over="ignore"):
            low = np.nextafter((v - error).astype(np.float32), np.float32(-np.inf))
            high = np.nextafter((v + error).astype(np.float32), np.float32(np.inf))
        return low, high

    def _divisor(self, queries: IntArray) -> NDArray[np.float64]:
        """|q|, or 1 for a zero vector."""
        length = self.length_Q[queries]
        return np.where(length == 0, 1, length)


class Products:
    """The products of some queries with tile after tile, in one piece of memory. queries: rows of ``form.query``."""

    def __init__(self, form: ProductForm, queries: IntArray) -> None:
        self.form, self.queries = form, queries
        self.left = form.left(queries)
        self.out = np.empty((len(queries), 0), np.float32)

    def tile(self, first: int, last: int) -> NDArray[np.float32]:
        """(b, n) v of the gallery items first .. last - 1; valid until the next call. Cost: 2 b n D."""
        if self.out.shape[1] != last - first:
            self.out = np.empty((len(self.queries), last - first), np.float32)
        return np.matmul(self.left, self.form.tile(first, last).T, out=self.out)


def _refuse_zero_vectors(length_Q: NDArray[np.float64], length_N: NDArray[np.float64]) -> None:
    for side, length in (("query", length_Q), ("gallery", length_N)):
        if not length.all():
            raise InputError(
                f"{side} row {int(np.argmin(length))} is a zero vector, which has no cosine distance; "
                "drop such rows or use the l2 distance"
            )


def _power_of_two(longest: float) -> float:
    """The scale that brings ``longest`` into (0.5, 1] without any rounding."""
    return float(2.0 ** -np.ceil(np.log2(max(longest, 1e-300))))


def _is_plain(vectors: FloatArray) -> bool:
    """Whether a compiled loop can read the array as it is."""
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def _as_float32(vectors: FloatArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def lengths(vectors: FloatArray) -> NDArray[np.float64]:
    """(N,) Euclidean norms, read in bounded pieces."""
    out = np.empty(len(vectors))
    for i in range(0, len(vectors), _ROWS):
        _norms(_as_float32(vectors[i : i + _ROWS]), out[i : i + _ROWS])
    return out


@kernel
def _norms(rows: Array, out: Array) -> None:
    room = np.empty(rows.shape[1] // 4)
    for i in range(len(rows)):
        out[i] = np.sqrt(_dot(rows[i], rows[i], room))


@kernel
def _scale_rows(rows: Array, factor: Array, out: Array) -> None:
    for i in range(len(rows)):
        for j in range(rows.shape[1]):
            out[i, j] = np.float32(np.float64(rows[i, j]) * factor[i])


@kernel
def _exact_pairs(
    query: Array, gallery: Array, row_of_query: Array, row_of_item: Array, of_query: Array, of_item: Array,
    length_Q: Array, length_N: Array, kind: int, out: Array,
) -> None:  # fmt: skip
    """kind: place in DISTANCES. row_of_...: rows of ``query`` and ``gallery``; of_...: places in the lengths."""
    room = np.empty(query.shape[1] // 4)
    for i in range(len(out)):
        q, g = query[row_of_query[i]], gallery[row_of_item[i]]
        if kind == 0:
            cosine = np.float32(_dot(q, g, room) / (length_Q[of_query[i]] * length_N[of_item[i]]))
            out[i] = min(max(np.float32(1) - cosine, np.float32(0)), np.float32(2))
        elif kind == 1:
            out[i] = np.float32(np.sqrt(_squared_difference(q, g, room)))
        else:
            out[i] = np.float32(0) - np.float32(_dot(q, g, room))


# Sums in float64 in a fixed order that fills vector registers: four terms, a quarter of the vector apart, at a time.
# ``room``: float64, a quarter of the vector long.


@kernel
def _dot(a: Array, b: Array, room: Array) -> float:
    h = len(room)
    for i in range(h):
        x = np.float64(a[i]) * np.float64(b[i]) + np.float64(a[h + i]) * np.float64(b[h + i])
        y = np.float64(a[2 * h + i]) * np.float64(b[2 * h + i]) + np.float64(a[3 * h + i]) * np.float64(b[3 * h + i])
        room[i] = x + y
    rest = 0.0
    for i in range(4 * h, len(a)):
        rest += np.float64(a[i]) * np.float64(b[i])
    return rest + _sum(room)


@kernel
def _squared_difference(a: Array, b: Array, room: Array) -> float:
    h = len(room)
    for i in range(h):
        w = np.float64(a[i]) - np.float64(b[i])
        x = np.float64(a[h + i]) - np.float64(b[h + i])
        y = np.float64(a[2 * h + i]) - np.float64(b[2 * h + i])
        z = np.float64(a[3 * h + i]) - np.float64(b[3 * h + i])
        room[i] = (w * w + x * x) + (y * y + z * z)
    rest = 0.0
    for i in range(4 * h, len(a)):
        w = np.float64(a[i]) - np.float64(b[i])
        rest += w * w
    return rest + _sum(room)


@kernel
def _sum(terms: Array) -> float:
    """Eight running sums, so that an addition need not wait for the one before it."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = len(terms) - len(terms) % 8
    for i in range(0, whole, 8):
        s0 += terms[i]
        s1 += terms[i + 1]
        s2 += terms[i + 2]
        s3 += terms[i + 3]
        s4 += terms[i + 4]
        s5 += terms[i + 5]
        s6 += terms[i + 6]
        s7 += terms[i + 7]
    for i in range(whole, len(terms)):
        s0 += terms[i]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
