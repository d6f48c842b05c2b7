"""Replays every method of a comparison, in this process or in shards, and judges the curves.

Methods share systems: most serve {new, new} to backfilled items. Methods are replayed in groups, so that each distinct
system of a group is searched once for all its methods, orders and merges.

A curve can fall between two reported points, so falls, milestones and flips are judged at all replayed moments.

A single permutation of a random order can be lucky, so a claim about orders needs several. They differ in their seed
only, are replayed in the same pass as all other orders, and are averaged query by query, so that areas, gains and
paired bootstraps over queries are those of the mean curve.

A replay says at which moments the first result is right. The first items themselves are searched only for the queries
for which that changes, and must agree with the replay at every moment.

Shapes: Q scored queries, T reported points, J replayed moments, K changes, DRAWS bootstrap draws of queries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.orders import BackfillOrders
from ray_backfill.compare.resolve import Comparison, System
from ray_backfill.compare.tables import NEW, NEW_EMBEDDINGS, OLD
from ray_backfill.core.progress import step, task, track
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.lists import RankedLists, measure_lists
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.orders import make_order
from ray_backfill.engine.replay import Curve, Served, find_first, replay_pairs
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.methods import Method

FoundT = TypeVar("FoundT")
# Finds the first item of some queries (rows of the table of queries) in all orders of a pair; see ``find_first``.
FindFirst = Callable[[Served, IntArray], Mapping[str, RankedLists]]


@dataclass(frozen=True)
class Flips:
    """K changes of a query's first result between right and wrong, by query, then moment.

    query: (K,) index into the scored queries. moment: (K,) index of the first replayed moment after the change.
    is_lost: (K,) whether a right result became wrong. after, before: (K, 1) the first item at this moment and at the
    one before; none where no item can be found.
    """

    query: IntArray
    moment: IntArray
    is_lost: NDArray[np.bool_]
    after: RankedLists
    before: RankedLists


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
    the leading merge. merge: the kind of the merge; of the merge "best", the chosen one. with_merge: of old and new,
    the same system with each merge that changes its ranking. reached: metric -> 95 % limits of the progress t from
    which on M_t is as good as old, half-way, and as good as new, infinite for never; {} of old and new.
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
    with_merge: "Mapping[str, Replayed]" = field(default_factory=dict)
    reached: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def n_queries(self) -> int:
        """The number of scored queries."""
        return len(self.curve.scored)

    @property
    def known_flips(self) -> Flips:
        """The changes of first results, without the items where these are not known: under a merge."""
        return changes(self.first_top1) if self.flips is None else self.flips

    def negative_flips(self, before_Q: stats.RightQT | None = None) -> NDArray[np.float64]:
        """Return the (J,) share of queries with a right first result before and a wrong one at each moment.

        before_Q: (Q,) whether the first result was right before; by default that of this method's own start.
        """
        before = self.top1_correct[:, 0] if before_Q is None else before_Q
        return stats.negative_flips(before[:, None], self.top1_correct, self.curve.weights)

    def settles_at(self, metric: str, target: float) -> float:
        """Return the progress from which on M_t never is below ``target``; NaN if it is at the end."""
        return self.settled(self.values[metric], target)

    def settled(self, values: NDArray[np.float64], target: float) -> float:
        """The same of any (J,) values."""
        index = stats.settles(values, target - stats.ROUNDING)
        return float("nan") if index is None else float(self.t[index])


def judge(curves: Sequence[Curve], step: int, margin: float = 0.0, ends: "Sequence[Replayed]" = ()) -> Replayed:
    """Judge a curve at all its moments, and keep every ``step``-th one for the report. Cost: O(DRAWS Q J).

    curves: one, or those of several permutations of a random order, whose mean is judged. margin: loss that counts as
    none. ends: old and new; without them the limits of milestones stay unknown.
    """
    curve = mean_curve(curves)
    values = {metric: curve.values(metric) for metric in curve.per_query}
    draws, falls, reached = {}, {}, {}
    for metric, values_QJ in track(curve.per_query.items(), "bootstrap", "metrics"):
        means = stats.bootstrap_means(values_QJ, curve.weights)
        fall = stats.largest_fall(values[metric])
        limits = stats.fall_limits(means, values[metric])
        falls[metric] = FallFound(fall.size, *limits, float(curve.t[fall.peak]), float(curve.t[fall.trough]))
        draws[metric] = means[:, ::step].copy()
        if ends:
            old, new = (end.draws[metric][:, [at]] for end, at in zip(ends, (0, -1), strict=True))
            apart = (means - target for target in (old - margin, (old + new) / 2, new - margin))
            found = [stats.settle_limits(each, len(curve.scored)) for each in apart]
            reached[metric] = [(_progress(curve.t, low), _progress(curve.t, high)) for low, high in found]
    if curve.embedded is not None:
        values[NEW_EMBEDDINGS] = stats.mean(curve.embedded, curve.weights)
    reported = [each.thinned(step) for each in curves] if len(curves) > 1 else []
    aucs = {metric: np.array([each.auc(metric) for each in reported]) for metric in curve.per_query if reported}
    first_top1 = curves[0].top1_correct.astype(np.bool_, copy=False)
    kept = curve.thinned(step)
    return Replayed(kept, draws, curve.t, values, falls, curve.top1_correct, aucs, first_top1, reached=reached)


def _progress(t: NDArray[np.float64], index: float) -> float:
    return float(t[int(index)]) if np.isfinite(index) else index


def permutation_seeds(seed: int, number: int) -> list[int]:
    """The seeds of the permutations: ``seed`` first; more of them do not change the first ones."""
    return [seed, *np.random.SeedSequence(seed).generate_state(number - 1).tolist()]


class Permutation(NamedTuple):
    """One more permutation of a random order. order: the name of the order. items: (N,) gallery items."""

    order: str
    items: IntArray


def further_permutations(orders: BackfillOrders, number: int) -> dict[str, Permutation]:
    """The second and later permutations of the random orders, each under a name of its own."""
    return {
        f"{order.name} permutation {place}": Permutation(order.name, make_order(order.name, orders.gallery, seed))
        for order in orders.named.orders
        if order.is_random
        for place, seed in enumerate(permutation_seeds(orders.named.evaluation.order_seed, number)[1:], 2)
    }


def by_order(curves: Mapping[str, FoundT], further: Mapping[str, Permutation]) -> dict[str, list[FoundT]]:
    """Order -> its curve (or what else each order has), or those of all its permutations."""
    found: dict[str, list[FoundT]] = {}
    for name, curve in curves.items():
        found.setdefault(further[name].order if name in further else name, []).append(curve)
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
    top1_correct: Mapping[str, NDArray[np.bool_]], scored: IntArray, truth: GroundTruth, served: Served,
    find: FindFirst,
) -> dict[str, Flips]:  # fmt: skip
    """Find the changes of each order and what stands first before and after them.

    Cost: one search, shared by all orders, for the queries that change in any of them.

    Args:
        top1_correct: Order -> (Q, J) whether the first result is right, from the replay of this pair.
        scored: (Q,) rows of the queries.
        truth: Right answers of all queries.
        served: The pair in these orders, with the merge of the replay.
        find: Searches the pair.

    Raises:
        RuntimeError: The search contradicts the replay: an error of this program.
    """
    are_changing = [(right[:, 1:] != right[:, :-1]).any(axis=1) for right in top1_correct.values()]
    changing = np.flatnonzero(np.any(are_changing, axis=0))
    if not len(changing):
        return {order: changes(right) for order, right in top1_correct.items()}
    found = find(served, scored[changing])
    flips = {}
    for order, right in top1_correct.items():
        first = found[order]
        apart = (measure_lists(first.item, truth, scored[changing], ())[1] != right[changing]).any(axis=1)
        if apart.any():
            raise RuntimeError(
                f"the search for first results contradicts the replay for {apart.sum()} of {len(apart)} queries in the "
                f"order {order!r}; this is an error of ray_backfill, please report it"
            )
        own = changes(right[changing])
        after, before = first.at((own.query, own.moment)), first.at((own.query, own.moment - 1))
        flips[order] = replace(own, query=changing[own.query], after=after, before=before)
    return flips


def changes(right: NDArray[np.bool_]) -> Flips:
    """The changes of first results of which only right and wrong is known, not the items. right: (Q, J)."""
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    unknown = RankedLists.nothing(len(query), 1)
    return Flips(query, before + 1, right[query, before], unknown, unknown)


# Key of a curve: (method, order, merge).
Key = tuple[str, str, str]
Curves = Mapping[Key, Replayed]

# Memory for the systems of a group of methods that no other method has, and for its values.
_GROUP_BYTES = 2 << 30


@dataclass(frozen=True)
class Systems:
    """The distinct systems of some methods. at: for each method, the indices of its backward and forward system."""

    systems: list[RetrievalSystem]
    at: list[tuple[int, int]]
    switches: list[Switch]


def distinct_systems(methods: Sequence[Method], pairs: Sequence[UpgradePair]) -> Systems:
    """Find what pairs share: the plain systems of models."""
    names, found = [System.both_of(method) for method in methods], dict[System, RetrievalSystem]()
    for (backward, forward), pair in zip(names, pairs, strict=True):
        found.setdefault(backward, pair.backward)
        found.setdefault(forward, pair.forward)
    places = {name: place for place, name in enumerate(found)}
    at = [(places[backward], places[forward]) for backward, forward in names]
    return Systems(list(found.values()), at, [pair.switch for pair in pairs])


# Replays these pairs; the systems are known by the indices in ``Served``.
ReplayPairs = Callable[[Sequence[Served]], Sequence[Mapping[str, Curve]]]


class Serving(NamedTuple):
    """The systems of some methods. pairs: of each method, None if they are elsewhere. replay, find: search them."""

    systems: Systems
    pairs: Sequence[UpgradePair | None]
    replay: ReplayPairs
    find: FindFirst


def replay_methods(comparison: Comparison, serve: Callable[[Sequence[Method]], Serving]) -> Curves:
    """The curve of each method, order and merge; of random orders, the mean over permutations.

    serve: makes the systems of some methods.
    """
    curves: dict[Key, Replayed] = {}
    how = comparison.evaluation
    further = further_permutations(comparison.orders, how.permutations)
    references = [method.name for method in comparison.methods if method.is_reference]
    with task("replay", len(comparison.methods), "methods") as bar:
        for methods in _groups(comparison):
            with step(", ".join(method.title for method in methods)):
                serving = serve(methods)
                systems = serving.systems
                served, keys = [], []
                for index, method in enumerate(methods):
                    orders = comparison.orders_of(method, serving.pairs[index])
                    if not method.is_reference:  # to references all orders are the same
                        orders |= {name: each.items for name, each in further.items()}
                    merges = comparison.merges_of(method)
                    if method.name in (OLD, NEW):
                        merges |= comparison.merges.of_reference(method)
                    for name, merge in merges.items():
                        switch = systems.switches[index]
                        served.append(Served(*systems.at[index], orders, switch, merge, method.recalls))
                        keys.append((method.name, name))
                for together in _apart(served, how.metrics):
                    found = serving.replay([served[i] for i in together])
                    to_judge = [
                        (i, order, found_P)
                        for i, of_orders in zip(together, found, strict=True)
                        for order, found_P in by_order(of_orders, further).items()
                    ]
                    for i, order, found_P in track(to_judge, "judge", "curves"):
                        judged = judge(found_P, how.step, how.margin, _ends(curves, order))
                        curves[keys[i][0], order, keys[i][1]] = replace(judged, merge=served[i].merge.name)
                for pair, (of_method, of_merge) in zip(served, keys, strict=True):
                    leads = of_merge == leading_merge(merge for name, merge in keys if name == of_method)
                    if leads and of_method not in references and not pair.recalls and not pair.merge.by_rank:
                        curves |= _with_flips(of_method, of_merge, pair, curves, comparison.truth, serving.find)
            bar.advance(len(methods))
    return in_order(comparison, _with_merges(curves))


def _ends(curves: Curves, order: str) -> list[Replayed]:
    """Old and new, with which curves of this order are compared; [] before both are judged."""
    found = [curves[name, order, RAW.name] for name in (OLD, NEW) if (name, order, RAW.name) in curves]
    return found if len(found) == 2 else []


def _with_merges(curves: Curves) -> Curves:
    """The curves of old and new hold those of the same system with a merge, which are no curves of their own."""
    found = {key: curve for key, curve in curves.items() if key[0] not in (OLD, NEW) or key[2] == RAW.name}
    for (name, order, merge), curve in curves.items():
        if (name, order, merge) not in found:
            raw = found[name, order, RAW.name]
            found[name, order, RAW.name] = replace(raw, with_merge={**raw.with_merge, curve.merge: curve})
    return found


def leading_merge(names: Iterable[str]) -> str:
    """Of the merges of a method, the one of which single queries are told: raw, or else the first."""
    return min(names, key=lambda name: name != RAW.name)


def _with_flips(
    method: str, merge: str, served: Served, curves: Curves, truth: GroundTruth, find: FindFirst
) -> dict[Key, Replayed]:
    """The curves of a method with a merge, with what stands first where their first results change."""
    # Of the permutations of a random order, only the first one has its name.
    own = {order: curves[method, order, merge] for order in served.orders if (method, order, merge) in curves}
    of_orders = {order: each.first_top1 for order, each in own.items()}
    first = replace(served, orders={order: served.orders[order] for order in own})
    found = find_flips(of_orders, next(iter(own.values())).curve.scored, truth, first, find)
    return {(method, order, merge): replace(own[order], flips=flips) for order, flips in found.items()}


def replay_here(comparison: Comparison, device: str = "cpu") -> Curves:
    """``replay_methods`` in this process. device: see ``replay``."""
    how = comparison.evaluation

    def serve(methods: Sequence[Method]) -> Serving:
        pairs = [comparison.pair(method) for method in methods]
        found = distinct_systems(methods, pairs)

        def replay(served: Sequence[Served]) -> Sequence[Mapping[str, Curve]]:
            return replay_pairs(
                found.systems, served, comparison.truth, how.moments, how.metrics, how.distance, progress=True,
                device=device,
            )  # fmt: skip

        def find(served: Served, queries: IntArray) -> Mapping[str, RankedLists]:
            return find_first(
                found.systems, served, comparison.truth, queries, how.moments, how.distance, progress=True,
                device=device,
            )  # fmt: skip

        return Serving(found, pairs, replay, find)

    return replay_methods(comparison, serve)


def _groups(comparison: Comparison) -> Iterator[list[Method]]:
    """Split the methods into groups that fit in memory."""
    how, folder, orders = comparison.evaluation, comparison.folder, comparison.named.replayed_orders
    n_values = comparison.truth.n_queries * how.moments * len(how.metrics) * orders * len(how.merges)
    widest = max(vectors.shape[1] for vectors in folder.gallery.vectors.values())
    n_vectors = len(folder.gallery) + comparison.truth.n_queries
    group: list[Method] = []
    size = 0
    for method in sorted(comparison.methods, key=lambda each: each.name not in (OLD, NEW)):  # others are judged by them
        own = sum(not side.plain for side in method.sides)
        more = 9 * n_values + 4 * own * widest * n_vectors
        if group and size + more > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(method)
        size += more
    if group:
        yield group


def _apart(served: Sequence[Served], metrics: Sequence[str]) -> list[list[int]]:
    """Groups of pairs to replay together: what a fusion by rank or a cascade needs, others may not need."""
    needs_all = any(parse_metric(name).k is None for name in metrics)
    cascades = [i for i, each in enumerate(served) if each.recalls]
    by_rank = [i for i, each in enumerate(served) if each.merge.by_rank and not needs_all]
    others = [i for i in range(len(served)) if i not in cascades and i not in by_rank]
    return [group for group in (others, by_rank, cascades) if group]


def in_order(comparison: Comparison, curves: Curves) -> Curves:
    """The curves by method, then merge, then order."""
    place = {method.name: index for index, method in enumerate(comparison.methods)}
    merges = {name: index for index, name in enumerate(dict.fromkeys(("raw", *comparison.evaluation.merges)))}
    keys = sorted(curves, key=lambda key: (place[key[0]], merges.get(key[2], 0)))
    return {key: curves[key] for key in keys}
