"""Chooses the merge of a method by what it does to a backfill of items that it was not fitted on.

Models differ in the band that their distances fill: of one, the cosines of two texts may lie between -0.1 and 0.6, of
another one, between 0.7 and 1. Raw distances then put all items of one model first, whatever they show. Only a trial
tells which merge helps, so the items are halved, each merge is fitted on one half, and the other half is searched.

Shapes: H items of a half, B of them as queries.
"""

from collections.abc import Callable, Mapping
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

# (pair, labels) -> merge.
FitOne = Callable[[UpgradePair, IntArray | None], Merge]

# Precision by 100 queries has a standard deviation of 1 to 3 points, as much as merges differ by (docs/log.md).
_DIVISIONS = 4
# Most items of a half, most that a merge is fitted on, and most queries: a fit and its trial take 0.2 seconds.
_ITEMS, _FITTED, _QUERIES = 1_000, 500, 150
# Shares of the backfill at which a half is searched, with their weights in the area under the curve.
_MOMENTS = {0.0: 0.25, 0.5: 0.5, 1.0: 0.25}
# Without labels, right is what the finished upgrade finds first.
_NEAREST = 10
# With fewer queries in a half, a fitted merge cannot be distinguished from chance.
_FEWEST = 20
# Larger than every distance, and small enough that score maps can continue to it.
_BEHIND = 1e30


@dataclass(frozen=True)
class Half:
    """Items to judge merges on.

    distances: (B, H) of the backward and the forward system. is_right: (B, H). place: (H,) of each item in the backfill
    order.
    """

    pair: UpgradePair
    distance: str
    distances: tuple[NDArray[np.float32], NDArray[np.float32]]
    is_right: NDArray[np.bool_]
    place: IntArray

    @cached_property
    def ranked(self) -> "list[_Ranked]":
        """At each moment, by raw distances: most merges map these."""
        return _rank(self.distances, self.place)


class _Ranked(NamedTuple):
    """Items at a moment: (H,) whether each is backfilled; (B, H) distances, and their order."""

    done: NDArray[np.bool_]
    distances: NDArray[np.float32]
    order: IntArray


def _rank(distances: tuple[NDArray[np.float32], NDArray[np.float32]], place: IntArray) -> list[_Ranked]:
    ranked = []
    for moment in _MOMENTS:
        done = place < moment * len(place)
        served = np.where(done, distances[1], distances[0])
        np.fill_diagonal(served, _BEHIND)  # a query is not its own answer
        ranked.append(_Ranked(done, served, np.argsort(served, axis=1, kind="stable")))
    return ranked


def choose(
    candidates: Mapping[str, FitOne], train: UpgradePair, label: IntArray | None, distance: str, seed: int
) -> str:
    """The merge that ranks held-out items best, by mean average precision over a backfill in random order.

    That is the mean over both halves of four random divisions. Raw distances are no candidate where the two systems'
    distances do not compare. Nor is a merge that cannot be fitted.

    Args:
        candidates: Name -> fit; "raw" and "quantile" among them.
        train: Row i of every array is item i.
        label: (items,) classes; None: right is what the forward system finds first.
        distance: "cosine", "l2" or "inner_product".
        seed: For the halves and the order.
    """
    found = []
    for division in range(_DIVISIONS):
        rng = np.random.default_rng([seed, division])
        halves = np.array_split(rng.permutation(train.n_gallery), 2)
        found += [_trial(candidates, train, label, distance, rng, *both) for both in (halves, halves[::-1])]
    judged = {name: sum(each[name] for each in found) for name in candidates if all(name in each for each in found)}
    default = without_trial(train, distance)
    if default != RAW.name:
        judged.pop(RAW.name, None)
    return max(judged, key=lambda name: judged[name], default=default)


def without_trial(pair: UpgradePair, distance: str) -> str:
    """The merge to take without a trial: raw distances where those of the two systems compare, otherwise quantile."""
    bands = [band_of(each.query, distance, each.gallery) for each in (pair.backward, pair.forward)]
    return RAW.name if do_compare(*bands) else "quantile"


