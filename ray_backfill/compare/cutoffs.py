"""Translates score cut-offs from {old, old} to the systems of each method, and counts what a service shows with them.

A merge makes the distances of two systems comparable, so it also says which distance of one corresponds to a cut-off of
the other. The old service's cut-off is carried to the backward system by a merge that is fitted on {old, old} and this
system, and from there to the forward system by the method's own merge: both cut the merged ranking at one place.

Shapes: N gallery items, C cut-offs, T reported points.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.fitted import FittedMaps, MergeFits
from ray_backfill.compare.replay import by_order, further_permutations
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.systems import System
from ray_backfill.compare.tables import OLD, LeftOut
from ray_backfill.core.progress import detail, task
from ray_backfill.engine.merges import BEST, RAW, all_merges, fit_merge
from ray_backfill.engine.replay import Within, count_within, segment_of_item
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import Floats, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Method

Distances = NDArray[np.float32]
_LARGEST = np.finfo(np.float32).max


class Carried(NamedTuple):
    """(C,) distances: the cut-offs in the backward and in the forward system."""

    backward: Distances
    forward: Distances


@dataclass(frozen=True)
class _Counting:
    """What is counted for a method. carried: by merge. rows: order -> rows of segments, one for each permutation."""

    method: Method
    backward: System
    forward: System
    carried: Mapping[str, Carried]
    rows: Mapping[str, list[int]]

    @property
    def hides_others(self) -> bool:
        """Whether items that are not backfilled are not served."""
        return self.method.switch == "only_backfilled"


def cutoff_merges(names: Sequence[str]) -> list[str]:
    """The merges by which cut-offs can be translated; for the best one, those that need no labels."""
    # The best merge differs from method to method, and can be one without cut-offs.
    told = dict.fromkeys(chain(*(("raw", "quantile") if name == BEST else (name,) for name in names)))
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
    distances_C = as_distances(given_C, how.distance)
    distinct = {system for method in comparison.methods for system in System.both_of(method)}
    with task("cut-offs", len(distinct), "systems") as bar:
        segments: dict[bytes, NDArray[np.uint16]] = {}  # of items by order, by their bytes
        countings = []
        with detail("translate", len(comparison.methods), "methods") as methods:
            for method in (method for method in comparison.methods if not method.recalls):
                further = {} if method.is_reference else further_permutations(comparison.orders, how.permutations)
                orders = comparison.orders_of(method) | {name: one.items for name, one in further.items()}
                rows = {}
                for name, order in orders.items():
                    segment_N = segment_of_item(order, how.points, method.switch)
                    segments.setdefault(segment_N.tobytes(), segment_N)
                    rows[name] = list(segments).index(segment_N.tobytes())
                carried = carry(comparison.merges, method, comparison.maps, distances_C)
                countings.append(_Counting(method, *System.both_of(method), carried, by_order(rows, further)))
                methods.advance()
        counted = dict[System, _WithinCutoffs]()
        for system, vectors in _systems(comparison, countings):
            counted[system] = _count(comparison, system, vectors, countings, list(segments.values()), distances_C)
            bar.done = len(counted)
        return [row for counting in countings for row in _measured_of(comparison, counting, counted, given_C)]


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
    items, from_old, pair = fits.items, None, None
    if items is not None and all(model in items.gallery for model in method.models):
        pair = method.pair(items, maps.of(method))
        from_old = UpgradePair(RetrievalSystem(items.query[OLD], items.gallery[OLD]), pair.backward)
    carried = {}
    for name in cutoff_merges(fits.names):
        if all_merges()[name].needs_train and pair is None:
            continue
        # RAW between a system and itself, because a fit would be the identity only up to its noise.
        to_backward, to_forward = (
            RAW if is_same else fit_merge(name, train, fits.label, fits.distance, fits.seed)
            for is_same, train in ((method.backward.plain == OLD, from_old), (method.backward == method.forward, pair))
        )
        backward = to_backward.carry_cutoffs(given_C)
        carried[name] = Carried(backward, to_forward.carry_cutoffs(backward))
    return carried


def _systems(comparison: Comparison, countings: Sequence[_Counting]) -> Iterator[tuple[System, RetrievalSystem]]:
    """Each distinct system once; those of one method at a time, because they take memory."""
    e = comparison.embeddings
    for system in dict.fromkeys(s for one in countings for s in (one.backward, one.forward) if not s.method):
        yield system, e.systems([system.side], None)[0]
    for one in countings:
        of_method = {one.backward: "backward", one.forward: "forward"}
        pair = comparison.pair(one.method) if any(system.method for system in of_method) else None
        for system, side in of_method.items():
            if system.method:
                yield system, getattr(pair, side)


@dataclass(frozen=True)
class _WithinCutoffs:
    """The pairs within the cut-offs of one system. rows: of the segments that were counted."""

    within: Within
    rows: list[int]

    def sums(self, row: int, cutoff: np.float32, is_backfilled: bool) -> Floats:
        """(2, T) sums of weights: all items and right answers, of those that are backfilled or of the others."""
        pairs = self.within.backfilled if is_backfilled else self.within.waiting
        return pairs[:, self.rows.index(row), :, np.searchsorted(self.within.cutoffs, cutoff)]


def _count(
    comparison: Comparison,
    system: System,
    vectors: RetrievalSystem,
    countings: Sequence[_Counting],
    segments: Sequence[NDArray[np.uint16]],
    distances_C: Distances,
) -> _WithinCutoffs:
    how, truth = comparison.evaluation, comparison.truth
    cutoffs, rows = [distances_C], set[int]()
    for counting in countings:
        both = counting.backward, counting.forward
        if system in both:
            rows.update(row for of_order in counting.rows.values() for row in of_order)
        for carried in counting.carried.values():
            cutoffs += [distances for of, distances in zip(both, carried, strict=True) if of == system]
    known = sorted(rows)
    n_pairs = (truth.n_queries - len(truth.skipped)) * truth.n_gallery
    with detail("compare", n_pairs, "pairs") as bar:
        within = count_within(
            vectors, truth, np.concatenate(cutoffs), np.stack([segments[row] for row in known]), how.points,
            how.distance, bar.advance,
        )  # fmt: skip
    return _WithinCutoffs(within, known)


def _measured_of(
    comparison: Comparison, counting: _Counting, counted: Mapping[System, _WithinCutoffs], given_C: Floats
) -> Iterator[tuple[Any, ...]]:
    how, truth = comparison.evaluation, comparison.truth
    given, old = as_distances(given_C, how.distance), counted[System(plain(OLD))]
    scored: IntArray = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    weights = None if truth.weights is None else relative_weights(truth.weights[scored])
    weights_Q = np.ones(len(scored)) if weights is None else weights
    queries, positives = float(weights_Q.sum()), float(weights_Q @ np.diff(truth.positive_starts)[scored])

    def measured(sums_2T: Floats) -> tuple[Floats, Floats, Floats]:
        """(T,) precision, recall and results per query. sums_2T: of weights of what is shown: all items, right ones."""
        shown, right = sums_2T
        precision = np.full(len(shown), np.nan)
        np.divide(right, shown, out=precision, where=shown > 0)
        return precision, right / positives, shown / queries

    def shown_with(rows: Sequence[int], backward: np.float32, forward: np.float32) -> tuple[Floats, Floats, Floats]:
        """What the service shows with a cut-off for each system: the mean over permutations."""
        total = np.zeros((2, 1))
        for row in rows:
            total = total + counted[counting.forward].sums(row, forward, True)
            if not counting.hides_others:
                total = total + counted[counting.backward].sums(row, backward, False)
        return measured(total / len(rows))

    for name, carried in counting.carried.items():
        units = [as_cutoffs(distances, given_C, how.distance) for distances in carried]
        if counting.hides_others:
            units[0] = np.full(len(given_C), np.nan)
        for order, rows in counting.rows.items():
            for c, cutoff in enumerate(given_C):
                # The pairs of {old, old} at the start, of any order: all of them.
                before = measured(old.sums(old.rows[0], given[c], False)[:, :1])
                unchanged = shown_with(rows, given[c], given[c])
                translated = shown_with(rows, carried.backward[c], carried.forward[c])
                yield (
                    counting.method.name, order, name, cutoff, np.linspace(0, 1, how.points), units[0][c], units[1][c],
                    *(float(value[0]) for value in before), *unchanged, *translated,
                )  # fmt: skip
