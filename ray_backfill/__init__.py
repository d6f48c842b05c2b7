"""ray_backfill: train metric-compatible heads and replay online backfills of image-retrieval galleries.

Importing this loads numpy and pandas only: no torch, no Ray.
"""

from ray_backfill.errors import InputError
from ray_backfill.merges import MERGES, RAW, Merge, ScoreMap, fit_merge
from ray_backfill.orders import ORDERS, GalleryColumns, make_order
from ray_backfill.replay import Curve, replay, replay_moment
from ray_backfill.systems import GroundTruth, RetrievalSystem, UpgradePair

__version__ = "0.1.0"

__all__ = [
    "MERGES",
    "ORDERS",
    "RAW",
    "Curve",
    "GalleryColumns",
    "GroundTruth",
    "InputError",
    "Merge",
    "RetrievalSystem",
    "ScoreMap",
    "UpgradePair",
    "fit_merge",
    "make_order",
    "replay",
    "replay_moment",
]
