"""Exact replay of a backfill in one pass over each system, for any number of points and orders.

The gallery in backfill order is cut into T - 1 segments: at point i, the forward system serves the segments < i and the
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
from dataclasses import replace
from functools import reduce
from importlib import import_module
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.errors import InputError, check_device_name
from ray_backfill.core.progress import State, Task, detail
from ray_backfill.engine.distances import ProductForm, check_distance
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.metrics import GradedAnswers, Rankings, measure, metric_codes
from ray_backfill.engine.replay.block import Block, make_thresholds
from ray_backfill.engine.replay.cascade import reranked, stretched
from ray_backfill.engine.replay.counting import counted_rankings
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.filtered import GalleryPart, parts_of, united
from ray_backfill.engine.replay.fused import fused_rankings
from ray_backfill.engine.replay.nearest import nearest_rankings
from ray_backfill.engine.replay.prepare import (
    Prepared,
    Served,
    as_merge,
    as_permutation,
    as_served,
    count_parts,
    prepare_replay,
    split_queries,
)
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, Shards, candidates, candidates_of, make_forms
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, UpgradePair, as_array, describe_array

# More threads than this do not make a replay on a GPU faster (docs/results/gpu.md).
_THREADS_WITH_GPU = 8


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

    >>> before = rb.RetrievalSystem(old_queries, old_gallery)
    >>> after = rb.RetrievalSystem(new_queries, new_gallery)
    >>> truth = rb.GroundTruth.from_labels(query_label, label)
    >>> curve = rb.replay(rb.UpgradePair(before, after), truth, "random", metrics="mAP")
    >>> bool(curve.values("mAP")[0] < curve.values("mAP")[-1])
    True

    Source: rank merge, eq. 5.

    Cost: two float32 matrix products of Q x N x d, plus about half as much; hardly more for more points. Memory in
    addition to the inputs: about 200 MB per thread; per item, 2 bytes for each order and 16 for norms; for the result,
    8 bytes per query, point, order and metric.

    Args:
        pair: The systems that serve items before and after they are backfilled.
        truth: Positives and ignored items of each query, perhaps with grades (for nDCG) and weights of queries.
        order: (N,) permutation of the gallery, first = backfilled first, or a dict of them, which share one pass; or
            "random", drawn with seed 0. ``make_order`` makes others.
        points: Number of points T, at least 2.
        metrics: A name such as "mAP", "mAP@100" or "CMC@1", or several; an unknown one lists all.
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
    orders = {name: as_permutation(permutation, pair) for name, permutation in given.items()}
    systems, served = as_served(pair, orders, as_merge(merge, distance))
    (curves,) = replay_pairs(systems, [served], truth, points, metrics, distance, progress, threads, device)
    return curves if isinstance(order, Mapping) else curves[""]


def replay_pairs(
    systems: Sequence[RetrievalSystem],
    served: Sequence[Served],
    truth: GroundTruth,
    points: int = 11,
    metrics: str | Sequence[str] = ("mAP", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
    threads: int | None = None,
    device: str = "cpu",
) -> list[dict[str, Curve]]:
    """Compute ``replay`` for several pairs of systems; each distinct system is searched once.

    Cost: a float32 product of Q x N x d for each system, and about a third as much for each pair.

    Args:
        systems: The distinct systems, of the same queries and gallery items.
        served: The pairs, by indices of ``systems``, with their orders and merges.
        truth, points, metrics, distance, progress, threads, device: See ``replay``.

    Returns:
        For each pair, the curve of each order.

    Raises:
        InputError: See ``replay``.
    """
    check_distance(distance)
    for system in systems:
        if truth.n_queries != len(system.query) or truth.n_gallery != len(system.gallery):
            raise InputError(
                f"the ground truth has {truth.n_queries} queries and {truth.n_gallery} gallery items, but the systems "
                f"have {len(system.query)} and {len(system.gallery)}; build both from the same data"
            )
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    if truth.filter is not None:
        queries, of_parts = [], []
        for part in parts_of(truth, systems, served, points):
            queries.append(part.queries)
            how = points, metrics, distance, progress, threads, device
            of_parts.append(replay_pairs(part.systems, part.served, part.truth, *how))
        if not of_parts:
            raise InputError("no query has a positive in its part of the gallery, so there is nothing to measure")
        return [
            {order: united(truth, queries, [curves[index][order] for curves in of_parts]) for order in pair.orders}
            for index, pair in enumerate(served)
        ]
    prepared = prepare_replay(truth, served, points, metrics)
    check_device(device)
    with shards_here(systems, prepared, truth, distance, progress, threads, device) as (shards, n_threads):
        return measure_prepared(prepared, truth, shards, n_threads)


@contextmanager
def shards_here(
    systems: Sequence[RetrievalSystem], prepared: Prepared, truth: GroundTruth, distance: str, progress: bool,
    threads: int | None, device: str,
) -> Iterator[tuple[LocalShards, int]]:  # fmt: skip
    """Shards of a gallery in this process, and how many threads send blocks of queries to them."""
    torch_device = None if device == "cpu" else device
    # With a GPU, enough threads for the CPU's part of a block; more wait for it.
    threads = threads or min(_THREADS_WITH_GPU if torch_device else usable_cpus(), usable_cpus())
    parts = 1 if torch_device else count_parts(prepared, len(split_queries(prepared, truth, threads)), threads)
    with (
        comparisons_bar(prepared, progress) as bar,
        full_float32(torch_device),
        ThreadPoolExecutor(threads) as pool,
    ):
        shards = split_gallery(make_forms(systems, prepared, distance), parts, prepared, bar.advance, torch_device)
        yield LocalShards(shards, pool), threads


def split_gallery(
    forms: Sequence[ProductForm],
    parts: int,
    prepared: Prepared,
    report: Callable[[int], object] = lambda comparisons: None,
    torch_device: str | None = None,
) -> list[GalleryShard]:
    """Make the shards of equal parts of the gallery. Embeddings are not copied."""
    cuts = np.linspace(0, len(forms[0].length_N), parts + 1).astype(np.int64).tolist()
    return [
        GalleryShard([form.part(first, last) for form in forms], first, prepared, report, torch_device)
        for first, last in pairwise(cuts)
    ]


def usable_cpus() -> int:
    """How many CPUs this process may use; where the system does not tell (macOS), how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_prepared(prepared: Prepared, truth: GroundTruth, shards: Shards, threads: int) -> list[dict[str, Curve]]:
    """Compute the curves of each pair; each thread asks the shards about one block of queries at a time."""
    codes, n_scored = metric_codes(prepared.metrics), len(prepared.scored)
    with_grades = any(metric.uses_grades for metric in prepared.metrics)
    shapes = [(len(pair.orders), n_scored, prepared.points) for pair in prepared.pairs]
    measured = [(np.empty((*shape, len(codes.cuts))), np.empty(shape, np.bool_)) for shape in shapes]
    embedded = [
        {order: np.empty((n_scored, cascade.points)) for order in cascade.segments} for cascade in prepared.cascades
    ]

    def measure_block(rows: IntArray) -> None:
        block = Block.of(truth, prepared.scored[rows])
        right = GradedAnswers.of(truth, block.queries, with_grades)
        rank = _rank_all if prepared.nearest is None else _rank_nearest
        ranked = rank(prepared, block, shards, len(right.grades) > 0)
        if prepared.cascades:
            ranked = reranked(ranked, prepared, truth, block, shards, rows, embedded)
        for of_orders, (values, top1) in zip(ranked, measured, strict=True):
            for o, rankings in enumerate(of_orders):
                block_values, block_top1 = values[o, rows], top1[o, rows]
                measure(rankings, right, codes, block_values, block_top1)
                values[o, rows], top1[o, rows] = block_values, block_top1

    in_threads(measure_block, split_queries(prepared, truth, threads), shards, threads)
    weights = None if truth.weights is None else truth.weights[prepared.scored]
    t, names = np.linspace(0.0, 1.0, prepared.points), [metric.name for metric in prepared.metrics]
    curves: list[dict[str, Curve]] = []
    for pair, (values, top1) in zip(prepared.pairs, measured, strict=True):
        per_query = [{name: values[o, :, :, m] for m, name in enumerate(names)} for o in range(len(pair.orders))]
        same = prepared.scored, prepared.n_skipped, pair.switch == "at_end", weights
        curves.append({order: Curve(t, per_query[o], top1[o], *same) for o, order in enumerate(pair.orders)})
    if not prepared.cascades:
        return curves
    of_cascades = zip(curves, prepared.cascades, embedded, strict=True)
    return [stretched(next(iter(of_pair.values())), cascade, counts) for of_pair, cascade, counts in of_cascades]


