"""Replays a backfill exactly, in one pass over each system, however many points and orders.

Put the gallery in backfill order and cut it into T - 1 slices: at point i the forward system serves the slices < i, the
backward system the others. Metrics of the whole ranking come from counts of items before each positive (``counting``),
metrics cut at k from the few items that can be among the first k (``nearest``); neither ever sorts a ranking. Both ask
shards of the gallery and join their answers, so one process and many give the same result: that of a full sort of
where(backfilled, d_forward, d_backward), with ties by distance, then gallery position. A merge (``merges``) compares
scores of distances in their place, or places in the two systems' own lists.

Shapes: Q scored queries, N gallery items, T points, O orders, M metrics.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from importlib import import_module
from typing import overload

import numpy as np
from threadpoolctl import threadpool_limits

from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError, check_device_name
from ray_backfill.merges import RAW, Merge
from ray_backfill.metrics import metric_codes
from ray_backfill.progress import detail
from ray_backfill.replay.block import Block, make_thresholds, merged_keys
from ray_backfill.replay.counting import measure_counts
from ray_backfill.replay.curve import Curve
from ray_backfill.replay.fused import measure_fused
from ray_backfill.replay.nearest_ranks import measure_nearest
from ray_backfill.replay.prepare import Prepared, prepare_replay, split_queries
from ray_backfill.replay.shard import GalleryShard, LocalShards, Shards
from ray_backfill.systems import GroundTruth, IntArray, UpgradePair


@overload
def replay(
    pair: UpgradePair, truth: GroundTruth, order: IntArray, points: int = ..., metrics: Sequence[str] = ...,
    distance: str = ..., progress: bool = ..., threads: int | None = ..., device: str = ..., merge: Merge = ...,
) -> Curve: ...  # fmt: skip
@overload
def replay(
    pair: UpgradePair, truth: GroundTruth, order: Mapping[str, IntArray], points: int = ...,
    metrics: Sequence[str] = ..., distance: str = ..., progress: bool = ..., threads: int | None = ...,
    device: str = ..., merge: Merge = ...,
) -> dict[str, Curve]: ...  # fmt: skip
def replay(
    pair: UpgradePair,
    truth: GroundTruth,
    order: IntArray | Mapping[str, IntArray],
    points: int = 11,
    metrics: Sequence[str] = ("mAP", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
    threads: int | None = None,
    device: str = "cpu",
    merge: Merge = RAW,
) -> Curve | dict[str, Curve]:
    """The exact curve M_t of a backfill at t = 0, 1/(points-1), ..., 1.

    Source: rank merge, eq. 5. At progress t the first floor(t * N) items of the order are served by the forward system.
    order: (N,) permutation, or a dict of them, which share one pass and give a dict of curves.
    metrics: see ``parse_metric``. distance: see ``distances.DISTANCES``. progress: show a bar if it takes long.
    threads: default all cores that this process may use. device: "cpu", or "cuda" for torch on a GPU; same results.
    merge: how the two systems' distances compare (``fit_merge``); by default as they are.

    Raises:
        InputError: sizes that do not match, no scored query, an order that is no permutation, unknown names, a zero
            vector under cosine, a device that is not there.
    Cost: two float32 matrix products of Q x N x d, and about half as much again; hardly more for more points.
    Memory beside the inputs: about 200 MB a thread; for each item 2 bytes an order and 16 for norms; for the result
        8 bytes for each query, point, order and metric.
    """
    orders = dict(order) if isinstance(order, Mapping) else {"": order}
    check_distance(distance)
    _check_sizes(pair, truth)
    if threads is not None and threads < 1:
        raise InputError(f"a replay needs at least one thread, got {threads}")
    prepared = prepare_replay(truth, orders, points, metrics, pair.switch, merge)
    check_device(device)
    torch_device = None if device == "cpu" else device
    # Beside a GPU one thread answers a block while the other one's block is on it.
    n_threads = threads or (len(os.sched_getaffinity(0)) if torch_device is None else 2)
    with comparisons_bar(prepared, progress) as report, full_float32(torch_device):
        shard = GalleryShard(pair, 0, prepared.slices_ON, points, distance, report, torch_device, merge)
        curves = measure_prepared(prepared, truth, LocalShards([shard]), n_threads)
    return curves if isinstance(order, Mapping) else curves[""]


def measure_prepared(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> dict[str, Curve]:
    """The curve of each order; blocks of queries go over the shards side by side, one a thread."""
    n_orders, n_scored = len(prepared.orders), len(prepared.scored)
    is_map, cuts = metric_codes(prepared.metrics)
    values = np.empty((n_orders, n_scored, prepared.points, len(cuts)))
    top1 = np.empty((n_orders, n_scored, prepared.points), np.bool_)
    blocks = split_queries(prepared, truth, threads)

    def measure_block(queries: IntArray) -> None:
        block = Block.of(truth, queries)
        rows = slice(*np.searchsorted(prepared.scored, (queries[0], queries[-1] + 1)))
        out = (is_map, cuts, values[:, rows], top1[:, rows])
        if prepared.nearest is None:
            keys_2P = reduce(np.add, shards.positive_keys(block))
            thresholds = make_thresholds(block, keys_2P, prepared.slices_ON, prepared.merge)
            others = reduce(np.add, shards.count(block, thresholds))
            if prepared.merge.by_rank:
                measure_fused(others, block, thresholds, prepared.slices_ON, *out)
            else:
                measure_counts(others, block.positive_starts, *out)
        else:
            found = shards.nearest(block, prepared.nearest)
            of_query, keys, is_forward = (np.concatenate(part) for part in zip(*found, strict=True))
            if prepared.merge.is_mapped:
                keys = merged_keys(keys, is_forward, prepared.merge)
            measure_nearest(
                of_query, keys, is_forward, block.positives, block.positive_starts, block.ignored, block.ignored_starts,
                prepared.slices_ON, *out,
            )  # fmt: skip

    # One thread a block, each with a product of its own: BLAS threads would only wait for each other.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(measure_block, queries) for queries in blocks]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            shards.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    t = np.linspace(0.0, 1.0, prepared.points)
    names = [metric.name for metric in prepared.metrics]
    return {
        order: Curve(
            t, {name: values[o, :, :, m] for m, name in enumerate(names)}, top1[o], prepared.scored, prepared.n_skipped
        )
        for o, order in enumerate(prepared.orders)
    }


@contextmanager
def comparisons_bar(prepared: Prepared, show: bool) -> Iterator[Callable[[int], None]]:
    """Progress over all comparisons of a query with an item in a system; yields what to report them to."""
    if not show:
        yield lambda comparisons: None
        return
    with detail("compare", 2 * len(prepared.scored) * prepared.slices_ON.shape[1], "pairs") as bar:
        yield bar.advance


def check_device(device: str) -> None:
    """Raises InputError for an unknown device, or one that is not here."""
    check_device_name(device)
    if device != "cpu":
        import_module("ray_backfill.replay.on_device").check_gpu(device)


def full_float32(torch_device: str | None) -> AbstractContextManager[None]:
    """Without TF32, where torch makes the products: the error bound must hold."""
    if torch_device is None:
        return nullcontext()
    context: AbstractContextManager[None] = import_module("ray_backfill.replay.on_device").full_float32()
    return context


def _check_sizes(pair: UpgradePair, truth: GroundTruth) -> None:
    if truth.n_queries != pair.n_queries or truth.n_gallery != pair.n_gallery:
        raise InputError(
            f"the ground truth is of {truth.n_queries} queries and {truth.n_gallery} gallery items, "
            f"the systems have {pair.n_queries} and {pair.n_gallery}"
        )
