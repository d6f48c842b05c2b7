"""Cascades: the backward system recalls its first K items, the forward system re-ranks them. At t = 1 it ranks all.

Behind the K candidates the backward system's ranking goes on. So a right answer among them gets a new rank, and any
other keeps its own. The forward system's vectors of candidates that are not backfilled are computed for the query.

Shapes: b queries, C candidates of all of them, P right answers, O orders, T points.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics import Rankings
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.keys import KeyArray, positions_of
from ray_backfill.engine.replay.nearest import sort_candidates
from ray_backfill.engine.replay.prepare import Pair, Prepared
from ray_backfill.engine.replay.shard import Shards
from ray_backfill.engine.systems import IntArray


@dataclass(frozen=True)
class Recalled:
    """The candidates of the queries of a block, CSR by ``starts``.

    keys: (C,) exact keys of the forward system, ascending for each query. places: (C,) which of the query's right
    answers it is, or -1.
    """

    starts: IntArray
    keys: KeyArray
    places: IntArray

    def rerank(self, rankings: Iterator[Rankings], points: int) -> Iterator[Rankings]:
        """Re-rank each order's rankings, which switch from the backward to the forward system at the last point."""
        for old in rankings:
            before, places = old.before.astype(np.int64), old.places.copy()
            _rerank(self.starts, self.places, old.starts, points, before, places)
            yield replace(old, before=before, places=places)

    def embedded(self, segments_ON: NDArray[np.uint16], points: int) -> NDArray[np.int64]:
        """(O, b, T) number of candidates that are not backfilled. segments_ON: when items are, for each order."""
        counts = np.zeros((len(segments_ON), len(self.starts) - 1, points), np.int64)
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        for found, segments in zip(counts, segments_ON, strict=True):
            # An item of segment s is backfilled from point s + 1 on.
            np.add.at(found, (rows, segments[positions_of(self.keys)].astype(np.int64)), 1)
        return counts[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]


def recall(prepared: Prepared, block: Block, shards: Shards) -> list[Recalled]:
    """Find the candidates of each pair, all of which are cascades.

    Cost: a search of both systems, and a product of d multiplications for each candidate.
    """
    deepest = max(pair.recalls for pair in prepared.pairs)
    found = list(zip(*shards.nearest(block, deepest), strict=True))
    recalled = []
    for pair in prepared.pairs:
        rows, keys = (np.concatenate(part) for part in zip(*found[pair.backward_scan], strict=True))
        own, starts, places_of = sort_candidates(rows, keys, block)
        lengths = np.minimum(np.diff(starts), pair.recalls)
        first = np.concatenate([[0], np.cumsum(lengths)])
        kept = np.arange(first[-1]) + np.repeat(starts[:-1] - first[:-1], lengths)
        candidates = positions_of(keys[own[kept]])
        recalled.append(_by_forward_key(pair, block, shards, candidates, first, places_of[kept]))
    return recalled


def _by_forward_key(
    pair: Pair, block: Block, shards: Shards, candidates: IntArray, starts: IntArray, places: NDArray[np.int32]
) -> Recalled:
    rows = np.repeat(np.arange(len(block)), np.diff(starts))
    by_position = np.lexsort((candidates, rows))
    candidates, places = candidates[by_position], places[by_position]
    nothing = np.empty(0, np.int64), np.zeros(len(block) + 1, np.int64)
    asked = Block(block.queries, candidates, starts, *nothing)
    keys = reduce(np.add, shards.positive_keys(asked))[pair.forward]
    by_key = np.lexsort((keys, rows))
    return Recalled(starts, keys[by_key], places[by_key].astype(np.int64))


def embedded_of(prepared: Prepared, recalled: Sequence[Recalled]) -> Iterator[NDArray[np.int64]]:
    """(O, b, T) number of candidates that the new model has to embed for a query, for each pair."""
    for pair, candidates in zip(prepared.pairs, recalled, strict=True):
        yield candidates.embedded(prepared.segments_ON[list(pair.backfill_rows)], prepared.points)


@kernel
def _rerank(
    starts: Array, candidate_places: Array, width_starts: Array, points: int, before: Array, places: Array
) -> None:
    for q in range(len(starts) - 1):
        width = width_starts[q + 1] - width_starts[q]
        first = points * width_starts[q]
        wrong, found = 0, 0
        for c in range(starts[q], starts[q + 1]):
            if candidate_places[c] < 0:
                wrong += 1
                continue
            if found < width:
                for i in range(points - 1):
                    before[first + i * width + found] = wrong
                    if len(places) > 0:
                        places[first + i * width + found] = candidate_places[c]
            found += 1
