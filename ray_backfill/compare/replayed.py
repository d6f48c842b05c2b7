"""What a comparison keeps of a replay: the mean over permutations, what is judged at more moments, and changes.

A curve can fall between two reported points, so falls, milestones and flips are judged at all replayed moments.

A single permutation of a random order can be lucky, so a claim about orders needs several. They differ in their seed
only, are replayed in the same pass as all other orders, and are averaged query by query, so that areas, gains and
paired bootstraps over queries are those of the mean curve.

A replay says at which moments the first result is right. The first items themselves are searched only for the queries
for which that changes, and must agree with the replay at every moment.

Shapes: Q scored queries, T reported points, J replayed moments, K changes, DRAWS bootstrap draws of queries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.orders import BackfillOrders
from ray_backfill.compare.tables import NEW_EMBEDDINGS
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.orders import make_order
from ray_backfill.engine.replay import NOTHING, Curve, FirstItems, Served
from ray_backfill.engine.systems import IntArray

FoundT = TypeVar("FoundT")
# Finds the first items of some queries (rows of the table of queries) in all orders of a pair; see ``find_first``.
FindFirst = Callable[[Served, IntArray], Mapping[str, FirstItems]]
# Between the name of an order and the number of its permutation.
_MARK = " permutation "


@dataclass(frozen=True)
class Flips:
    """K changes of a query's first result between right and wrong, by query, then moment.

    query: (K,) index into the scored queries. moment: (K,) index of the first replayed moment after the change.
    is_lost: (K,) whether a right result became wrong. after, before: (K,) uint32 gallery position of the first item at
    this moment and at the one before; ``NOTHING`` where no item can be found. after_forward, before_forward: (K,)
    whether the forward system serves it.
    """

    query: IntArray
    moment: IntArray
    is_lost: NDArray[np.bool_]
    after: NDArray[np.uint32]
    before: NDArray[np.uint32]
    after_forward: NDArray[np.bool_]
    before_forward: NDArray[np.bool_]


@dataclass(frozen=True)
class FallFound:
    """The largest fall of a curve with its 95 % limits, and the progress t of its peak and trough."""

    size: float
    low: float
    high: float
    start: float
    end: float


@dataclass(frozen=True)
class Replayed:
    """One method in one order and merge; of a random order, the mean over its permutations.

    curve: at the reported points. draws: metric -> (DRAWS, T) means of M_t at these. t: (J,) moments. values: metric ->
    (J,) M_t, and of a cascade ``NEW_EMBEDDINGS``. falls: metric -> largest fall. top1_correct: (Q, J).
    permutation_aucs: metric -> (P,) AUC of each permutation; {} if there is one. first_top1: (Q, J) whether the first
    result is right in the first permutation. flips: its changes, with the first items; None for references, and but for
    the leading merge. merge: the kind of the merge; of the merge "best", the chosen one.
    """

    curve: Curve
    draws: Mapping[str, NDArray[np.float64]]
    t: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]
    falls: Mapping[str, FallFound]
    top1_correct: stats.RightQT
    permutation_aucs: Mapping[str, NDArray[np.float64]]
    first_top1: NDArray[np.bool_]
    flips: Flips | None = None
    merge: str = RAW.name

    def negative_flips_max(self, before_Q: stats.RightQT | None = None) -> float:
        """Return the largest share of queries with a right first result before and a wrong one at some moment.

        before_Q: (Q,) whether the first result was right before; by default that of this method's own start.
        """
        before = self.top1_correct[:, 0] if before_Q is None else before_Q
        return float(stats.negative_flips(before[:, None], self.top1_correct, self.curve.weights).max())

    def settles_at(self, metric: str, target: float) -> float:
        """Return the progress from which on M_t never is below ``target``; NaN if it is at the end."""
        index = stats.settles(self.values[metric], target - stats.ROUNDING)
        return float("nan") if index is None else float(self.t[index])


def judge(curves: Sequence[Curve], step: int) -> Replayed:
    """Judge a curve at all its moments, and keep every ``step``-th one for the report. Cost: O(DRAWS Q J).

    curves: one, or those of several permutations of a random order, whose mean is judged.
    """
    curve = mean_curve(curves)
    values = {metric: curve.values(metric) for metric in curve.per_query}
    draws, falls = {}, {}
    for metric, values_QJ in curve.per_query.items():
        means = stats.bootstrap_means(values_QJ, curve.weights)
        fall = stats.largest_fall(values[metric])
        limits = stats.fall_limits(means, values[metric])
        falls[metric] = FallFound(fall.size, *limits, float(curve.t[fall.peak]), float(curve.t[fall.trough]))
        draws[metric] = means[:, ::step].copy()
    if curve.embedded is not None:
        values[NEW_EMBEDDINGS] = stats.mean(curve.embedded, curve.weights)
    reported = [each.thinned(step) for each in curves] if len(curves) > 1 else []
    aucs = {metric: np.array([each.auc(metric) for each in reported]) for metric in curve.per_query if reported}
    first_top1 = curves[0].top1_correct.astype(np.bool_, copy=False)
    return Replayed(curve.thinned(step), draws, curve.t, values, falls, curve.top1_correct, aucs, first_top1)


def permutation_seeds(seed: int, number: int) -> list[int]:
    """The seeds of the permutations: ``seed`` first; more of them do not change the first ones."""
    return [seed, *np.random.SeedSequence(seed).generate_state(number - 1).tolist()]


def further_permutations(orders: BackfillOrders, number: int) -> dict[str, IntArray]:
    """The second and later permutations of the random orders, under names that ``by_order`` understands."""
    return {
        f"{order.name}{_MARK}{place}": make_order(order.name, orders.gallery, seed)
        for order in orders.orders
        if order.is_random
        for place, seed in enumerate(permutation_seeds(orders.seed, number)[1:], 2)
    }


def by_order(curves: Mapping[str, FoundT]) -> dict[str, list[FoundT]]:
    """Order -> its curve (or what else each order has), or those of all its permutations."""
    found: dict[str, list[FoundT]] = {}
    for name, curve in curves.items():
        found.setdefault(name.partition(_MARK)[0], []).append(curve)
    return found


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over permutations of every query's values.

    Whether the first item is a positive becomes the share of permutations in which it is, so flips are means, too. A
    fall is that of the mean: single permutations may fall where their mean does not.
    """
    if len(curves) == 1:
        return curves[0]
    per_query = {
        metric: np.mean([curve.per_query[metric] for curve in curves], axis=0) for metric in curves[0].per_query
    }
    top1: NDArray[np.float64] = np.mean([curve.top1_correct for curve in curves], axis=0)
    embedded = [curve.embedded for curve in curves if curve.embedded is not None]
    return replace(
        curves[0], per_query=per_query, top1_correct=top1, embedded=np.mean(embedded, axis=0) if embedded else None
    )


