"""Replay of a gallery that is read once, in parts, and not kept: of it stay only items that can be among the first k.

Each part is a shard of the gallery. Its answer for each block of queries is united with that of the parts before, and
the distances of what is found so far limit what can still be among the first k: a further part costs its products.

Shapes: Q queries, b queries of a block, n items of a part, C candidates of a scan and block, O orders, S segments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm, check_distance
from ray_backfill.engine.distances.exact import as_float32
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.orders import GalleryColumns, make_order
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.curve import Curve
from ray_backfill.engine.replay.engine import comparisons_bar, measure_prepared, usable_cpus
from ray_backfill.engine.replay.keys import KeyArray, positions_of
from ray_backfill.engine.replay.nearest import find_farthest, mark_nearest
from ray_backfill.engine.replay.prepare import Prepared, Scan, Served, as_merge, prepare_replay, split_queries
from ray_backfill.engine.replay.shard import Found, GalleryShard, LocalShards, make_forms
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem, as_array, as_vectors

_DISTANCE = np.uint64(0xFFFFFFFF00000000)
# Candidates are sorted and narrowed once there are so many times as many: late parts add few.
_GROWTH = 1.25


@overload
def replay_streamed(
    queries: Sequence[FloatArray], gallery: Iterable[Sequence[FloatArray]], truth: GroundTruth,
    order: str | ArrayLike = ..., points: int = ..., metrics: str | Sequence[str] = ..., distance: str = ...,
    progress: bool = ..., threads: int | None = ..., merge: Merge | str = ...,
) -> Curve: ...  # fmt: skip
@overload
def replay_streamed(
    queries: Sequence[FloatArray], gallery: Iterable[Sequence[FloatArray]], truth: GroundTruth,
    order: Mapping[str, ArrayLike], points: int = ..., metrics: str | Sequence[str] = ..., distance: str = ...,
    progress: bool = ..., threads: int | None = ..., merge: Merge | str = ...,
) -> dict[str, Curve]: ...  # fmt: skip
def replay_streamed(
    queries: Sequence[FloatArray],
    gallery: Iterable[Sequence[FloatArray]],
    truth: GroundTruth,
    order: str | ArrayLike | Mapping[str, ArrayLike] = "random",
    points: int = 11,
    metrics: str | Sequence[str] = ("mAP@100", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
    threads: int | None = None,
    merge: Merge | str = RAW,
) -> Curve | dict[str, Curve]:
    """Compute ``replay`` of a gallery that is larger than memory: the same curve, for metrics cut at k.

    The gallery is read once, from Parquet by ``stream_vectors`` or anywhere: a part while the last one is compared.

    Source: rank merge, eq. 5.

    Cost: two float32 products of Q x N x d. Memory: two parts as float32, and one as it is read; for each item of the
    gallery, 2 bytes for each order, and 24 while a random order is drawn; for each query and system, the candidates.

    Args:
        queries: (Q, d) embeddings of the queries that the old gallery answers, and of those that the new one answers.
        gallery: Parts of the gallery, in its order: (n, d) old and new embeddings of the same items.
        truth: Positives and ignored items of each query, by position in the whole gallery. It has no filter.
        order: See ``replay``; "random" is the only name.
        points: See ``replay``.
        metrics: Names such as "mAP@100", "CMC@1", "recall@10", "MRR@10" or "nDCG@10".
        distance: See ``replay``.
        progress: See ``replay``.
        threads: See ``replay``.
        merge: See ``replay``; a merge of distances, not of ranks.

    Returns:
        The curve, or a dict of curves for a dict of orders.

    Raises:
        InputError: A metric or merge of whole rankings, other items than the truth's, or what ``replay`` refuses.
    """
    orders = {}
    for name, given in (order if isinstance(order, Mapping) else {"": order}).items():
        if not isinstance(given, str):
            orders[name] = as_array(given, "an order")
        elif given == "random":
            orders[name] = make_order(given, GalleryColumns(np.broadcast_to(np.float32(0), (truth.n_gallery, 1))))
        else:
            raise InputError(f"order {given!r} needs the gallery; pass the permutation, or random")
    served = Served(0, 1, orders, merge=as_merge(merge, distance))
    (curves,) = replay_pairs_streamed(queries, gallery, [served], truth, points, metrics, distance, progress, threads)
    return curves if isinstance(order, Mapping) else curves[""]


def replay_pairs_streamed(
    queries: Sequence[FloatArray],
    gallery: Iterable[Sequence[FloatArray]],
    served: Sequence[Served],
    truth: GroundTruth,
    points: int = 11,
    metrics: str | Sequence[str] = ("mAP@100", "CMC@1"),
    distance: str = "cosine",
    progress: bool = False,
    threads: int | None = None,
) -> list[dict[str, Curve]]:
    """Compute ``replay_streamed`` for several pairs of systems; each distinct system is searched once.

    queries: (Q, d) of each system. gallery: parts, each with (n, d) of each system. served: the pairs, by indices of
    these; no cascades. The others, costs and errors: as there.
    """
    check_distance(distance)
    if truth.filter is not None:
        raise InputError("a gallery in parts is replayed without a filter; replay each of its groups by itself")
    prepared = prepare_replay(truth, served, points, metrics)
    cuts = [metric.k for metric in prepared.metrics if metric.k is not None]
    if len(cuts) < len(prepared.metrics) or prepared.cascades or any(pair.merge.by_rank for pair in prepared.pairs):
        raise InputError(
            "a gallery in parts is measured by its first results: name metrics that are cut, such as mAP@100 or CMC@1, "
            "and a merge of distances; replay measures all others"
        )
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    prepared = replace(prepared, nearest=max(cuts))
    threads = threads or usable_cpus()
    blocks = [Block.of(truth, prepared.scored[rows]) for rows in split_queries(prepared, truth, threads)]
    with comparisons_bar(prepared, progress) as bar, threadpool_limits(1, user_api="blas"):
        so_far = _search(_ahead(_shards(queries, gallery, prepared, truth, distance, bar.advance)), blocks, threads)
    return measure_prepared(prepared, truth, _Kept(blocks, so_far), threads)


def _shards(
    queries: Sequence[FloatArray], gallery: Iterable[Sequence[FloatArray]], prepared: Prepared, truth: GroundTruth,
    distance: str, report: Callable[[int], object],
) -> Iterator[GalleryShard]:  # fmt: skip
    """The parts as shards."""
    if {len(vectors) for vectors in queries} != {truth.n_queries}:
        numbers = " and ".join(f"{len(vectors):,}" for vectors in queries)
        raise InputError(f"the ground truth has {truth.n_queries:,} queries, but {numbers} are given")
    first = 0
    for part in gallery:
        if len(part) != len(queries) or len({len(vectors) for vectors in part}) != 1:
            lengths = ", ".join(f"{len(vectors):,}" for vectors in part)
            raise InputError(f"each part needs {len(queries)} arrays of the same items, got lengths {lengths}")
        if not len(part[0]):
            continue
        last = first + len(part[0])
        if last > truth.n_gallery:
            raise InputError(f"the ground truth has {truth.n_gallery:,} gallery items, but the parts have more")
        gallery_parts = [as_float32(as_vectors(vectors, "gallery embeddings")) for vectors in part]
        systems = [RetrievalSystem(*both) for both in zip(queries, gallery_parts, strict=True)]
        yield GalleryShard(make_forms(systems, prepared, distance), first, prepared, report)
        first = last
    if first != truth.n_gallery:
        raise InputError(f"the ground truth has {truth.n_gallery:,} gallery items, but the parts only {first:,}")


def _ahead(shards: Iterator[GalleryShard]) -> Iterator[GalleryShard]:
    """The same shards; the next one is made in a thread while one is used."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, shards, None)
        while (shard := coming.result()) is not None:
            coming = reader.submit(next, shards, None)
            yield shard


