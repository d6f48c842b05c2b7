"""The exact replay engine: it turns a pair, the ground truth and backfill orders into curves."""

from ray_backfill.replay.curve import Curve
from ray_backfill.replay.engine import check_device, replay, usable_cpus
from ray_backfill.replay.moment import replay_moment

__all__ = ["Curve", "check_device", "replay", "replay_moment", "usable_cpus"]
