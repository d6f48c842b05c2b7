"""Distances: smaller is closer. Exact ones, pair by pair, and float32 products with a proven error bound."""

from ray_backfill.engine.distances.exact import lengths
from ray_backfill.engine.distances.form import (
    DISTANCES,
    ProductForm,
    bounds_of_distance,
    check_distance,
    exact_distances,
    normalise,
    refuse_zero,
)

__all__ = [
    "DISTANCES",
    "ProductForm",
    "bounds_of_distance",
    "check_distance",
    "exact_distances",
    "lengths",
    "normalise",
    "refuse_zero",
]
