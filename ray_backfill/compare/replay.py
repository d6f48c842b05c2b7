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
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.orders import BackfillOrders
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.systems import Systems, distinct_systems
from ray_backfill.compare.tables import NEW, NEW_EMBEDDINGS, OLD, STALE_ANSWERS
from ray_backfill.core.progress import step, task, track
from ray_backfill.encode.encoder import Device
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.lists import RankedLists, measure_lists
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.orders import make_order
from ray_backfill.engine.replay import Curve, Served, find_first, replay_pairs, usable_cpus
from ray_backfill.engine.systems import GroundTruth, IntArray, UpgradePair
from ray_backfill.learn.methods import Method
from ray_backfill.pipeline.attribution import PLAIN, variations_of
from ray_backfill.pipeline.replay import first_results, pairs_to_rank, replay_service
from ray_backfill.pipeline.rerank import score_pairs

OrderT = TypeVar("OrderT")
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


class FallFound(NamedTuple):
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
    (J,) M_t, and ``NEW_EMBEDDINGS`` or ``STALE_ANSWERS``. falls: metric -> largest fall. top1_correct: (Q, J).
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

    def settles_at(self, target: float, values: NDArray[np.float64]) -> float:
        """Return the progress from which on (J,) values never are below ``target``; NaN if they are at the end."""
        index = stats.settles(values, target - stats.ROUNDING)
        return float("nan") if index is None else float(self.t[index])


def judge(curves: Sequence[Curve], step: int, margin: float = 0.0, ends: "Sequence[Replayed]" = ()) -> Replayed:
    """Judge a curve at all its moments, and keep every ``step``-th one for the report. Cost: O(DRAWS Q J).

    curves: one, or those of several permutations of a random order, whose mean is judged. margin: loss that counts as
    none. ends: old and new; without them the limits of milestones stay unknown.
    """
    curve = mean_curve(curves)
    values = {metric: curve.values(metric) for metric in curve.per_query}
    draws, falls, reached = {}, {}, dict[str, list[tuple[float, float]]]()
    for metric, values_QJ in track(curve.per_query.items(), "bootstrap", "metrics"):
        means = stats.bootstrap_means(values_QJ, curve.weights)
        fall = stats.largest_fall(values[metric])
        limits = stats.fall_limits(means, values[metric])
        falls[metric] = FallFound(fall.size, *limits, float(curve.t[fall.peak]), float(curve.t[fall.trough]))
        draws[metric] = means[:, ::step].copy()
        if ends:
            old, new = (end.draws[metric][:, [at]] for end, at in zip(ends, (0, -1), strict=True))
            reached[metric] = []
            for target in (old - margin, (old + new) / 2, new - margin):
                ends_of_interval = stats.settle_limits(means - target, len(curve.scored))
                low, high = (curve.t[int(at)] if np.isfinite(at) else at for at in ends_of_interval)
                reached[metric].append((float(low), float(high)))
    if curve.embedded is not None:
        values[NEW_EMBEDDINGS] = stats.mean(curve.embedded, curve.weights)
    if curve.stale is not None:
        values[STALE_ANSWERS] = stats.mean(curve.stale, curve.weights)
    reported = [permutation.thinned(step) for permutation in curves] if len(curves) > 1 else []
    aucs = {metric: np.array([one.auc(metric) for one in reported]) for metric in curve.per_query if reported}
    first_top1, kept = curves[0].top1_correct.astype(np.bool_, copy=False), curve.thinned(step)
    return Replayed(kept, draws, curve.t, values, falls, curve.top1_correct, aucs, first_top1, reached=reached)


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