@dataclass(frozen=True)
class _FoundSoFar:
    """What one scan has found for a block so far. rows, keys: as ``Found``.

    farthest: (b, O, S) distance of the last needed item of the segments up to each, among the first ``narrowed``
    candidates, which are sorted; infinite if there are too few.
    """

    rows: IntArray
    keys: KeyArray
    farthest: NDArray[np.float32]
    narrowed: int


def _search(shards: Iterator[GalleryShard], blocks: Sequence[Block], threads: int) -> list[list[_FoundSoFar]]:
    """The candidates of each block and scan."""
    so_far: list[list[_FoundSoFar]] = [[] for _ in blocks]
    with ThreadPoolExecutor(threads) as pool:
        for shard in shards:
            tasks = [pool.submit(_with_shard, shard, *of_block) for of_block in zip(blocks, so_far, strict=True)]
            try:
                so_far = [task.result() for task in tasks]
            except BaseException:
                shard.is_cancelled = True
                raise
    return so_far


def _with_shard(shard: GalleryShard, block: Block, before: Sequence[_FoundSoFar]) -> list[_FoundSoFar]:
    """The candidates of one block and each scan among the items so far. before: those without this shard's."""
    prepared = shard.prepared
    assert prepared.nearest is not None
    needed, found = prepared.nearest + np.diff(block.ignored_starts), []
    known = [
        _ceilings(shard.forms[scan.searched], block, of_scan)
        for scan, of_scan in zip(prepared.scans, before, strict=False)
    ]
    for index, (rows, keys) in enumerate(shard.nearest(block, prepared.nearest, known or None)):
        if before:
            of_scan = before[index]
            rows, keys = np.concatenate([of_scan.rows, rows]), np.concatenate([of_scan.keys, keys])
            if len(rows) < _GROWTH * of_scan.narrowed:
                found.append(replace(of_scan, rows=rows, keys=keys))
                continue
        found.append(_narrow(prepared, prepared.scans[index], rows, keys, needed))
    return found


