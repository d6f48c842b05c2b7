"""The band that the similarities of a model fill, by which one sees whether two models' distances compare.

The cosines of two random items lie between -0.1 and 0.4 with one model, and between 0.7 and 0.9 with another one. Where
the bands of two models hardly overlap, a raw distance of one says nothing beside a raw distance of the other: all items
of one model come first.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.distances.form import normalise
from ray_backfill.engine.systems import FloatArray, IntArray

_PAIRS = 20_000
# The middle 98 % of the pairs: without copies of one item, and without outliers.
_SHARES = (0.01, 0.99)
# Below this share of the shorter band, distances do not compare. Ordinary pairs of models have 0.8 to 1, models with a
# narrow band beside ordinary ones 0: docs/results/wide.md.
_LEAST_OVERLAP = 0.5


class Band(NamedTuple):
    """The middle 98 % of the similarities (cosine, inner_product) or distances (l2) of random pairs of items."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


def band_of(vectors_Nd: FloatArray, distance: str = "cosine", others_Nd: FloatArray | None = None) -> Band:
    """The band of 20,000 random pairs of different rows; (0, 0) of fewer than two. Zero vectors are left out.

    others_Nd: the items' embeddings by another model, as queries have; by default the same ones.
    """
    n = len(vectors_Nd)
    if n < 2:
        return Band(0.0, 0.0)
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, n, _PAIRS), rng.integers(0, n - 1, _PAIRS)
    j += j >= i
    left = _rows(vectors_Nd, i, distance)
    right = _rows(vectors_Nd if others_Nd is None else others_Nd, j, distance)
    found = np.linalg.norm(left - right, axis=1) if distance == "l2" else np.einsum("pd,pd->p", left, right)
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, _SHARES) if len(found) else (0.0, 0.0)
    return Band(float(low), float(high))


def _rows(vectors_Nd: FloatArray, rows: IntArray, distance: str) -> NDArray[np.float64]:
    """These rows, each read once; of length 1 for cosine, NaN where they are zero."""
    read, places = np.unique(rows, return_inverse=True)
    some = np.asarray(vectors_Nd[read], np.float64)
    with np.errstate(invalid="ignore"):
        return (normalise(some) if distance == "cosine" else some)[places]


def do_compare(one: Band, other: Band) -> bool:
    """Whether the bands of two models overlap by at least half of the shorter one."""
    shorter = min(one.high - one.low, other.high - other.low)
    return min(one.high, other.high) - max(one.low, other.low) >= _LEAST_OVERLAP * shorter
