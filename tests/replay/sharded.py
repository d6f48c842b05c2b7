"""Replay over several shards of the gallery in one process."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

import ray_backfill as rb
from ray_backfill.replay.engine import measure_prepared
from ray_backfill.replay.prepare import prepare_replay
from ray_backfill.replay.shard import GalleryShard, LocalShards


def replay_sharded(
    pair: rb.UpgradePair, truth: rb.GroundTruth, orders: dict[str, np.ndarray], points: int, metrics: tuple[str, ...],
    distance: str, cuts: Sequence[int], merge: rb.Merge = rb.RAW, torch_device: str | None = None,
) -> dict[str, rb.Curve]:  # fmt: skip
    """Like ``rb.replay``, with the gallery cut at these positions."""
    prepared = prepare_replay(truth, orders, points, metrics, pair.switch, merge)
    shards = [
        GalleryShard(
            pair.items(a, b), a, prepared.slices_ON[:, a:b], points, distance, torch_device=torch_device, merge=merge
        )
        for a, b in pairwise([0, *cuts, pair.n_gallery])
    ]
    return measure_prepared(prepared, truth, LocalShards(shards), threads=2)
