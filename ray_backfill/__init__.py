"""ray_backfill: train metric-compatible heads and replay online backfills of image-retrieval galleries.

Importing this loads numpy and pandas only: no torch, no Ray.
"""

from ray_backfill.errors import InputError
from ray_backfill.orders import ORDERS, GalleryColumns, make_order
from ray_backfill.replay import Curve, replay
from ray_backfill.systems import GroundTruth, RetrievalSystem, UpgradePair

__version__ = "0.1.0"

__all__ = [
    "ORDERS",
    "Curve",
    "GalleryColumns",
    "GroundTruth",
    "InputError",
    "RetrievalSystem",
    "UpgradePair",
    "make_order",
    "replay",
]