def find_flips(
    top1_correct: Mapping[str, NDArray[np.bool_]], scored: IntArray, served: Served, find: FindFirst
) -> dict[str, Flips]:
    """Find the changes of each order and what stands first before and after them.

    Cost: one search, shared by all orders, for the queries that change in any of them.

    Args:
        top1_correct: Order -> (Q, J) whether the first result is right, from the replay of this pair.
        scored: (Q,) rows of the queries.
        served: The pair in these orders, with the merge of the replay.
        find: Searches the pair.

    Raises:
        RuntimeError: The search contradicts the replay: an error of this program.
    """
    changes = np.array([(right[:, 1:] != right[:, :-1]).any(axis=1) for right in top1_correct.values()])
    changing = np.flatnonzero(changes.any(axis=0))
    if not len(changing):
        nothing: IntArray = np.empty(0, np.int64)
        return {order: Flips(nothing, nothing, *(nothing.astype(kind) for kind in "?II??")) for order in top1_correct}
    found = find(served, scored[changing])
    return {order: _flips(right[changing], found[order], changing, order) for order, right in top1_correct.items()}


def _flips(right: NDArray[np.bool_], first: FirstItems, changing: IntArray, order: str) -> Flips:
    """The changes of the queries ``changing``, whose first results are ``right``."""
    if not np.array_equal(right, first.is_right):
        apart = int((right != first.is_right).any(axis=1).sum())
        raise RuntimeError(
            f"the search for first results contradicts the replay for {apart} of {len(right)} queries in the order "
            f"{order!r}; this is an error of ray_backfill, please report it"
        )
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    at, then = (query, before + 1), (query, before)
    return Flips(
        changing[query],
        before + 1,
        right[then],
        first.item[at],
        first.item[then],
        first.is_forward[at],
        first.is_forward[then],
    )


def changes(right: NDArray[np.bool_]) -> Flips:
    """The changes of first results of which only right and wrong is known, not the items. right: (Q, J)."""
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    nothing, unknown = np.full(len(query), NOTHING, np.uint32), np.zeros(len(query), np.bool_)
    return Flips(query, before + 1, right[query, before], nothing, nothing, unknown, unknown)
