"""The exact engine: a pair, the truth and orders in, curves out."""

from ray_backfill.replay.curve import Curve
from ray_backfill.replay.engine import replay

__all__ = ["Curve", "replay"]