def _trial(
    candidates: Mapping[str, FitOne], train: UpgradePair, label: IntArray | None, distance: str,
    rng: np.random.Generator, fitted_on: IntArray, judged: IntArray,
) -> dict[str, float]:  # fmt: skip
    """Name -> mean average precision on one half; nothing if there are too few queries."""
    rows, fitted_on = (
        half if len(half) <= most else rng.choice(half, most, replace=False)
        for half, most in ((judged, _ITEMS), (fitted_on, _FITTED))
    )
    pair = _some(train, rows)
    distances = both_distances(pair, distance)
    is_right = _right_answers(distances[1], None if label is None else label[rows])
    if np.count_nonzero(is_right.any(axis=1)) < _FEWEST:
        return {}
    half = Half(pair, distance, distances, is_right, rng.permutation(len(rows)))
    some, of_label = _some(train, fitted_on), None if label is None else label[fitted_on]
    scores = {}
    for name, fit in candidates.items():
        try:
            merge = fit(some, of_label)
        except InputError:  # labels of one class only
            continue
        scores[name] = precision_of(half, merge)
    return scores


def _some(pair: UpgradePair, rows: IntArray) -> UpgradePair:
    both = [RetrievalSystem(each.query[rows], each.gallery[rows]) for each in (pair.backward, pair.forward)]
    return UpgradePair(both[0], both[0] if pair.forward is pair.backward else both[1], pair.switch)


def _right_answers(forward: NDArray[np.float32], label: IntArray | None) -> NDArray[np.bool_]:
    """(B, H) whether an item is a right answer: of the query's class, or else what the forward system finds first."""
    others = ~np.eye(*forward.shape, dtype=np.bool_)
    if label is not None:
        of_class: NDArray[np.bool_] = (label[:_QUERIES, None] == label) & others
        if np.count_nonzero(of_class.any(axis=1)) >= _FEWEST:
            return of_class
    if forward.shape[1] <= _NEAREST + 1:
        return np.zeros_like(others)
    by_forward = np.where(others, forward, np.inf)
    return by_forward <= np.partition(by_forward, _NEAREST - 1, axis=1)[:, [_NEAREST - 1]]


def precision_of(half: Half, merge: Merge) -> float:
    """Mean over queries and moments of the average precision. Items of equal score are ranked by their distance."""
    pair, distance = merge.prepare(half.pair, half.distance)
    ranked = half.ranked if pair is half.pair else _rank(both_distances(pair, distance), half.place)
    total = 0.0
    for (done, distances, order), weight in zip(ranked, _MOMENTS.values(), strict=True):
        if merge.is_mapped:
            scores = merge.scores(distances.ravel(), np.broadcast_to(done, distances.shape).ravel())
            by_distance = np.take_along_axis(scores.reshape(distances.shape), order, axis=1)
            order = np.take_along_axis(order, np.argsort(by_distance, axis=1, kind="stable"), axis=1)
        total += weight * _average_precision(np.take_along_axis(half.is_right, order, axis=1))
    return total


def _average_precision(ranked_BH: NDArray[np.bool_]) -> float:
    """The mean over queries that have a right answer. ranked_BH: whether the item of each rank is right."""
    ranked = ranked_BH[ranked_BH.any(axis=1)]
    precision = np.cumsum(ranked, axis=1) / np.arange(1, ranked.shape[1] + 1)
    return float(((precision * ranked).sum(axis=1) / ranked.sum(axis=1)).mean())


def both_distances(pair: UpgradePair, distance: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(B, H) distances of the backward and the forward system."""
    backward = _distances_of(pair.backward, distance)
    return backward, backward if pair.forward is pair.backward else _distances_of(pair.forward, distance)


def _distances_of(system: RetrievalSystem, distance: str) -> NDArray[np.float32]:
    """(B, H) distances; rounding does not matter here, so by one product."""
    query, gallery = system.query[:_QUERIES], system.gallery
    if distance == "cosine":
        query, gallery = normalise(query), normalise(gallery)
    products = np.asarray(query, np.float64) @ np.asarray(gallery, np.float64).T
    if distance == "l2":
        squares = np.square(query, dtype=np.float64).sum(1)[:, None] + np.square(gallery, dtype=np.float64).sum(1)
        return np.sqrt(np.maximum(squares - 2 * products, 0)).astype(np.float32)
    return ((distance == "cosine") - products).astype(np.float32)
