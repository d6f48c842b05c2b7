"""Exact replay of a backfill in one pass over each system, for any number of points and orders.

The gallery in backfill order is cut into T - 1 slices: at point i, the forward system serves the slices < i and the
backward system the others. Metrics of the whole ranking come from counts of items before each positive (``counting``),
metrics cut at k from the few items that can be among the first k (``nearest``); neither sorts a ranking. Both query
shards of the gallery and combine their answers, so that one process and many give the result of a full sort of
where(backfilled, d_forward, d_backward), with ties broken by gallery position. A merge (``merges``) compares scores
instead of distances, or ranks in the two systems' own lists.

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
from numpy.typing import ArrayLike, NDArray
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
from ray_backfill.replay.prepare import Prepared, as_merge, as_permutation, prepare_replay, split_queries
from ray_backfill.replay.shard import GalleryShard, LocalShards, Shards
from ray_backfill.systems import GroundTruth, IntArray, UpgradePair


@overload
def replay(
    pair: UpgradePair, truth: GroundTruth, order: str | ArrayLike, points: int = ...,
    metrics: str | Sequence[str] = ..., distance: str = ..., progress: bool = ..., threads: int | None = ...,
    device: str = ..., merge: Merge | str = ...,
) -> Curve: ...  # fmt: skip
@overload
def replay(
    pair: UpgradePair, truth: GroundTruth, order: Mapping[str, ArrayLike], points: int = ...,
    metrics: str | Sequence[str] = ..., distance: str = ..., progress: bool = ..., threads: int | None = ...,
    device: str = ..., merge: Merge | str = ...,
) -> dict[str, Curve]: ...  # fmt: skip
def replay(
    pair: UpgradePair,
    truth: GroundTruth,
    order: str | ArrayLike | Mapping[str, ArrayLike],
    points: int = 11,
    metrics: str | Sequence[str] = ("mAP", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
    threads: int | None = None,
    device: str = "cpu",
    merge: Merge | str = RAW,
) -> Curve | dict[str, Curve]:
    """Compute the exact curve M_t of a backfill at t = 0, 1/(points-1), ..., 1.

    At progress t, the forward system serves the first floor(t * N) items of the order.

    Source: rank merge, eq. 5.

    Cost: two float32 matrix products of Q x N x d, plus about half as much; hardly more for more points. Memory in
    addition to the inputs: about 200 MB per thread; per item, 2 bytes for each order and 16 for norms; for the result,
    8 bytes per query, point, order and metric.

    Args:
        pair: The systems that serve items before and after they are backfilled.
        truth: Positives and ignored items of each query.
        order: (N,) permutation of the gallery, first = backfilled first, or a dict of them, which share one pass; or
            "random", drawn with seed 0. ``make_order`` makes others.
        points: Number of points T, at least 2.
        metrics: A name such as "mAP", "mAP@100" or "CMC@1", or several.
        distance: "cosine", "l2" or "inner_product".
        progress: Show a progress bar if the replay takes long.
        threads: Number of threads; by default one per core that this process may use.
        device: "cpu", or "cuda" for torch on a GPU, with the same results.
        merge: Makes the two systems' distances comparable, see ``fit_merge``; by default raw distances are compared.
            "raw" and "rrf" need no fit and may be given by name.

    Returns:
        The curve, or a dict of curves for a dict of orders.

    Raises:
        InputError: Sizes do not match, no query has a positive, an order is not a permutation, a name is unknown, a
            vector is zero under cosine, or the device does not exist.
    """
    given = dict(order) if isinstance(order, Mapping) else {"": order}
    orders = {name: as_permutation(each, pair) for name, each in given.items()}
    fitted = as_merge(merge, distance)
    curves = _replay_orders(pair, truth, orders, points, metrics, distance, progress, threads, device, fitted)
    return curves if isinstance(order, Mapping) else curves[""]


def _replay_orders(
    pair: UpgradePair, truth: GroundTruth, orders: dict[str, IntArray], points: int, metrics: str | Sequence[str],
    distance: str, progress: bool, threads: int | None, device: str, merge: Merge,
) -> dict[str, Curve]:  # fmt: skip
    check_distance(distance)
    _check_sizes(pair, truth)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    prepared = prepare_replay(truth, orders, points, metrics, pair.switch, merge)
    check_device(device)
    torch_device = None if device == "cpu" else device
    # With a GPU, one thread processes a block on the CPU while the other one's block is on the GPU.
    n_threads = threads or (usable_cpus() if torch_device is None else 2)
    with comparisons_bar(prepared, progress) as report, full_float32(torch_device):
        shard = GalleryShard(pair, 0, prepared.slices_ON, points, distance, report, torch_device, merge)
        return measure_prepared(prepared, truth, LocalShards([shard]), n_threads)


def usable_cpus() -> int:
    """How many CPUs this process may use; where the system does not tell (macOS), how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_prepared(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> dict[str, Curve]:
    """Compute the curve of each order; each thread sends one block of queries at a time to the shards."""
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

    # One thread per block, each with its own matrix products: BLAS threads would only wait for each other.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(measure_block, queries) for queries in blocks]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            shards.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _curves(prepared, values, top1)


def _curves(prepared: Prepared, values: NDArray[np.float64], top1: NDArray[np.bool_]) -> dict[str, Curve]:
    """The curve of each order. values: (O, Q, T, M). top1: (O, Q, T)."""
    t = np.linspace(0.0, 1.0, prepared.points)
    names = [metric.name for metric in prepared.metrics]
    return {
        order: Curve(
            t,
            {name: values[o, :, :, m] for m, name in enumerate(names)},
            top1[o],
            prepared.scored,
            prepared.n_skipped,
            is_step=prepared.switch == "at_end",
        )
        for o, order in enumerate(prepared.orders)
    }


@contextmanager
def comparisons_bar(prepared: Prepared, show: bool) -> Iterator[Callable[[int], None]]:
    """Show progress over all comparisons of queries and items in both systems; yield the function that adds."""
    if not show:
        yield lambda comparisons: None
        return
    with detail("compare", 2 * len(prepared.scored) * prepared.slices_ON.shape[1], "pairs") as bar:
        yield bar.advance


def check_device(device: str) -> None:
    """Raise InputError for a device that is unknown or does not exist on this machine."""
    check_device_name(device)
    if device != "cpu":
        import_module("ray_backfill.replay.on_device").check_gpu(device)


def full_float32(torch_device: str | None) -> AbstractContextManager[None]:
    """Turn off TF32 if torch computes the products, because it would break the error bound."""
    if torch_device is None:
        return nullcontext()
    context: AbstractContextManager[None] = import_module("ray_backfill.replay.on_device").full_float32()
    return context


def _check_sizes(pair: UpgradePair, truth: GroundTruth) -> None:
    if truth.n_queries != pair.n_queries or truth.n_gallery != pair.n_gallery:
        raise InputError(
            f"the ground truth has {truth.n_queries} queries and {truth.n_gallery} gallery items, but the systems have "
            f"{pair.n_queries} and {pair.n_gallery}; build both from the same data"
        )
