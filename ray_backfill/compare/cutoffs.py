"""Translates score cut-offs from {old, old} to the systems of each method, and counts what a service shows with them.

A merge makes the distances of two systems comparable, so it also says which distance of one corresponds to a cut-off of
the other. The old service's cut-off is carried to the backward system by a merge that is fitted on {old, old} and this
system, and from there to the forward system by the method's own merge: both cut the merged ranking at one place.

Shapes: N gallery items, C cut-offs, T reported points.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.fitted import FittedMaps, MergeFits
from ray_backfill.compare.replay import by_order, further_permutations
from ray_backfill.compare.resolve import Comparison, System
from ray_backfill.compare.tables import OLD, LeftOut
from ray_backfill.core.progress import detail, task
from ray_backfill.engine.merges import BEST, RAW, Merge, all_merges, fit_merge
from ray_backfill.engine.replay import Within, count_within, segment_of_item
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Method

Distances = NDArray[np.float32]
Floats = NDArray[np.float64]
# The best merge differs from method to method, and can be one without cut-offs.
_FOR_BEST = ("raw", "quantile")
_LARGEST = np.finfo(np.float32).max


class Carried(NamedTuple):
    """(C,) distances: the cut-offs in the backward and in the forward system."""

    backward: Distances
    forward: Distances


@dataclass(frozen=True)
class _Plan:
    """What is counted for a method. carried: by merge. rows: order -> rows of segments, one for each permutation."""

    method: Method
    backward: System
    forward: System
    switch: Switch
    carried: Mapping[str, Carried]
    rows: Mapping[str, list[int]]


def cutoff_merges(names: Sequence[str]) -> list[str]:
    """The merges by which cut-offs can be translated; for the best one, those that need no labels."""
    told = dict.fromkeys(each for name in names for each in (_FOR_BEST if name == BEST else (name,)))
    return [name for name in told if not all_merges()[name].why_no_cutoffs]


def cutoffs_left_out(comparison: Comparison) -> tuple[LeftOut, ...]:
    """The merges by which no cut-off can be translated, and cascades, for the report; () if no cut-off was given."""
    names = comparison.merges.names if comparison.evaluation.cutoffs else ()
    kinds = [all_merges()[name] for name in names if name != BEST]
    cascades = [method.name for method in comparison.methods if method.recalls and names]
    return (
        *(LeftOut("cut-offs", kind.name, kind.why_no_cutoffs) for kind in kinds if kind.why_no_cutoffs),
        *(LeftOut("cut-offs of", name, "it shows re-ranked candidates, not all within a cut-off") for name in cascades),
    )


def measured_cutoffs(comparison: Comparison) -> list[tuple[Any, ...]]:
    """What each method, order, merge and cut-off shows: the columns of ``CutoffRow``, where several (T,).

    [] without a cut-off, or a merge that translates it. comparison: with its maps.

    Cost: a fit of each merge for each method, and a float32 product of all queries and items for each distinct system,
    in this process, also where the curves are replayed in shards.
    """
    how = comparison.evaluation
    if not (how.cutoffs and cutoff_merges(comparison.merges.names)):
        return []
    given_C = np.array(list(dict.fromkeys(how.cutoffs)))
    with task("cut-offs", len(comparison.systems), "systems") as bar:
        segments: dict[bytes, NDArray[np.uint16]] = {}
        with detail("translate", len(comparison.methods), "methods") as methods:
            plans = []
            for method in (method for method in comparison.methods if not method.recalls):
                plans.append(_plan(comparison, method, as_distances(given_C, how.distance), segments))
                methods.advance()
        counted = dict[System, _Counted]()
        for system, vectors in _systems(comparison, plans):
            counted[system] = _count(comparison, system, vectors, plans, list(segments.values()), given_C)
            bar.done = len(counted)
        return [found for plan in plans for found in _measured_of(comparison, plan, counted, given_C)]


def as_distances(cutoffs_C: Floats, distance: str) -> Distances:
    """The exact distance of a pair that is exactly at each cut-off."""
    narrow = cutoffs_C.astype(np.float32)
    if distance == "cosine":
        return np.asarray(np.float32(1) - narrow, np.float32)
    return narrow if distance == "l2" else np.asarray(np.float32(0) - narrow, np.float32)


def as_cutoffs(distances_C: Distances, given_C: Floats, distance: str) -> Floats:
    """Distances in the unit of the given cut-offs; these themselves where nothing changes, to the last digit."""
    wide = distances_C.astype(np.float64)
    wide[distances_C >= _LARGEST], wide[distances_C <= -_LARGEST] = np.inf, -np.inf
    unit = {"cosine": 1 - wide, "l2": wide}.get(distance, -wide)
    return np.where(distances_C == as_distances(given_C, distance), given_C, unit)


def carry(fits: MergeFits, method: Method, maps: FittedMaps, given_C: Distances) -> dict[str, Carried]:
    """Merge -> the old service's cut-offs in the method's systems, for the merges that can be fitted for this method.

    given_C: distances in {old, old}. Also for references and policies with one system: they are replayed without a
    merge, but the distances of another model than the old one need another cut-off.
    """
    items, pair = fits.items, None
    if items is not None and all(model in items.gallery for model in method.models):
        pair = method.pair(items, maps.of(method))
    found = {}
    for name in cutoff_merges(fits.names):
        if all_merges()[name].needs_train and pair is None:
            continue
        to_backward, to_forward = _fit_both(fits, name, method, pair)
        backward = to_backward.carry_cutoffs(given_C)
        found[name] = Carried(backward, to_forward.carry_cutoffs(backward))
    return found


def _fit_both(fits: MergeFits, name: str, method: Method, pair: UpgradePair | None) -> tuple[Merge, Merge]:
    """The merge of {old, old} with the backward system, and of the backward with the forward one.

    RAW between a system and itself, because a fit would be the identity only up to its noise.
    """

    def fit(train: UpgradePair | None) -> Merge:
        return fit_merge(name, train, fits.label, fits.distance, fits.seed)

    to_old = None
    if pair is not None and fits.items is not None:
        to_old = UpgradePair(RetrievalSystem(fits.items.query[OLD], fits.items.gallery[OLD]), pair.backward)
    return RAW if method.backward.plain == OLD else fit(to_old), RAW if method.backward == method.forward else fit(pair)


def _plan(
    comparison: Comparison, method: Method, given_C: Distances, segments: dict[bytes, NDArray[np.uint16]]
) -> _Plan:
    """segments: of items by order, by their bytes; those of this method are added."""
    how, maps = comparison.evaluation, comparison.maps
    backward, forward = System.both_of(method)
    further = {} if method.is_reference else further_permutations(comparison.orders, how.permutations)
    orders = comparison.orders_of(method) | {name: each.items for name, each in further.items()}
    rows = {}
    for name, order in orders.items():
        own = segment_of_item(order, how.points, method.switch)
        segments.setdefault(own.tobytes(), own)
        rows[name] = list(segments).index(own.tobytes())
    carried = carry(comparison.merges, method, maps, given_C)
    return _Plan(method, backward, forward, method.switch, carried, by_order(rows, further))


def _systems(comparison: Comparison, plans: Sequence[_Plan]) -> Iterator[tuple[System, RetrievalSystem]]:
    """Each distinct system once; those of one method at a time, because they take memory."""
    e = comparison.embeddings
    for system in dict.fromkeys(s for plan in plans for s in (plan.backward, plan.forward) if not s.method):
        yield system, e.systems([system.side], None)[0]
    for plan in plans:
        own = {plan.backward: "backward", plan.forward: "forward"}
        pair = comparison.pair(plan.method) if any(system.method for system in own) else None
        for system, side in own.items():
            if system.method:
                yield system, getattr(pair, side)


@dataclass(frozen=True)
class _Counted:
    """The pairs within the cut-offs of one system. rows: of the segments that were counted."""

    within: Within
    rows: list[int]

    def sums(self, row: int, cutoff: np.float32, is_backfilled: bool) -> Floats:
        """(2, T) sums of weights: all items and right answers, of those that are backfilled or of the others."""
        found = self.within.backfilled if is_backfilled else self.within.waiting
        return found[:, self.rows.index(row), :, np.searchsorted(self.within.cutoffs, cutoff)]


def _count(
    comparison: Comparison,
    system: System,
    vectors: RetrievalSystem,
    plans: Sequence[_Plan],
    segments: Sequence[NDArray[np.uint16]],
    given_C: Floats,
) -> _Counted:
    how, truth = comparison.evaluation, comparison.truth
    cutoffs, rows = [as_distances(given_C, how.distance)], set[int]()
    for plan in plans:
        if system in (plan.backward, plan.forward):
            rows.update(row for of_order in plan.rows.values() for row in of_order)
        for carried in plan.carried.values():
            cutoffs += [d for s, d in zip((plan.backward, plan.forward), carried, strict=True) if s == system]
    known = sorted(rows)
    n_pairs = (truth.n_queries - len(truth.skipped)) * truth.n_gallery
    with detail("compare", n_pairs, "pairs") as bar:
        within = count_within(
            vectors, truth, np.concatenate(cutoffs), np.stack([segments[row] for row in known]), how.points,
            how.distance, bar.advance,
        )  # fmt: skip
    return _Counted(within, known)


def _measured_of(
    comparison: Comparison, plan: _Plan, counted: Mapping[System, _Counted], given_C: Floats
) -> Iterator[tuple[Any, ...]]:
    how = comparison.evaluation
    given, totals = as_distances(given_C, how.distance), _totals(comparison.truth)
    old = counted[System(plain(OLD))]
    for name, carried in plan.carried.items():
        units = [as_cutoffs(each, given_C, how.distance) for each in carried]
        if plan.switch == "only_backfilled":
            units[0] = np.full(len(given_C), np.nan)
        for order, rows in plan.rows.items():
            for c, cutoff in enumerate(given_C):
                # The pairs of {old, old} at the start, of any order: all of them.
                before = _measured(old.sums(old.rows[0], given[c], False)[:, :1], totals)
                unchanged = _measured(_shown(plan, counted, rows, given[c], given[c]), totals)
                translated = _measured(_shown(plan, counted, rows, carried.backward[c], carried.forward[c]), totals)
                yield (
                    plan.method.name, order, name, cutoff, np.linspace(0, 1, how.points), units[0][c], units[1][c],
                    *(float(each[0]) for each in before), *unchanged, *translated,
                )  # fmt: skip


def _shown(
    plan: _Plan, counted: Mapping[System, _Counted], rows: Sequence[int], backward: np.float32, forward: np.float32
) -> Floats:
    """(2, T) sums of weights of what the service shows, all items and right ones; the mean over permutations."""
    total = np.zeros((2, 1))
    for row in rows:
        total = total + counted[plan.forward].sums(row, forward, True)
        if plan.switch != "only_backfilled":
            total = total + counted[plan.backward].sums(row, backward, False)
    return total / len(rows)


def _totals(truth: GroundTruth) -> tuple[float, float]:
    """Sums of weights over scored queries, and over their right answers."""
    scored: IntArray = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    weights = None if truth.weights is None else relative_weights(truth.weights[scored])
    weights_Q = np.ones(len(scored)) if weights is None else weights
    return float(weights_Q.sum()), float(weights_Q @ np.diff(truth.positive_starts)[scored])


def _measured(shown_2T: Floats, totals: tuple[float, float]) -> tuple[Floats, Floats, Floats]:
    """(T,) precision, recall and results per query."""
    (shown, right), (queries, positives) = shown_2T, totals
    precision = np.full(len(shown), np.nan)
    np.divide(right, shown, out=precision, where=shown > 0)
    return precision, right / positives, shown / queries
