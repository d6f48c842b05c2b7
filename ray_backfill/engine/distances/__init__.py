"""Distances: smaller is closer. Exact ones, pair by pair, and float32 products with a proven error bound."""

from ray_backfill.engine.distances.exact import lengths
from ray_backfill.engine.distances.form import (
    DISTANCES,
    Band,
    ProductForm,
    band_of,
    bounds_of_distance,
    check_distance,
    do_compare,
    exact_distances,
    normalise,
)

__all__ = [
    "DISTANCES",
    "Band",
    "ProductForm",
    "band_of",
    "bounds_of_distance",
    "check_distance",
    "do_compare",
    "exact_distances",
    "lengths",
    "normalise",
]
