"""The exact replay engine: it turns a pair, the ground truth and backfill orders into curves."""

from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.engine import check_device, replay, replay_moment, replay_pairs, usable_cpus
from ray_backfill.engine.replay.first import find_first
from ray_backfill.engine.replay.prepare import Served, segment_of_item
from ray_backfill.engine.replay.within import Within, count_within

__all__ = [
    "Curve",
    "Served",
    "Within",
    "check_device",
    "count_within",
    "find_first",
    "replay",
    "replay_moment",
    "replay_pairs",
    "segment_of_item",
    "usable_cpus",
]