def _narrow(prepared: Prepared, scan: Scan, rows: IntArray, keys: KeyArray, needed: IntArray) -> _FoundSoFar:
    """Drop the candidates that others have pushed out."""
    by_key, n_segments = np.lexsort((keys, rows)), prepared.points - 1
    rows, keys, stays = rows[by_key], keys[by_key], np.zeros(len(rows), np.bool_)
    segments_OC = prepared.segments_ON[np.array(scan.rows)[:, None], positions_of(keys)]
    if not scan.is_forward:  # counted as ``Candidates`` do
        segments_OC = np.uint16(prepared.points - 2) - segments_OC
    _mark(rows, _by_index(keys), segments_OC, needed, n_segments, stays)
    rows, keys, segments_OC = rows[stays], keys[stays], np.ascontiguousarray(segments_OC[:, stays])
    farthest = np.full((len(needed), len(segments_OC), n_segments), np.inf, np.float32)
    find_farthest(rows, _by_index(keys), needed, segments_OC, farthest)
    return _FoundSoFar(rows, keys, farthest, len(rows))


def _by_index(keys: KeyArray) -> KeyArray:
    """The same keys with the index of the candidate in the place of its position; sorted ones stay sorted."""
    return (keys & _DISTANCE) | np.arange(len(keys), dtype=np.uint64)


def _ceilings(form: ProductForm, block: Block, so_far: _FoundSoFar) -> NDArray[np.float32]:
    """The ceilings of ``Candidates`` for further items of the same system."""
    ceilings, known = so_far.farthest.copy(), np.isfinite(so_far.farthest)
    ceilings[known] = form.bounds(block.queries, np.nonzero(known)[0], so_far.farthest[known])[1]
    return ceilings


@kernel
def _mark(rows: Array, keys: Array, segments_OC: Array, needed: Array, n_segments: int, stays: Array) -> None:
    """Mark the candidates of each query that can be among the first. rows, keys: ascending."""
    first = 0
    while first < len(rows):
        q, last = rows[first], first
        while last < len(rows) and rows[last] == q:
            last += 1
        mark_nearest(keys[first:last], segments_OC, needed[q], n_segments, stays[first:last])
        first = last


class _Kept(LocalShards):
    """What was found, as the answer of one shard."""

    def __init__(self, blocks: Sequence[Block], so_far: Sequence[list[_FoundSoFar]]) -> None:
        super().__init__([])
        self.so_far = {int(block.queries[0]): of_block for block, of_block in zip(blocks, so_far, strict=True)}

    def nearest(self, block: Block, k: int) -> list[list[Found]]:
        return [[(of_scan.rows, of_scan.keys) for of_scan in self.so_far[int(block.queries[0])]]]
