"""The first K items of each partition of a half-backfilled gallery, apart: what the two collections of a store return.

A replay drops items of one system that are surely behind k items of the other. A store cannot: each partition returns
its own K, also when it has nearly nothing left, and only then they are merged.

Shapes: b queries of a block, C candidates, T points, K items of a list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.engine import in_threads, shards_here
from ray_backfill.engine.replay.keys import distances_of, positions_of
from ray_backfill.engine.replay.nearest import ranked_candidates
from ray_backfill.engine.replay.prepare import Prepared, Served, prepare_replay, split_queries
from ray_backfill.engine.replay.shard import candidates
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem


class Lifetimes(NamedTuple):
    """The points at which each of N items is there: since <= i < until. (N,) int64."""

    since: IntArray
    until: IntArray


@dataclass(frozen=True)
class Partition:
    """The items of one system that can be among its partition's first K at some point, for a block of queries.

    item: (C,) gallery positions. distance: (C,). ranked: indices of candidates, the closest of each query first,
    without ignored items. starts: (b + 1,) of each query in ``ranked``. depth: K.
    """

    item: IntArray
    distance: NDArray[np.float32]
    ranked: IntArray
    starts: IntArray
    is_forward: bool
    depth: int

    def lists(
        self, segments: NDArray[np.uint16], begin: int, end: int, points: int, k: int, first: int = 0,
        lifetimes: Lifetimes | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:  # fmt: skip
        """Lists of the queries begin .. end - 1 at each point.

        Items that are not there take places among the first ``depth`` of the partition, and are left out of the lists.
        A query whose list may therefore lack items is marked; to search it again, deeper, makes its lists exact.

        Args:
            segments: (N,) segment of each item, see ``segment_of_item``.
            begin, end: Queries of the block.
            points: T.
            k: Items of a list, at most ``depth``.
            first: Is added to the indices.
            lifetimes: By default all items are there at all points.

        Returns:
            (end - begin, T, k) candidates, the closest first, -1 behind; (end - begin,) whether a list may lack items.
        """
        listed, lacks = np.full((end - begin, points, k), -1, np.int32), np.zeros(end - begin, np.bool_)
        if lifetimes is None:
            since, until = np.zeros(len(self.item), np.int64), np.full(len(self.item), points)
        else:
            since, until = lifetimes.since[self.item], lifetimes.until[self.item]
        ranked, starts, segment = self.ranked, self.starts[begin : end + 1], segments[self.item]
        _list(ranked, starts, segment, self.is_forward, since, until, self.depth, first, listed, lacks)
        return listed, lacks & (self.depth < len(segments))


# (rows of the block in ``Prepared.scored``, the block, scan -> partition): called in several threads.
Visit = Callable[[IntArray, Block, Sequence[Partition]], None]


def search_partitions(
    systems: Sequence[RetrievalSystem], served: Sequence[Served], truth: GroundTruth, points: int, distance: str,
    k: int, visit: Callable[[Prepared], Visit], progress: bool = False, device: str = "cpu",
    queries: IntArray | None = None,
) -> None:  # fmt: skip
    """Search each partition for its first k items at every point, for one block of queries after the other.

    Cost: a float32 product of Q x N x d for each distinct system and side. Memory: of the candidates of a block.

    Args:
        systems, served, truth, points, distance, progress, device: See ``replay_pairs``. No cascades, no filter.
        k: Most items of a partition.
        visit: From what is prepared, the function that is given each block and its partitions, one for each of
            ``Prepared.scans``.
        queries: Rows of the queries to ask; by default all that have a positive.
    """
    prepared = prepare_replay(truth, served, points, "CMC@1")
    scans = tuple(replace(scan, limited_by=()) for scan in prepared.scans)
    prepared = replace(prepared, nearest=min(k, truth.n_gallery), scans=scans)
    if queries is not None:
        prepared = replace(prepared, scored=queries)
    take = visit(prepared)
    with shards_here(systems, prepared, truth, distance, progress, None, device) as (shards, threads):

        def search_block(rows: IntArray) -> None:
            block = Block.of(truth, prepared.scored[rows])
            partitions = []
            for scan, (of_query, keys) in zip(scans, candidates(shards, block, prepared.nearest or k), strict=True):
                side = np.full(len(keys), scan.is_forward)
                ranked, starts, _ = ranked_candidates(of_query, keys, side, RAW, block)
                of_keys = positions_of(keys), distances_of(keys)
                partitions.append(Partition(*of_keys, ranked, starts, bool(scan.is_forward), prepared.nearest or k))
            take(rows, block, partitions)

        in_threads(search_block, split_queries(prepared, truth, threads), shards, threads)


@kernel
def _list(
    ranked: Array, starts: Array, segment: Array, is_forward: bool, since: Array, until: Array, depth: int, first: int,
    listed: Array, lacks: Array,
) -> None:  # fmt: skip
    points, k = listed.shape[1:]
    # Of each point: candidates so far, of which the first ``depth`` are all that the partition has; items of the list.
    seen, full = np.empty(points, np.int64), np.empty(points, np.int64)
    for q in range(len(starts) - 1):
        seen[:] = 0
        full[:] = 0
        for c in ranked[starts[q] : starts[q + 1]]:
            after = np.int64(segment[c]) + 1
            begin, end = (after, points) if is_forward else (0, after)
            for i in range(begin, end):
                if seen[i] < depth:
                    seen[i] += 1
                    if full[i] < k and since[c] <= i < until[c]:
                        listed[q, i, full[i]] = first + c
                        full[i] += 1
        for i in range(points):
            lacks[q] |= seen[i] == depth and full[i] < k