def _rank_all(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Iterator[Iterator[Rankings]]:
    """For each pair, the whole rankings of each order, by counting. with_places: say which right answers they are."""
    keys = reduce(np.add, shards.positive_keys(block))
    segments_of = prepared.segments_of
    thresholds = [
        make_thresholds(block, keys[[pair.forward, pair.backward]], segments_of[pair.rows], pair.merge)
        for pair in prepared.pairs
    ]
    of_pairs = zip(prepared.pairs, thresholds, zip(*shards.count(block, thresholds), strict=True), strict=True)
    for pair, of_pair, of_shards in of_pairs:
        others = reduce(np.add, of_shards)
        if pair.merge.by_rank and not pair.hides_backward:
            yield fused_rankings(others, block, of_pair, segments_of[pair.rows], prepared.points, with_places)
        else:
            yield counted_rankings(others, block, of_pair, prepared.points, with_places, pair.hides_backward)


def _rank_nearest(prepared: Prepared, block: Block, shards: Shards, with_places: bool) -> Iterator[Iterator[Rankings]]:
    """For each pair, the first ranks of each order, from candidates."""
    assert prepared.nearest is not None
    of_scans = candidates(shards, block, prepared.nearest)
    for pair in prepared.pairs:
        yield nearest_rankings(
            *candidates_of(pair, of_scans), block, prepared.segments_of[pair.rows], prepared.nearest, prepared.points,
            pair.merge, with_places,
        )  # fmt: skip


def in_threads(work: Callable[[IntArray], None], blocks: Sequence[IntArray], shards: Shards, threads: int) -> None:
    """Work on one block per thread, each with its own matrix products: BLAS threads would only wait for each other."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(work, rows) for rows in blocks]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            shards.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def comparisons_bar(prepared: Prepared, show: bool) -> AbstractContextManager[Task]:
    """Counts all comparisons of queries and items; ``show`` them."""
    n_pairs = prepared.passes * len(prepared.scored) * prepared.segments_ON.shape[1]
    return detail("compare", n_pairs, "pairs") if show else nullcontext(Task(State("detail", "compare", n_pairs)))


def check_device(device: str) -> None:
    """Raise InputError for a device that is unknown or does not exist on this machine."""
    check_device_name(device)
    if device != "cpu":
        import_module("ray_backfill.engine.stack").check_gpu(device)


def full_float32(torch_device: str | None) -> AbstractContextManager[None]:
    """Turn off TF32 if torch computes the products, because it would break the error bound."""
    if torch_device is None:
        return nullcontext()
    context: AbstractContextManager[None] = import_module("ray_backfill.engine.device").full_float32()
    return context


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
    systems, served = as_served(pair, {"": np.arange(truth.n_gallery)}, as_merge(merge, distance))
    everyone = np.arange(truth.n_queries)
    whole = GalleryPart(everyone, np.arange(truth.n_gallery), systems, [served], truth)
    by_metric: dict[str, NDArray[np.float64]] = {}
    for part in [whole] if truth.filter is None else parts_of(truth, systems, [served], 3):
        prepared = prepare_replay(part.truth, part.served, 3, metrics)
        # Use the middle one of three points, at which the forward system serves segment 0.
        prepared = replace(prepared, segments_ON=np.where(flags[part.items], 0, 1).astype(np.uint16)[None])
        shard = GalleryShard(make_forms(part.systems, prepared, distance), 0, prepared)
        (curves,) = measure_prepared(prepared, part.truth, LocalShards([shard]), usable_cpus())
        for metric, values in curves[""].per_query.items():
            of_all = by_metric.setdefault(metric, np.empty(truth.n_queries))
            of_all[part.queries[curves[""].scored]] = values[:, 1]
    if not by_metric:
        raise InputError("no query has a positive in its part of the gallery, so there is nothing to measure")
    return {metric: of_all[np.setdiff1d(everyone, truth.skipped)] for metric, of_all in by_metric.items()}
