"""Replay over several shards of the gallery in one process."""

from collections.abc import Sequence
from itertools import pairwise

import ray_backfill as rb
from ray_backfill.engine.replay.engine import measure_prepared
from ray_backfill.engine.replay.prepare import Served, prepare_replay
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, make_forms


def replay_sharded(
    systems: Sequence[rb.RetrievalSystem], served: Sequence[Served], truth: rb.GroundTruth, points: int,
    metrics: Sequence[str], distance: str, cuts: Sequence[int], torch_device: str | None = None,
) -> list[dict[str, rb.Curve]]:  # fmt: skip
    """Like ``replay_pairs``, with the gallery cut at these positions."""
    prepared, shards = prepare_replay(truth, served, points, metrics), []
    for a, b in pairwise([0, *cuts, len(systems[0].gallery)]):
        part = [rb.RetrievalSystem(system.query, system.gallery[a:b]) for system in systems]
        shards.append(GalleryShard(make_forms(part, prepared, distance), a, prepared, torch_device=torch_device))
    return measure_prepared(prepared, truth, LocalShards(shards), threads=2)
