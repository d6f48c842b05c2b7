"""Distances: smaller is closer. Exact ones, pair by pair, and float32 products with a proven error bound."""

from ray_backfill.engine.distances.form import DISTANCES, ProductForm, check_distance, exact_distances, normalise

__all__ = ["DISTANCES", "ProductForm", "check_distance", "exact_distances", "normalise"]
