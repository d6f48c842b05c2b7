"""The exact replay engine: it turns a pair, the ground truth and backfill orders into curves."""

from ray_backfill.replay.curve import Curve
from ray_backfill.replay.engine import check_device, replay, replay_pairs, usable_cpus
from ray_backfill.replay.moment import replay_moment
from ray_backfill.replay.prepare import Served

__all__ = ["Curve", "Served", "check_device", "replay", "replay_moment", "replay_pairs", "usable_cpus"]
