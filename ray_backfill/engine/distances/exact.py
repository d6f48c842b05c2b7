"""Exact distances, pair by pair, in a fixed order of operations: the same bits on every machine and in any batch.

Products of float32 numbers are exact in float64; their sum is rounded to float32 at the end.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel, sum_of, widen
from ray_backfill.engine.systems import FloatArray

# Rows that are read at a time in a pass over a whole gallery: 64 MB as float32 of 256 dimensions.
ROWS = 65_536
# Relative rounding error of one float64 operation.
_U = 2.0**-53


def is_plain(vectors: FloatArray) -> bool:
    """Return whether a compiled loop can read the array without conversion."""
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def as_float32(vectors: FloatArray) -> NDArray[np.float32]:
    if vectors.dtype != np.float16:
        return np.ascontiguousarray(vectors, dtype=np.float32)
    out = np.empty(vectors.shape, np.float32)
    widen(np.ascontiguousarray(vectors).view(np.int16).ravel(), out.ravel())
    return out


def lengths(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the (N,) Euclidean norms, computed in bounded pieces."""
    out = np.empty(len(vectors))
    for i in range(0, len(vectors), ROWS):
        _norms(as_float32(vectors[i : i + ROWS]), out[i : i + ROWS])
    return out


@kernel
def _norms(rows: Array, out: Array) -> None:
    room = np.empty(rows.shape[1] // 4)
    for i in range(len(rows)):
        out[i] = np.sqrt(_dot(rows, i, rows, i, room))


@kernel
def scale_rows(rows: Array, factor: Array, out: Array) -> None:
    for i in range(len(rows)):
        for j in range(rows.shape[1]):
            out[i, j] = np.float32(np.float64(rows[i, j]) * factor[i])


@kernel
def exact_pairs(
    query: Array, gallery: Array, row_of_query: Array, row_of_item: Array, of_query: Array, of_item: Array,
    length_Q: Array, length_N: Array, kind: int, out: Array,
) -> None:  # fmt: skip
    """kind: index into DISTANCES. row_of_...: rows of ``query`` and ``gallery``. of_...: indices into the lengths."""
    room = np.empty(query.shape[1] // 4)
    # A branch in the loop would keep the product from being compiled into it.
    if kind == 0:
        for i in range(len(out)):
            dot = _dot(query, row_of_query[i], gallery, row_of_item[i], room)
            cosine = np.float32(dot / (length_Q[of_query[i]] * length_N[of_item[i]]))
            out[i] = min(max(np.float32(1) - cosine, np.float32(0)), np.float32(2))
    elif kind == 1:
        for i in range(len(out)):
            out[i] = np.sqrt(_squared_difference(query, row_of_query[i], gallery, row_of_item[i], room))
    else:
        for i in range(len(out)):
            out[i] = np.float32(0) - np.float32(_dot(query, row_of_query[i], gallery, row_of_item[i], room))


@kernel
def round_grid(products: Array, length_Q: Array, length_N: Array, d: int, kind: int, out: Array, unsure: Array) -> int:
    """Round float64 inner products to the distances of ``exact_pairs``, where any order of summation gives the same.

    Two sums of d products differ by at most 2 d u |q| |g|. If both ends of that range round to the same float32, it is
    the exact distance. Under l2, the squares of the lengths and of the differences err in the same way.

    products, out: (b, n). kind: index into DISTANCES. unsure: (2, b * n), receives (row, column) of the other pairs;
    their number is returned.
    """
    n_unsure = 0
    upper = np.empty(products.shape[1], np.float32)
    for i in range(products.shape[0]):
        q = length_Q[i]
        for j in range(products.shape[1]):
            p, g = products[i, j], length_N[j]
            if kind == 0:
                x, error = p / (q * g), (2 * d + 16) * _U
                out[i, j], upper[j] = np.float32(x - error), np.float32(x + error)
            elif kind == 1:
                x, error = q * q + g * g - 2 * p, (4 * d + 32) * _U * (q + g) * (q + g)
                out[i, j], upper[j] = np.float32(np.sqrt(max(x - error, 0.0))), np.float32(np.sqrt(x + error))
            else:
                error = (2 * d + 16) * _U * q * g
                out[i, j], upper[j] = np.float32(p - error), np.float32(p + error)
        for j in range(products.shape[1]):
            if out[i, j] != upper[j]:
                unsure[0, n_unsure], unsure[1, n_unsure] = i, j
                n_unsure += 1
            if kind == 0:
                out[i, j] = min(max(np.float32(1) - out[i, j], np.float32(0)), np.float32(2))
            elif kind == 2:
                out[i, j] = np.float32(0) - out[i, j]
    return n_unsure


# Sums in float64, in a fixed order that suits vector registers: four terms at a time, a quarter of the vector apart.
# ``room``: float64 buffer, a quarter of the vector long. Rows are given by number, because a slice counts
# references, and numbers are unsigned, because signed ones are tested for counting from the end: 34 instead of 86 ns.


@kernel
def _dot(a: Array, row_a: int, b: Array, row_b: int, room: Array) -> float:
    h, r, s = np.uint64(len(room)), np.uint64(row_a), np.uint64(row_b)
    for i in range(h):
        j, k, m = h + i, h + h + i, h + h + h + i
        x = np.float64(a[r, i]) * np.float64(b[s, i]) + np.float64(a[r, j]) * np.float64(b[s, j])
        y = np.float64(a[r, k]) * np.float64(b[s, k]) + np.float64(a[r, m]) * np.float64(b[s, m])
        room[i] = x + y
    rest = 0.0
    for i in range(h + h + h + h, np.uint64(a.shape[1])):
        rest += np.float64(a[r, i]) * np.float64(b[s, i])
    return rest + sum_of(room)


@kernel
def _squared_difference(a: Array, row_a: int, b: Array, row_b: int, room: Array) -> float:
    h, r, s = np.uint64(len(room)), np.uint64(row_a), np.uint64(row_b)
    for i in range(h):
        j, k, m = h + i, h + h + i, h + h + h + i
        w = np.float64(a[r, i]) - np.float64(b[s, i])
        x = np.float64(a[r, j]) - np.float64(b[s, j])
        y = np.float64(a[r, k]) - np.float64(b[s, k])
        z = np.float64(a[r, m]) - np.float64(b[s, m])
        room[i] = (w * w + x * x) + (y * y + z * z)
    rest = 0.0
    for i in range(h + h + h + h, np.uint64(a.shape[1])):
        w = np.float64(a[r, i]) - np.float64(b[s, i])
        rest += w * w
    return rest + sum_of(room)
