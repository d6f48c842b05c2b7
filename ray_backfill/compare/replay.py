"""Replays every method of a comparison, in this process or in shards.

Methods share systems: most serve {new, new} to backfilled items. Methods are replayed in groups, so that each distinct
system of a group is searched once for all its methods, orders and merges.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ray_backfill.compare.replayed import FindFirst, Replayed, by_order, find_flips, further_permutations, judge
from ray_backfill.compare.resolve import Comparison, System
from ray_backfill.core.progress import step, task
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.replay import Curve, FirstItems, Served, find_first, replay_pairs
from ray_backfill.engine.systems import IntArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.methods import Method

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
    further = further_permutations(comparison.orders, comparison.evaluation.permutations)
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
                        orders |= further
                    for name, merge in comparison.merges_of(method).items():
                        switch = systems.switches[index]
                        served.append(Served(*systems.at[index], orders, switch, merge, method.recalls))
                        keys.append((method.name, name))
                for together in _apart(served, comparison.evaluation.metrics):
                    found = serving.replay([served[i] for i in together])
                    for i, of_orders in zip(together, found, strict=True):
                        for order, found_P in by_order(of_orders).items():
                            judged = judge(found_P, comparison.evaluation.step)
                            curves[keys[i][0], order, keys[i][1]] = replace(judged, merge=served[i].merge.name)
                for pair, (of_method, of_merge) in zip(served, keys, strict=True):
                    leads = of_merge == leading_merge(merge for name, merge in keys if name == of_method)
                    if leads and of_method not in references and not pair.recalls and not pair.merge.by_rank:
                        curves |= _with_flips(of_method, of_merge, pair, curves, serving.find)
            bar.advance(len(methods))
    return {key: curves[key] for key in _in_order(comparison, curves)}


def leading_merge(names: Iterable[str]) -> str:
    """Of the merges of a method, the one of which single queries are told: raw, or else the first."""
    return min(names, key=lambda name: name != RAW.name)


def _with_flips(method: str, merge: str, served: Served, curves: Curves, find: FindFirst) -> dict[Key, Replayed]:
    """The curves of a method with a merge, with what stands first where their first results change."""
    # Of the permutations of a random order, only the first one has its name.
    own = {order: curves[method, order, merge] for order in served.orders if (method, order, merge) in curves}
    of_orders = {order: each.first_top1 for order, each in own.items()}
    first = replace(served, orders={order: served.orders[order] for order in own})
    found = find_flips(of_orders, next(iter(own.values())).curve.scored, first, find)
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

        def find(served: Served, queries: IntArray) -> Mapping[str, FirstItems]:
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
    for method in comparison.methods:
        own = sum(not model for model in (method.backward, method.forward))
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


def _in_order(comparison: Comparison, curves: Mapping[Key, Replayed]) -> list[Key]:
    """Keys by method, then merge, then order."""
    place = {method.name: index for index, method in enumerate(comparison.methods)}
    merges = {name: index for index, name in enumerate(dict.fromkeys(("raw", *comparison.evaluation.merges)))}
    return sorted(curves, key=lambda key: (place[key[0]], merges.get(key[2], 0)))