def by_order(curves: Mapping[str, OrderT], further: Mapping[str, Permutation]) -> dict[str, list[OrderT]]:
    """Order -> its curve (or what else each order has), or those of all its permutations."""
    of_order: dict[str, list[OrderT]] = {}
    for name, curve in curves.items():
        of_order.setdefault(further[name].order if name in further else name, []).append(curve)
    return of_order


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
    stale = [curve.stale for curve in curves if curve.stale is not None]
    variations = {name: mean_curve([curve.variations[name] for curve in curves]) for name in curves[0].variations}
    return replace(
        curves[0],
        per_query=per_query,
        top1_correct=top1,
        embedded=np.mean(embedded, axis=0) if embedded else None,
        stale=np.mean(stale, axis=0) if stale else None,
        variations=variations,
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
    first_items = find(served, scored[changing])
    flips = {}
    for order, right in top1_correct.items():
        first = first_items[order]
        apart = (measure_lists(first.item, truth, scored[changing], ())[1] != right[changing]).any(axis=1)
        if apart.any():
            raise RuntimeError(
                f"the search for first results contradicts the replay for {apart.sum()} of {len(apart)} queries in the "
                f"order {order!r}; this is an error of ray_backfill, please report it"
            )
        change = changes(right[changing])
        after, before = first.at((change.query, change.moment)), first.at((change.query, change.moment - 1))
        flips[order] = replace(change, query=changing[change.query], after=after, before=before)
    return flips


def changes(right: NDArray[np.bool_]) -> Flips:
    """The changes of first results of which only right and wrong is known, not the items. right: (Q, J)."""
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    unknown = RankedLists.nothing(len(query), 1)
    return Flips(query, before + 1, right[query, before], unknown, unknown)


# Key of a curve: (method, order, merge).
Key = tuple[str, str, str]
Curves = Mapping[Key, Replayed]


class Serving(NamedTuple):
    """The systems of some methods, and the functions that search them.

    pairs: of each method, None if they are elsewhere. replay: the curves of each pair in its orders. find: the first
    item of some queries (rows of the table of queries) in all orders of a pair; see ``find_first``.
    """

    systems: Systems
    pairs: Sequence[UpgradePair | None]
    replay: Callable[[Sequence[Served]], Sequence[Mapping[str, Curve]]]
    find: FindFirst


def replay_methods(comparison: Comparison, serve: Callable[[Sequence[Method]], Serving]) -> Curves:
    """The curve of each method, order and merge; of random orders, the mean over permutations.

    serve: makes the systems of some methods.
    """
    how = comparison.evaluation
    further = further_permutations(comparison.orders, how.permutations)
    needs_all_ranks = any(parse_metric(name).k is None for name in how.metrics)
    curves: dict[Key, Replayed] = {}
    with task("replay", len(comparison.methods), "methods") as bar:
        for methods in groups_in_memory(comparison):
            with step(", ".join(method.title for method in methods)):
                # Each method is served with each of its merges, in all orders.
                serving = serve(methods)
                served = served_in(comparison, methods, serving, further)
                # Replay together what has the same needs: a fusion by rank or a cascade needs more than others.
                by_needs: dict[tuple[bool, bool], list[tuple[str, str]]] = {}
                for key in served:
                    needs = served[key].recalls > 0, served[key].merge.by_rank and not needs_all_ranks
                    by_needs.setdefault(needs, []).append(key)
                for together in by_needs.values():
                    replayed = serving.replay([served[key] for key in together])
                    to_judge = [
                        (method_name, order, merge_name, permutations)
                        for (method_name, merge_name), of_orders in zip(together, replayed, strict=True)
                        for order, permutations in by_order(of_orders, further).items()
                    ]
                    for method_name, order, merge_name, permutations in track(to_judge, "judge", "curves"):
                        # Old and new come first, and all others are compared with them in the same order.
                        ends = [curves[end, order, RAW.name] for end in (OLD, NEW) if (end, order, RAW.name) in curves]
                        curve = judge(permutations, how.step, how.margin, ends if len(ends) == 2 else [])
                        merge = served[method_name, merge_name].merge
                        curves[method_name, order, merge_name] = replace(curve, merge=merge.name)
                # What stands first where first results change, with the merge by which single queries are told.
                for method in methods:
                    leading = leading_merge(merge for name, merge in served if name == method.name)
                    told = served[method.name, leading]
                    if method.is_reference or told.recalls or told.merge.by_rank:
                        continue
                    orders = {name: order for name, order in told.orders.items() if name not in further}
                    first_top1 = {order: curves[method.name, order, leading].first_top1 for order in orders}
                    scored = curves[method.name, next(iter(orders)), leading].curve.scored
                    first = replace(told, orders=orders)
                    for order, flips in find_flips(first_top1, scored, comparison.truth, first, serving.find).items():
                        curves[method.name, order, leading] = replace(curves[method.name, order, leading], flips=flips)
            bar.advance(len(methods))
    # Old and new with a merge are no curves of their own: those with raw distances hold them.
    for (name, order, merge_name), curve in list(curves.items()):
        if name in (OLD, NEW) and merge_name != RAW.name:
            raw = curves[name, order, RAW.name]
            with_merge = {**raw.with_merge, curve.merge: curve}
            curves[name, order, RAW.name] = replace(raw, with_merge=with_merge)
            del curves[name, order, merge_name]
    return in_order(comparison, curves)


def served_in(
    comparison: Comparison, methods: Sequence[Method], serving: Serving, further: Mapping[str, Permutation]
) -> dict[tuple[str, str], Served]:
    """Method and merge -> what is served. further: permutations of the random orders."""
    served, systems = dict[tuple[str, str], Served](), serving.systems
    for method, pair, at, switch in zip(methods, serving.pairs, systems.at, systems.switches, strict=True):
        orders, merges = comparison.orders_of(method, pair), comparison.merges_of(method)
        if not method.is_reference:  # to references all orders are the same
            orders |= {name: permutation.items for name, permutation in further.items()}
        if method.name in (OLD, NEW):
            merges |= comparison.merges.of_reference(method)
        for name, merge in merges.items():
            served[method.name, name] = Served(*at, orders, switch, merge, method.recalls)
    return served


def leading_merge(names: Iterable[str]) -> str:
    """Of the merges of a method, the one of which single queries are told: raw, or else the first."""
    return min(names, key=lambda name: name != RAW.name)


def replay_here(comparison: Comparison, device: str = "cpu") -> Curves:
    """``replay_methods`` in this process. device: see ``replay``."""
    how, truth, service = comparison.evaluation, comparison.truth, comparison.service

    def serve(methods: Sequence[Method]) -> Serving:
        pairs = [comparison.pair(method) for method in methods]
        distinct = distinct_systems(methods, pairs)

        def replay(served: Sequence[Served]) -> Sequence[Mapping[str, Curve]]:
            if service is None:
                return replay_pairs(
                    distinct.systems,
                    served,
                    truth,
                    how.moments,
                    how.metrics,
                    how.distance,
                    progress=True,
                    device=device,
                )
            names = variations_of(service.stages)
            behind, *others = replay_service(
                distinct.systems, served, truth, how.moments, how.metrics, how.distance, service, [*names.values()],
                how.step, progress=True, device=device,
            )  # fmt: skip
            plain = replay_pairs(distinct.systems, served, truth, how.points, how.metrics, how.distance, device=device)
            named = dict(zip((PLAIN, *names), (plain, *others), strict=True))
            return [
                {
                    order: replace(curve, variations={name: of[index][order] for name, of in named.items()})
                    for order, curve in of_orders.items()
                }
                for index, of_orders in enumerate(behind)
            ]

        def find(served: Served, queries: IntArray) -> Mapping[str, RankedLists]:
            if service is not None:
                return first_results(
                    distinct.systems, served, truth, queries, how.moments, how.distance, service, device=device
                )
            return find_first(
                distinct.systems, served, truth, queries, how.moments, how.distance, progress=True, device=device
            )

        return Serving(distinct, pairs, replay, find)

    return replay_methods(comparison, serve)


def with_relevance(comparison: Comparison, out: Path, device: str, overwrite: bool = False) -> Comparison:
    """The comparison with the re-ranker's scores of all pairs that it is shown at any moment, by any method and merge.

    They are kept in ``out``, and those that are there are not computed again.
    """
    service, settings, how = comparison.service, comparison.named.service, comparison.evaluation
    rerank = settings.rerank if settings else None
    if service is None or rerank is None or not rerank.model:
        return comparison
    further, keys = further_permutations(comparison.orders, how.permutations), [np.empty(0, np.int64)]
    for methods in groups_in_memory(comparison):
        pairs = [comparison.pair(method) for method in methods]
        systems = distinct_systems(methods, pairs)
        serving = Serving(systems, pairs, lambda served: (), lambda served, queries: {})
        served = [*served_in(comparison, methods, serving, further).values()]
        query, item = pairs_to_rank(
            systems.systems, served, comparison.truth, how.moments, how.distance, service,
            [*variations_of(service.stages).values()], progress=True, device=device,
        )  # fmt: skip
        keys.append(query * comparison.truth.n_gallery + item)
    key = np.unique(np.concatenate(keys))
    query, item = key // comparison.truth.n_gallery, key % comparison.truth.n_gallery
    place = Device("cuda:0", usable_cpus()) if device == "cuda" else None
    scores = score_pairs(
        query, item, comparison.folder, rerank.text, rerank.model, out, device=place, overwrite=overwrite
    )
    return replace(comparison, service=replace(service, relevance=scores))


def groups_in_memory(comparison: Comparison, most_bytes: int = 2 << 30) -> Iterator[list[Method]]:
    """Split the methods into groups; the systems of one that no other method has, and its values, fit in memory."""
    how, folder, orders = comparison.evaluation, comparison.folder, comparison.named.replayed_orders
    n_values = comparison.truth.n_queries * how.moments * len(how.metrics) * orders * len(how.merges)
    widest = max(vectors.shape[1] for vectors in folder.gallery.vectors.values())
    n_vectors = len(folder.gallery) + comparison.truth.n_queries
    group: list[Method] = []
    size = 0
    for method in sorted(comparison.methods, key=lambda method: method.name not in (OLD, NEW)):
        of_its_own = sum(not side.plain for side in method.sides)
        more = 9 * n_values + 4 * of_its_own * widest * n_vectors
        if group and size + more > most_bytes:
            yield group
            group, size = [], 0
        group.append(method)
        size += more
    yield group


def in_order(comparison: Comparison, curves: Curves) -> Curves:
    """The curves by method, then merge, then order."""
    place = {method.name: index for index, method in enumerate(comparison.methods)}
    merges = {name: index for index, name in enumerate(dict.fromkeys(("raw", *comparison.evaluation.merges)))}
    keys = sorted(curves, key=lambda key: (place[key[0]], merges.get(key[2], 0)))
    return {key: curves[key] for key in keys}
