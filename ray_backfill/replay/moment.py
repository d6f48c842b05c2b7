"""One moment of a backfill: any set of items may have been backfilled, not only the first ones of an order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.merges import RAW, Merge
from ray_backfill.replay.engine import measure_prepared, usable_cpus
from ray_backfill.replay.prepare import prepare_replay
from ray_backfill.replay.shard import GalleryShard, LocalShards
from ray_backfill.systems import GroundTruth, UpgradePair


def replay_moment(
    pair: UpgradePair,
    truth: GroundTruth,
    is_backfilled: NDArray[np.bool_],
    metrics: str | Sequence[str],
    distance: str = "cosine",
    merge: Merge = RAW,
) -> dict[str, NDArray[np.float64]]:
    """Metric -> (Q,) its value for each query that has a positive, while the forward system serves some items.

    Source: rank merge, eq. 5, with any set of items. is_backfilled: (N,) which those are. The rest as ``replay``.

    Raises:
        InputError: as ``replay``; a mask of another length.
    Cost: as a replay.
    """
    if is_backfilled.shape != (truth.n_gallery,):
        raise InputError(f"the mask has shape {is_backfilled.shape}, the gallery {truth.n_gallery} items")
    prepared = prepare_replay(truth, {"": np.arange(truth.n_gallery)}, 3, metrics, pair.switch, merge)
    # Of three points the one in the middle: the forward system serves slice 0 there.
    prepared = replace(prepared, slices_ON=np.where(is_backfilled, 0, 1).astype(np.uint16)[None])
    shard = GalleryShard(pair, 0, prepared.slices_ON, 3, distance, merge=merge)
    (curve,) = measure_prepared(prepared, truth, LocalShards([shard]), usable_cpus()).values()
    return {metric: values[:, 1] for metric, values in curve.per_query.items()}
