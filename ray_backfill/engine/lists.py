"""Ranked lists: the first k answers of queries. Indexes make them of one system; they are merged and measured here.

Shapes: b queries, k answers of a list, C candidates of all queries, T moments, M metrics.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, count_up_to, kernel
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.metrics import ABSENT, NO_PLACES, GradedAnswers, Rankings, measure, metric_codes, parse_metric
from ray_backfill.engine.systems import GroundTruth, IntArray


class RankedLists(NamedTuple):
    """The first k answers of queries, sorted by (score, distance, item) like the ranking of the replay.

    Shapes are those of one moment; lists of several moments are (b, T, k).

    item: (b, k) int64 gallery positions; -1 behind the last answer, where distance and score are infinite. distance:
    (b, k) float32 in the system that serves the item. score: (b, k) float64 sort key, the distance itself unless a
    merge maps it. is_forward: (b, k) whether the forward system serves the item; an index knows no side and says False.
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

    def at(self, index: Any) -> "RankedLists":
        """Some of the lists, by a numpy index of the axes before the last."""
        return RankedLists(self.item[index], self.distance[index], self.score[index], self.is_forward[index])

    def put(self, index: Any, lists: "RankedLists") -> None:
        """Overwrite some of the lists."""
        self.item[index], self.distance[index] = lists.item, lists.distance
        self.score[index], self.is_forward[index] = lists.score, lists.is_forward

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
    sides = []
    for lists, is_forward in ((backward, False), (forward, True)):
        score, flags = lists.score, np.full(lists.item.shape, is_forward)
        if merge.is_mapped:
            score = merge.scores(lists.distance.ravel(), flags.ravel()).reshape(flags.shape)
            score[lists.item < 0] = np.inf
        sides.append(RankedLists(lists.item, lists.distance, score, flags))
    return merge_lists(sides, k)


def merge_lists(lists: Sequence[RankedLists], k: int) -> RankedLists:
    """Merge lists of the same queries over disjoint items into the k best.

    Cost: O(b k) for each; sorting both takes 1.5 to 7 times as long (docs/log.md).
    """
    merged = lists[0]
    for other in lists[1:]:
        shape = len(merged.item), k
        out = RankedLists(
            np.empty(shape, np.int64), np.empty(shape, np.float32), np.empty(shape), np.empty(shape, np.bool_)
        )
        # Arrays from Ray are read-only, but the kernels are compiled for writable ones, so copy where needed.
        one, two = (
            RankedLists._make(values if values.flags.writeable else values.copy() for values in side)
            for side in (merged, other)
        )
        _merge(one, two, out)
        merged = out
    return merged


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


def measure_lists(
    item: IntArray, truth: GroundTruth, queries: IntArray, metrics: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (b, T, M) values of metrics, and (b, T) whether the first item that counts is a right answer.

    Items that a query ignores take no place. Right answers that are not listed count as not found, so lists must be as
    deep as the metrics' cut-offs, plus the query's ignored items.

    Args:
        item: (b, k) or (b, T, k) as in ``RankedLists``.
        truth: Right answers, their grades, and ignored items of all queries.
        queries: (b,) rows of the queries, each with a right answer.
        metrics: Names with a cut-off, such as "mAP@100" or "CMC@1".
    """
    item_bTk = np.array(item, np.int64).reshape(len(queries), math.prod(item.shape[1:-1]), item.shape[-1])
    parsed, (b, points, k) = [parse_metric(name) for name in metrics], item_bTk.shape
    right = GradedAnswers.of(truth, queries, with_grades=any(metric.uses_grades for metric in parsed))
    starts = np.concatenate([[0], np.cumsum(np.minimum(np.diff(right.starts), k))])
    before = np.full(points * starts[-1], ABSENT, np.int32)
    rankings = Rankings(before, starts, np.zeros(len(before), np.int32) if len(right.grades) else NO_PLACES)
    rank_lists(item_bTk, truth, queries, rankings)
    values, top1 = np.empty((b, points, len(parsed))), np.empty((b, points), np.bool_)
    measure(rankings, right, metric_codes(parsed), values, top1)
    return values, top1


def rank_lists(item_bTk: IntArray, truth: GroundTruth, queries: IntArray, rankings: Rankings) -> None:
    """Write the ranks of the right answers that are listed into the first T points of ``rankings``.

    queries: (b,) rows. rankings: of these; what is not listed stays as it is.
    """
    points = len(rankings.before) // max(1, int(rankings.starts[-1]))
    of_truth = truth.positives, truth.positive_starts, truth.ignored, truth.ignored_starts
    _rank(item_bTk, queries, *of_truth, points, rankings.starts, rankings.before, rankings.places)


@kernel
def _rank(
    item_bTk: Array, queries: Array, positives: Array, positive_starts: Array, ignored: Array, ignored_starts: Array,
    points: int, starts: Array, before: Array, places: Array,
) -> None:  # fmt: skip
    for row in range(len(queries)):
        q, width = queries[row], starts[row + 1] - starts[row]
        right = positives[positive_starts[q] : positive_starts[q + 1]]
        left_out = ignored[ignored_starts[q] : ignored_starts[q + 1]]
        for i in range(item_bTk.shape[1]):
            at, wrong, n_right = points * starts[row] + i * width, 0, 0
            for item in item_bTk[row, i]:
                if item < 0 or n_right == width:
                    break
                if place_of(left_out, item) >= 0:
                    continue
                place = place_of(right, item)
                if place < 0:
                    wrong += 1
                    continue
                before[at + n_right] = wrong
                if len(places) > 0:
                    places[at + n_right] = place
                n_right += 1


@kernel
def place_of(ascending: Array, value: int) -> Any:
    """Index of a value; -1 if it is not there."""
    at = count_up_to(ascending, value) - 1
    return at if at >= 0 and ascending[at] == value else -1
