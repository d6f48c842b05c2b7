"""Replay over several shards of the gallery in one process."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

import ray_backfill as rb
from ray_backfill.engine.replay.engine import measure_prepared
from ray_backfill.engine.replay.prepare import Prepared, Served, prepare_replay
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, make_forms


def prepare_pair(
    pair: rb.UpgradePair, truth: rb.GroundTruth, orders: dict[str, np.ndarray], points: int, metrics: Sequence[str],
    merge: rb.Merge = rb.RAW,
) -> tuple[list[rb.RetrievalSystem], Prepared]:  # fmt: skip
    """The systems of a single pair, and its replay."""
    systems = [pair.backward] if pair.backward is pair.forward else [pair.backward, pair.forward]
    served = Served(0, len(systems) - 1, orders, pair.switch, merge)
    return systems, prepare_replay(truth, [served], points, metrics)


def replay_sharded(
    pair: rb.UpgradePair, truth: rb.GroundTruth, orders: dict[str, np.ndarray], points: int, metrics: tuple[str, ...],
    distance: str, cuts: Sequence[int], merge: rb.Merge = rb.RAW, torch_device: str | None = None,
) -> dict[str, rb.Curve]:  # fmt: skip
    """Like ``rb.replay``, with the gallery cut at these positions."""
    _, prepared = prepare_pair(pair, truth, orders, points, metrics, merge)
    shards = []
    for a, b in pairwise([0, *cuts, pair.n_gallery]):
        systems, _ = prepare_pair(pair.items(a, b), truth, orders, points, metrics, merge)
        shards.append(GalleryShard(make_forms(systems, prepared, distance), a, prepared, torch_device=torch_device))
    (curves,) = measure_prepared(prepared, truth, LocalShards(shards), threads=2)
    return curves
