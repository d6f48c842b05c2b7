"""Tiles of distances; smaller is closer. The only place that knows what cosine, l2 and inner product are.

A distance is accumulated in float64 and rounded to float32, so that two equal gallery vectors have equal distances
whatever the shape of the tile they stand in: a sum in float32 depends on how a BLAS blocks it, and would break such
ties at random.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.systems import FloatArray, RetrievalSystem

DISTANCES = ("cosine", "l2", "inner_product")

# Below this share of |q|^2 + |g|^2 a squared l2 distance has lost six of its fifteen digits to cancellation.
_CANCELLED = 1e-6
# Such pairs that are mended at a time: 65,536 pairs of 128 dimensions are 64 MB.
_PAIRS = 65_536


def check_distance(distance: str) -> None:
    """Raises InputError for an unknown name; the message lists the known ones."""
    if distance not in DISTANCES:
        raise InputError(f"unknown distance {distance!r}; known: {', '.join(DISTANCES)}")


def check_system(system: RetrievalSystem, distance: str) -> None:
    """Raises InputError where ``distance`` is undefined for ``system``: a zero vector has no angle."""
    check_distance(distance)
    if distance != "cosine":
        return
    for side, array in (("query", system.query), ("gallery", system.gallery)):
        nonzero_rows = array.any(axis=1)
        if not nonzero_rows.all():
            raise InputError(
                f"{side} row {int(np.argmin(nonzero_rows))} is a zero vector, which has no cosine distance; "
                "drop such rows or use the l2 distance"
            )


def normalise(vectors: FloatArray) -> NDArray[np.float64]:
    """Rows scaled to length 1, as a new float64 array."""
    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def distance_tile(query: FloatArray, gallery: FloatArray, distance: str) -> NDArray[np.float32]:
    """(Q, N) float32 distances of (Q, d) queries to (N, d) gallery vectors.

    cosine: 1 - cos, in [0, 2]. l2: Euclidean, not squared. inner_product: minus the inner product.
    Cost: 2 Q N d operations in float64, 8 (Q + N) d bytes of copies and 12 Q N bytes of results.
    """
    check_distance(distance)
    if distance == "cosine":
        similarity = (normalise(query) @ normalise(gallery).T).astype(np.float32)
        return np.clip(np.float32(1) - similarity, np.float32(0), np.float32(2))
    q, g = query.astype(np.float64), gallery.astype(np.float64)
    product = q @ g.T
    if distance == "inner_product":
        return -product.astype(np.float32)
    lengths = (q * q).sum(axis=1)[:, None] + (g * g).sum(axis=1)[None, :]
    squared = lengths - 2 * product
    # Where the difference is small, the lengths cancel and leave rounding noise: take it coordinate by coordinate.
    near_q, near_g = np.nonzero(squared < _CANCELLED * lengths)
    for i in range(0, len(near_q), _PAIRS):
        rows, columns = near_q[i : i + _PAIRS], near_g[i : i + _PAIRS]
        squared[rows, columns] = ((q[rows] - g[columns]) ** 2).sum(axis=1)
    root: NDArray[np.float32] = np.sqrt(squared).astype(np.float32)
    return root
