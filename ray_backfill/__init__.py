"""ray_backfill: train metric-compatible heads and replay online backfills of image-retrieval galleries.

Importing this loads numpy and pandas only: no torch, no Ray.
"""

from ray_backfill.errors import InputError
from ray_backfill.merges import RAW, Merge, MergeKind, ScoreMap, all_merges, fit_merge
from ray_backfill.orders import GalleryColumns, Order, all_orders, make_order
from ray_backfill.replay import Curve, replay, replay_moment
from ray_backfill.systems import GroundTruth, RetrievalSystem, UpgradePair

__version__ = "0.1.0"

__all__ = [
    "RAW",
    "Curve",
    "GalleryColumns",
    "GroundTruth",
    "InputError",
    "Merge",
    "MergeKind",
    "Order",
    "RetrievalSystem",
    "ScoreMap",
    "UpgradePair",
    "all_merges",
    "all_orders",
    "fit_merge",
    "make_order",
    "replay",
    "replay_moment",
]
