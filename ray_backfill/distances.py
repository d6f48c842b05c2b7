"""Distances: smaller is closer. This is the only module that defines cosine, l2 and inner product.

Each distance is computed in two ways. ``exact`` takes one pair at a time, accumulated in float64 in a fixed order
and rounded to float32: the same bits on every machine and in any batch, so that equal vectors tie. ``ProductForm``
turns a system into float32 matrix products v with a proven error bound; where the bound does not decide a comparison,
the exact distance does. Adaptive geometric predicates (Shewchuk 1997) use the same pattern: a filter, then exactness.

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
# Products of vectors up to this length, times 2, do not overflow float32; neither does a factor up to this.
_LONGEST = _LARGEST_FACTOR = 1e38
# Rows that are read at a time in a pass over a whole gallery: 64 MB as float32 of 256 dimensions.
_ROWS = 65_536


def check_distance(distance: str) -> None:
    """Raise InputError for an unknown name; the message lists the known ones."""
    if distance not in DISTANCES:
        raise InputError(f"unknown distance {distance!r}; known: {', '.join(DISTANCES)}")


def normalise(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the rows scaled to length 1, as a new float64 array."""
    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


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
            _refuse_zero_vectors(length_Q, length_N)
        elif (longest_q * longest_g if distance == "inner_product" else longest_q + longest_g) > 3e38:
            raise InputError(f"{distance} distances of such long vectors overflow float32; scale the embeddings down")
        else:
            scale = _power_of_two(longest_g if distance == "inner_product" else max(longest_q, longest_g))
        return cls(distance, query, gallery, length_Q, length_N, scale)

    @property
    def columns(self) -> int:
        """Number of columns of ``left`` and ``tile``, D."""
        return self.query.shape[1] + (self.distance == "l2")

    def left(self, queries: IntArray) -> NDArray[np.float32]:
        """Return the (b, D) left-hand side of the product for some queries."""
        rows = _as_float32(self.query[queries])
        factor = np.full(len(rows), -2 * self.scale) if self.distance == "l2" else -1 / self._divisor(queries)
        out = np.ones((len(rows), self.columns), np.float32)
        _scale_rows(rows, factor, out)
        return out

    def tile(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the (n, D) right-hand side of the product for the gallery items first .. last - 1. Cost: n d."""
        rows = _as_float32(self.gallery[first:last])
        length = self.length_N[first:last]
        out = np.empty((len(rows), self.columns), np.float32)
        _scale_rows(rows, 1 / length if self.distance == "cosine" else np.full(len(rows), self.scale), out)
        if self.distance == "l2":
            out[:, -1] = (length * self.scale) ** 2
        return out

    def factors(self, first: int, last: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a (n,) factor and a (n,) offset that turn products with the stored vectors into v, without a copy:

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
        """Return ``error`` for v by ``factors``; infinite if the vectors are so long that their products can overflow.

        A sum of d products errs by at most d u |left| |g|, and |left| |g| factor is at most 1 (l2: 2), as with scaled
        vectors: instead of a scaled vector, the factor and its product are rounded, and under l2 the offset and its
        addition err by u and 3 u. So ``error`` holds except for underflow, which the factor amplifies: an entry of
        either side or a product below the smallest normal number is rounded or flushed to zero.
        """
        if self.length_N.max() > _LONGEST:
            return np.full(len(queries), np.inf)
        factor = 1 / self.length_N.min() if self.distance == "cosine" else self.scale
        return self.error(queries) + 8 * self.query.shape[1] * _SMALLEST_NORMAL * factor

    def exact(self, of_query: IntArray, of_item: IntArray) -> NDArray[np.float32]:
        """Return the exact distances of the pairs (of_query[i], of_item[i]). Cost: d operations in float64 per pair."""
        out = np.empty(len(of_query), np.float32)
        kind, norms_QN = DISTANCES.index(self.distance), (self.length_Q, self.length_N)
        query, row_of_query = self.query, of_query
        if not _is_plain(query):
            queries, row_of_query = np.unique(of_query, return_inverse=True)
            query = _as_float32(query[queries])
        if _is_plain(self.gallery):
            _exact_pairs(query, self.gallery, row_of_query, of_item, of_query, of_item, *norms_QN, kind, out)
            return out
        # The kernel cannot read float16: convert the rows to float32, a bounded number at a time.
        for i in range(0, len(out), _ROWS):
            part = slice(i, i + _ROWS)
            rows = _as_float32(self.gallery[of_item[part]])
            _exact_pairs(
                query, rows, row_of_query[part], np.arange(len(rows)), of_query[part], of_item[part], *norms_QN, kind,
                out[part],
            )  # fmt: skip
        return out

    def error(self, queries: IntArray) -> NDArray[np.float64]:
        """Return for each query a bound on |v - exact value of v| plus all rounding between exact distances and v.

        A product of D columns errs by at most D u |q| |g| in any order of summation, with or without fused
        multiply-add. The constants cover the rounding of the operands, of the exact distance and of ``bounds``; the
        terms with _SMALLEST cover distances close to the smallest float32 numbers.
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
        """Return (low, high) for distances t of the queries of_query. Both increase with t.

        An item is certainly closer than t if its v < low, and certainly farther if its v > high.
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
        """Return |q|, or 1 for a zero vector."""
        length = self.length_Q[queries]
        return np.where(length == 0, 1, length)


class Products:
    """Computes products of some queries with one tile at a time, in reused memory. queries: rows of ``form.query``."""

    def __init__(self, form: ProductForm, queries: IntArray) -> None:
        self.form, self.queries = form, queries
        self.left = form.left(queries)
        self.out = np.empty((len(queries), 0), np.float32)

    def tile(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the (b, n) v of the gallery items first .. last - 1, valid until the next call. Cost: 2 b n D."""
        if self.out.shape[1] != last - first:
            self.out = np.empty((len(self.queries), last - first), np.float32)
        return np.matmul(self.left, self.form.tile(first, last).T, out=self.out)


def _refuse_zero_vectors(length_Q: NDArray[np.float64], length_N: NDArray[np.float64]) -> None:
    for side, length in (("query", length_Q), ("gallery", length_N)):
        if not length.all():
            raise InputError(
                f"{side} row {int(np.argmin(length))} is a zero vector, for which the cosine distance is undefined; "
                "drop such rows or use the l2 distance"
            )


def _power_of_two(longest: float) -> float:
    """Return the power of two that scales ``longest`` into (0.5, 1], without rounding."""
    return float(2.0 ** -np.ceil(np.log2(max(longest, 1e-300))))


def _is_plain(vectors: FloatArray) -> bool:
    """Return whether a compiled loop can read the array without conversion."""
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def _as_float32(vectors: FloatArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def lengths(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the (N,) Euclidean norms, computed in bounded pieces."""
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
    """kind: index into DISTANCES. row_of_...: rows of ``query`` and ``gallery``. of_...: indices into the lengths."""
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


# Sums in float64, in a fixed order that suits vector registers: four terms at a time, a quarter of the vector apart.
# ``room``: float64 buffer, a quarter of the vector long.


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
    """Sum with eight running sums, so that additions do not wait for each other."""
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
