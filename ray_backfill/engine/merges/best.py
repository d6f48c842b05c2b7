"""Chooses the merge of a method by what it does to a backfill of items that it was not fitted on.

Models differ in the band that their distances fill: of one, the cosines of two texts may lie between -0.1 and 0.6, of
another one, between 0.7 and 1. Raw distances then put all items of one model first, whatever they show. Only a trial
tells which merge helps. Where items are held out, the merges are judged on them exactly as they are served; otherwise
the items are halved, each merge is fitted on one half, and the other half is searched.

Shapes: H items to search, B of them as queries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.bands import band_of, do_compare
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.merges.merge import RAW, Merge
from ray_backfill.engine.systems import IntArray, RetrievalSystem, UpgradePair

# (train pair, labels, distance, seed) -> merge. Train pair and labels are given if the kind needs them.
FitMerge = Callable[[UpgradePair | None, IntArray | None, str, int], Merge]

# Divisions into halves. Precision by 100 queries has a standard deviation of 1 to 3 points, as much as merges differ by
# (docs/log.md).
_DIVISIONS = 4
# Most items that are searched, most that a merge of a half is fitted on, and most queries: a trial takes 0.2 seconds.
_ITEMS, _FITTED, _QUERIES = 1_000, 500, 150
# Shares of the backfill at which items are searched, with their weights in the area under the curve.
_MOMENTS = {0.0: 0.25, 0.5: 0.5, 1.0: 0.25}
# Without labels, right is what the finished upgrade finds first.
_NEAREST = 10
# With fewer queries, a fitted merge cannot be distinguished from chance.
_FEWEST = 20
# Larger than every distance, and small enough that score maps can continue to it.
_BEHIND = 1e30


@dataclass(frozen=True)
class MergeTrial:
    """Items to judge merges on.

    pair: of the H items; the first B rows are the queries. distances: (B, H) of the backward and the forward system.
    is_right: (B, H). depth: ranks that count. places: (H,) of each item in the backfill order, of each order.
    """

    pair: UpgradePair
    distance: str
    distances: tuple[NDArray[np.float32], NDArray[np.float32]]
    is_right: NDArray[np.bool_]
    depth: int
    places: Sequence[IntArray]

    @cached_property
    def ranked(self) -> "list[_Ranked]":
        """At each moment of each order, by raw distances: most merges map these."""
        return _rank(self.distances, self.places)


class _Ranked(NamedTuple):
    """Items at a moment: (H,) whether each is backfilled; (B, H) distances, and their order. weight: of the moment."""

    done: NDArray[np.bool_]
    distances: NDArray[np.float32]
    order: IntArray
    weight: float


def _rank(distances: tuple[NDArray[np.float32], NDArray[np.float32]], places: Sequence[IntArray]) -> list[_Ranked]:
    ranked = []
    for moment, weight in _MOMENTS.items():
        some = places if 0 < moment < 1 else places[:1]  # at both ends, all orders are the same
        for place in some:
            done = place < moment * len(place)
            served = np.where(done, distances[1], distances[0])
            np.fill_diagonal(served, _BEHIND)  # a query is not its own answer
            order = np.argsort(served, axis=1, kind="stable")
            ranked.append(_Ranked(done, served, order, weight / len(some)))
    return ranked


def choose_fitted(
    merges: Mapping[str, Merge], unseen: UpgradePair, label: IntArray | None, distance: str, seed: int
) -> str:
    """The merge that ranks items best that neither it nor a map was fitted on; arguments and rules as of ``choose``.

    merges: as they will be served.
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(unseen.n_gallery)[:_ITEMS]
    places = [rng.permutation(len(rows)) for _ in range(_DIVISIONS)]
    trial = _trial(unseen, label, distance, rows, _DIVISIONS * _QUERIES, places)
    scores = {name: precision_of(trial, merge) for name, merge in merges.items()} if trial else {}
    return _best(scores, without_trial(unseen, distance))


def choose(
    candidates: Mapping[str, FitMerge], train: UpgradePair, label: IntArray | None, distance: str, seed: int
) -> str:
    """The merge that ranks held-out items best over a backfill in random order: see ``precision_of``.

    That is the mean over both halves of four random divisions. Raw distances are no candidate where the two systems'
    distances do not compare. Nor is a merge that cannot be fitted.

    Args:
        candidates: Name -> fit; "raw" and "quantile" among them.
        train: Row i of every array is item i.
        label: (items,) classes; None: right is what the forward system finds first.
        distance: "cosine", "l2" or "inner_product".
        seed: For the halves and the order.
    """
    trials = []
    for division in range(_DIVISIONS):
        rng = np.random.default_rng([seed, division])
        halves = np.array_split(rng.permutation(train.n_gallery), 2)
        trials += [_of_half(candidates, train, label, distance, seed, rng, *both) for both in (halves, halves[::-1])]
    in_all = [name for name in candidates if all(name in scores for scores in trials)]
    return _best({name: sum(scores[name] for scores in trials) for name in in_all}, without_trial(train, distance))


def _best(scores: Mapping[str, float], default: str) -> str:
    """The name with the highest score. default: without scores; raw distances must be it to be a candidate."""
    able = [name for name in scores if name != RAW.name or default == RAW.name]
    return max(able, key=lambda name: scores[name], default=default)


