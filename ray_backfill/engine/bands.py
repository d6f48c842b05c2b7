"""Where the similarities of a model lie, and whether those of two models can be compared as they are."""

from typing import NamedTuple

import numpy as np

from ray_backfill.engine.distances import DISTANCES
from ray_backfill.engine.distances.exact import as_float32, exact_pairs, lengths
from ray_backfill.engine.systems import FloatArray

_PAIRS = 20_000
# The middle 98 % of the pairs: without copies of one item, and without outliers.
_SHARES = (0.01, 0.99)
# Below this share of the shorter band, distances do not compare. Ordinary pairs of models have 0.8 to 1, models with a
# narrow band beside ordinary ones 0: docs/results/atlas.md.
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
    rows, i = np.unique(i, return_inverse=True)  # each row is read once
    others, j = np.unique(j, return_inverse=True)
    left, right = as_float32(vectors_Nd[rows]), as_float32((vectors_Nd if others_Nd is None else others_Nd)[others])
    of_left, of_right = lengths(left), lengths(right)
    both = of_left[i] * of_right[j]
    known = np.isfinite(both) & ((both > 0) | (distance != "cosine"))
    i, j, values = i[known], j[known], np.empty(np.count_nonzero(known), np.float32)
    exact_pairs(left, right, i, j, i, j, of_left, of_right, DISTANCES.index(distance), values)
    values = values if distance == "l2" else np.float32(distance == "cosine") - values
    low, high = np.quantile(values, _SHARES) if len(values) else (0.0, 0.0)
    return Band(float(low), float(high))


def do_compare(one: Band, other: Band) -> bool:
    """Whether the bands of two models overlap by at least half of the shorter one."""
    shorter = min(one.high - one.low, other.high - other.low)
    return min(one.high, other.high) - max(one.low, other.low) >= _LEAST_OVERLAP * shorter
