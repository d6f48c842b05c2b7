"""Replays every method of a comparison, in this process or in shards.

Methods share systems: most serve {new, new} to backfilled items. Methods are replayed in groups, so that each distinct
system of a group is searched once for all its methods, orders and merges.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ray_backfill.comparison.permutations import by_order, further_permutations
from ray_backfill.comparison.replayed import Replayed, judge
from ray_backfill.comparison.resolve import Comparison, System
from ray_backfill.methods import Method
from ray_backfill.metrics import parse_metric
from ray_backfill.progress import stage, step
from ray_backfill.replay import Curve, Served, replay_pairs
from ray_backfill.systems import RetrievalSystem, Switch, UpgradePair

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
    systems: list[RetrievalSystem] = []
    places: dict[System, int] = {}
    at = []
    for method, pair in zip(methods, pairs, strict=True):
        found = []
        for side, model, system in (
            ("backward", method.backward, pair.backward),
            ("forward", method.forward, pair.forward),
        ):
            name = System(model) if model else System(method=method.name, side=side)
            if name not in places:
                places[name] = len(systems)
                systems.append(system)
            found.append(places[name])
        at.append((found[0], found[1]))
    return Systems(systems, at, [pair.switch for pair in pairs])


# Replays these pairs; the systems are known by the indices in ``Served``.
ReplayPairs = Callable[[Sequence[Served]], Sequence[Mapping[str, Curve]]]


def replay_methods(
    comparison: Comparison,
    serve: Callable[[Sequence[Method]], tuple[Systems, Sequence[UpgradePair | None], ReplayPairs]],
) -> Curves:
    """The curve of each method, order and merge; of random orders, the mean over permutations.

    serve: makes the systems of some methods.
    """
    curves: dict[Key, Replayed] = {}
    further = further_permutations(comparison.orders, comparison.evaluation.permutations)
    with stage("replay", len(comparison.methods), "methods") as bar:
        for methods in _groups(comparison):
            with step(", ".join(method.title for method in methods)):
                systems, pairs, replay = serve(methods)
                served, keys = [], []
                for index, method in enumerate(methods):
                    orders = comparison.orders_of(method, pairs[index])
                    if not method.is_reference:  # to references all orders are the same
                        orders |= further
                    for name, merge in comparison.merges_of(method).items():
                        served.append(Served(*systems.at[index], orders, systems.switches[index], merge))
                        keys.append((method.name, name))
                for together in _apart(served, comparison.evaluation.metrics):
                    found = replay([served[i] for i in together])
                    for i, of_orders in zip(together, found, strict=True):
                        for order, found_P in by_order(of_orders).items():
                            curves[keys[i][0], order, keys[i][1]] = judge(found_P, comparison.evaluation.step)
            bar.advance(len(methods))
    return {key: curves[key] for key in _in_order(comparison, curves)}


def replay_here(comparison: Comparison, device: str = "cpu") -> Curves:
    """``replay_methods`` in this process. device: see ``replay``."""
    how = comparison.evaluation

    def serve(methods: Sequence[Method]) -> tuple[Systems, Sequence[UpgradePair], ReplayPairs]:
        pairs = [comparison.pair(method) for method in methods]
        found = distinct_systems(methods, pairs)

        def replay(served: Sequence[Served]) -> Sequence[Mapping[str, Curve]]:
            return replay_pairs(
                found.systems, served, comparison.truth, how.moments, how.metrics, how.distance, progress=True,
                device=device,
            )  # fmt: skip

        return found, pairs, replay

    return replay_methods(comparison, serve)


def _groups(comparison: Comparison) -> Iterator[list[Method]]:
    """Split the methods into groups that fit in memory."""
    how, folder = comparison.evaluation, comparison.folder
    n_values = comparison.truth.n_queries * how.moments * len(how.metrics) * how.replayed_orders * len(how.merges)
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
    """Groups of pairs to replay together: a fusion by rank needs whole rankings, which others may not need."""
    if any(parse_metric(name).k is None for name in metrics):
        return [list(range(len(served)))]
    by_rank = [i for i, each in enumerate(served) if each.merge.by_rank]
    others = [i for i, each in enumerate(served) if not each.merge.by_rank]
    return [group for group in (others, by_rank) if group]


def _in_order(comparison: Comparison, curves: Mapping[Key, Replayed]) -> list[Key]:
    """Keys by method, then merge, then order."""
    place = {method.name: index for index, method in enumerate(comparison.methods)}
    merges = {name: index for index, name in enumerate(dict.fromkeys(("raw", *comparison.evaluation.merges)))}
    return sorted(curves, key=lambda key: (place[key[0]], merges.get(key[2], 0)))