def without_trial(pair: UpgradePair, distance: str) -> str:
    """The merge to take without a trial: raw distances where those of the two systems compare, otherwise quantile."""
    bands = [band_of(system.query, distance, system.gallery) for system in (pair.backward, pair.forward)]
    return RAW.name if do_compare(*bands) else "quantile"


def _of_half(
    candidates: Mapping[str, FitMerge], train: UpgradePair, label: IntArray | None, distance: str, seed: int,
    rng: np.random.Generator, fitted_on: IntArray, judged: IntArray,
) -> dict[str, float]:  # fmt: skip
    """Name -> precision on one half; nothing if there are too few queries."""
    rows, fitted_on = (
        half if len(half) <= most else rng.choice(half, most, replace=False)
        for half, most in ((judged, _ITEMS), (fitted_on, _FITTED))
    )
    trial = _trial(train, label, distance, rows, _QUERIES, [rng.permutation(len(rows))])
    if trial is None:
        return {}
    some, of_label = _some(train, fitted_on), None if label is None else label[fitted_on]
    scores = {}
    for name, fit in candidates.items():
        try:
            merge = fit(some, of_label, distance, seed)
        except InputError:  # labels of one class only
            continue
        scores[name] = precision_of(trial, merge)
    return scores


def _trial(
    items: UpgradePair, label: IntArray | None, distance: str, rows: IntArray, queries: int, places: Sequence[IntArray]
) -> MergeTrial | None:
    """A trial on these rows, of which the first are queries; None if too few of them have a right answer."""
    pair = _some(items, rows)
    distances = both_distances(pair, distance, queries)
    is_right, depth = _right_answers(distances[1], None if label is None else label[rows])
    if np.count_nonzero(is_right.any(axis=1)) < _FEWEST:
        return None
    return MergeTrial(pair, distance, distances, is_right, depth, places)


def _some(pair: UpgradePair, rows: IntArray) -> UpgradePair:
    return pair.changed(lambda system: RetrievalSystem(system.query[rows], system.gallery[rows]))


def _right_answers(forward: NDArray[np.float32], label: IntArray | None) -> tuple[NDArray[np.bool_], int]:
    """(B, H) whether an item is a right answer, and the ranks that count.

    Right are items of the query's class; the first of some hundred stands where the first ten of a gallery do. Or else
    what the forward system finds first.
    """
    others = ~np.eye(*forward.shape, dtype=np.bool_)
    if label is not None:
        of_class: NDArray[np.bool_] = (label[: len(forward), None] == label) & others
        if np.count_nonzero(of_class.any(axis=1)) >= _FEWEST:
            return of_class, 1
    if forward.shape[1] <= _NEAREST + 1:
        return np.zeros_like(others), _NEAREST
    by_forward = np.where(others, forward, np.inf)
    return by_forward <= np.partition(by_forward, _NEAREST - 1, axis=1)[:, [_NEAREST - 1]], _NEAREST


def precision_of(trial: MergeTrial, merge: Merge) -> float:
    """Mean over moments and queries of the average precision at ``trial.depth``; at 1: whether the first item is right.

    Items of equal score are ranked by their distance.
    """
    pair, distance = merge.prepare(trial.pair, trial.distance)
    ranked = trial.ranked
    if pair is not trial.pair:
        ranked = _rank(both_distances(pair, distance, len(trial.is_right)), trial.places)
    total, answers_B = 0.0, trial.is_right.sum(axis=1)
    is_scored = answers_B > 0
    for done, distances, order, weight in ranked:
        if merge.is_mapped:
            scores = merge.scores(distances.ravel(), np.broadcast_to(done, distances.shape).ravel())
            by_distance = np.take_along_axis(scores.reshape(distances.shape), order, axis=1)
            order = np.take_along_axis(order, np.argsort(by_distance, axis=1, kind="stable"), axis=1)
        is_right = np.take_along_axis(trial.is_right, order[:, : trial.depth], axis=1)
        precision = np.cumsum(is_right, axis=1) / np.arange(1, is_right.shape[1] + 1)
        of_query = (precision * is_right).sum(axis=1)[is_scored] / np.minimum(answers_B[is_scored], is_right.shape[1])
        total += weight * float(of_query.mean())
    return total


def both_distances(pair: UpgradePair, distance: str, queries: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(B, H) distances of the backward and the forward system. queries: at most so many."""
    backward = _distances_of(pair.backward, distance, queries)
    return backward, backward if pair.forward is pair.backward else _distances_of(pair.forward, distance, queries)


def _distances_of(system: RetrievalSystem, distance: str, queries: int) -> NDArray[np.float32]:
    """(B, H) distances; rounding does not matter here, so by one product."""
    query, gallery = system.query[:queries], system.gallery
    if distance == "cosine":
        query, gallery = normalise(query), normalise(gallery)
    products = np.asarray(query, np.float64) @ np.asarray(gallery, np.float64).T
    if distance == "l2":
        squares = np.square(query, dtype=np.float64).sum(1)[:, None] + np.square(gallery, dtype=np.float64).sum(1)
        return np.sqrt(np.maximum(squares - 2 * products, 0)).astype(np.float32)
    return ((distance == "cosine") - products).astype(np.float32)
