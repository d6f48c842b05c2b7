"""Ranked lists: the first k answers of queries. Indexes make them of one system, and they are merged here.

Shapes: b queries, k answers of a list, C candidates of all queries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import kernel
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import IntArray


class RankedLists(NamedTuple):
    """The first k answers of queries, sorted by (score, distance, item) like the ranking of the replay.

    item: (b, k) int64 gallery positions; -1 behind the last answer. distance: (b, k) float32 in the system that serves
    the item, there inf. score: (b, k) float64 sort key, there inf; the distance itself unless a merge maps it.
    is_forward: (b, k) whether the forward system serves the item; False of an index, which knows no side.
    """

    item: IntArray
    distance: NDArray[np.float32]
    score: NDArray[np.float64]
    is_forward: NDArray[np.bool_]

    @classmethod
    def nothing(cls, *shape: int) -> "RankedLists":
        """Lists without answers."""
        item, score = np.full(shape, -1, np.int64), np.full(shape, np.inf)
        return cls(item, score.astype(np.float32), score, np.zeros(shape, np.bool_))

    @property
    def are_distinct(self) -> bool:
        """Whether no list has the same item twice."""
        ordered = np.sort(self.item, axis=1)
        return not bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())


def best_first(of_query: IntArray, distance: NDArray[np.float32], item: IntArray, queries: int, k: int) -> RankedLists:
    """The first k of some candidates by (distance, item). of_query: (C,) the query of each, 0 .. ``queries`` - 1."""
    lists = RankedLists.nothing(queries, k)
    order = np.lexsort((item, distance, of_query))
    row = of_query[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    first = place < k
    at, chosen = (row[first], place[first]), order[first]
    lists.item[at] = item[chosen]
    lists.distance[at] = lists.score[at] = distance[chosen]
    return lists


def joined(lists: Sequence[RankedLists]) -> RankedLists:
    """The lists of several batches of queries, one behind the other."""
    return RankedLists(*map(np.concatenate, zip(*lists, strict=True))) if len(lists) > 1 else lists[0]


def merge_sides(backward: RankedLists, forward: RankedLists, merge: Merge, k: int) -> RankedLists:
    """Merge what the backward and the forward system find among the items that each serves into the k best."""
    return merge_lists([_of_side(backward, merge, False), _of_side(forward, merge, True)], k)


def _of_side(lists: RankedLists, merge: Merge, is_forward: bool) -> RankedLists:
    flags = np.full(lists.item.shape, is_forward)
    if not merge.is_mapped:
        return lists._replace(is_forward=flags)
    score = merge.scores(lists.distance.ravel(), flags.ravel()).reshape(flags.shape)
    score[lists.item < 0] = np.inf
    return lists._replace(score=score, is_forward=flags)


def merge_lists(lists: Sequence[RankedLists], k: int) -> RankedLists:
    """Merge lists of the same queries over disjoint items into the k best.

    Cost: O(b k) for each; sorting both takes 1.5 to 7 times as long (docs/log.md).
    """
    merged = lists[0]
    for other in lists[1:]:
        shape = len(merged.item), k
        out = RankedLists(*(np.empty(shape, values.dtype) for values in merged))
        _merge(_writable(merged), _writable(other), out)
        merged = out
    return merged


def _writable(lists: RankedLists) -> RankedLists:
    """Arrays from Ray are read-only, but the kernels are compiled for writable ones, so copy where needed."""
    return RankedLists._make(values if values.flags.writeable else values.copy() for values in lists)


@kernel
def _merge(one: RankedLists, other: RankedLists, out: RankedLists) -> None:
    """Merge two lists of each query into ``out``."""
    for q in range(len(out.item)):
        i = j = 0
        for place in range(out.item.shape[1]):
            if i < one.item.shape[1] and (j == other.item.shape[1] or _is_before(one, i, other, j, q)):
                _copy(one, i, out, place, q)
                i += 1
            elif j < other.item.shape[1]:
                _copy(other, j, out, place, q)
                j += 1
            else:
                out.item[q, place], out.distance[q, place] = -1, np.inf
                out.score[q, place], out.is_forward[q, place] = np.inf, False


@kernel
def _is_before(one: RankedLists, i: int, other: RankedLists, j: int, q: int) -> bool:
    if one.score[q, i] != other.score[q, j]:
        return one.score[q, i] < other.score[q, j]
    if one.distance[q, i] != other.distance[q, j]:
        return one.distance[q, i] < other.distance[q, j]
    return one.item[q, i] < other.item[q, j]


@kernel
def _copy(lists: RankedLists, i: int, out: RankedLists, place: int, q: int) -> None:
    out.item[q, place], out.distance[q, place] = lists.item[q, i], lists.distance[q, i]
    out.score[q, place], out.is_forward[q, place] = lists.score[q, i], lists.is_forward[q, i]
