"""Replay of a single moment of a backfill, at which any set of items may have been backfilled."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay.engine import measure_prepared, usable_cpus
from ray_backfill.engine.replay.prepare import Served, as_merge, prepare_replay
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, make_forms
from ray_backfill.engine.systems import GroundTruth, UpgradePair, as_array, describe_array


def replay_moment(
    pair: UpgradePair,
    truth: GroundTruth,
    is_backfilled: ArrayLike,
    metrics: str | Sequence[str],
    distance: str = "cosine",
    merge: Merge | str = RAW,
) -> dict[str, NDArray[np.float64]]:
    """Compute metrics at a moment at which the forward system serves a given set of items.

    Source: rank merge, eq. 5, for any set of items.

    Cost: one ``replay``.

    Args:
        pair: The systems that serve items before and after they are backfilled.
        truth: Positives and ignored items of each query.
        is_backfilled: (N,) whether each gallery item is backfilled.
        metrics: Names such as "mAP", "mAP@100" or "CMC@1".
        distance: "cosine", "l2" or "inner_product".
        merge: Makes the two systems' distances comparable, see ``replay``.

    Returns:
        Metric name -> (Q,) value for each query that has a positive.

    Raises:
        InputError: The mask has another length than the gallery, or an input is invalid as in ``replay``.
    """
    flags = as_array(is_backfilled, "is_backfilled")
    if flags.shape != (truth.n_gallery,) or flags.dtype != np.bool_:
        raise InputError(
            f"is_backfilled needs a true/false value for each of {truth.n_gallery} items, got {describe_array(flags)}"
        )
    merge = as_merge(merge, distance)
    systems = [pair.backward] if pair.backward is pair.forward else [pair.backward, pair.forward]
    served = Served(0, len(systems) - 1, {"": np.arange(truth.n_gallery)}, pair.switch, merge)
    prepared = prepare_replay(truth, [served], 3, metrics)
    # Use the middle one of three points, at which the forward system serves segment 0.
    prepared = replace(prepared, segments_ON=np.where(flags, 0, 1).astype(np.uint16)[None])
    shard = GalleryShard(make_forms(systems, prepared, distance), 0, prepared)
    ((curve,),) = (found.values() for found in measure_prepared(prepared, truth, LocalShards([shard]), usable_cpus()))
    return {metric: values[:, 1] for metric, values in curve.per_query.items()}
