"""Score cut-offs, translated from {old, old} to the systems of each method, and what a service shows that uses them.

A merge makes the distances of two systems comparable, so it also says which distance of one corresponds to a cut-off of
the other. The old service's cut-off is carried to the backward system by a merge that is fitted on {old, old} and this
system, and from there to the forward system by the method's own merge: both cut the merged ranking at one place.

Shapes: N gallery items, C cut-offs, T reported points.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.fitted import FittedMaps, MergeFits
from ray_backfill.compare.replay import by_order, further_permutations
from ray_backfill.compare.resolve import Comparison, System
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.compare.selection import best_per_method
from ray_backfill.compare.tables import OLD, LeftOut
from ray_backfill.core.progress import detail, task
from ray_backfill.core.schema import block
from ray_backfill.engine.merges import BEST, RAW, Merge, all_merges, fit_merge
from ray_backfill.engine.replay import Within, count_within, segment_of_item
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.page import sections as page
from ray_backfill.page.numbers import percent_sign

Distances = NDArray[np.float32]
Floats = NDArray[np.float64]
_OLD = System(OLD)
# The best merge differs from method to method, and can be one without cut-offs.
_FOR_BEST = ("raw", "quantile")
_LARGEST = np.finfo(np.float32).max
# Columns at the end of the table that have less to say.
_MORE = 4
_UNITS = {
    "cosine": ("least cosine similarity of a result", "cosine similarity"),
    "l2": ("largest l2 distance of a result", "l2 distance"),
    "inner_product": ("least inner product of a result", "inner product"),
}
NOTE = (
    "Precision is the share of right answers among all results within the cut-off, of all scored queries together. "
    "Unchanged: both systems use the cut-off as given. A merge puts the cut-offs of both systems at one place of the "
    "merged ranking: quantile keeps the number of results, isotonic and logistic keep how likely a result just at the "
    "cut-off is right. That is not always the precision of all results: compare it with the one before."
)
NOTHING_TRANSLATED = (
    "The raw merge translates nothing: add quantile or isotonic to --merges to see the cut-off that takes its place."
)


@dataclass(frozen=True)
class CutoffRow:
    """A cut-off at a moment; one row for each method, order, merge, cut-off and reported moment."""

    method: Annotated[
        str,
        "as in `curves.parquet`, but merge is the one that translates the cut-off, also for old, new, offline and "
        "instant",
    ]
    order: str
    merge: str
    cutoff: Annotated[
        float,
        "the cut-off for {old, old} as given: the least similarity of a result (cosine, inner_product) or its largest "
        "distance (l2)",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    backward_cutoff: Annotated[
        float,
        "the translated cut-off for items that are not backfilled yet (NaN if nothing serves them) and for backfilled "
        "items, in the unit of the given one; infinite if nothing passes, or everything",
    ]
    forward_cutoff: float
    precision_before: Annotated[
        float,
        "of the results within the cut-off in {old, old}, before the upgrade: the share that is right (NaN without "
        "results), the share of all right answers that they contain, and their mean number per query; over all results "
        "of all scored queries together, weighted",
    ]
    recall_before: float
    results_before: float
    precision_unchanged: Annotated[float, "the same at t, if both systems use the cut-off as given"]
    recall_unchanged: float
    results_unchanged: float
    precision: Annotated[float, "the same at t, with the translated cut-offs"]
    recall: float
    results: float


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


def cutoff_table(comparison: Comparison) -> pd.DataFrame | None:
    """``CutoffRow``s; None without a cut-off, or a merge that translates it. comparison: with its maps.

    Cost: a fit of each merge for each method, and a float32 product of all queries and items for each distinct system,
    in this process, also where the curves are replayed in shards.
    """
    how = comparison.evaluation
    if not (how.cutoffs and cutoff_merges(comparison.merges.names)):
        return None
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
        tables = [part for plan in plans for part in _blocks(comparison, plan, counted, given_C)]
    return pd.concat(tables, ignore_index=True)


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

    is_single = (pair is not None and pair.backward is pair.forward) or (method.backward == method.forward != "")
    to_old = None
    if pair is not None and fits.items is not None:
        to_old = UpgradePair(RetrievalSystem(fits.items.query[OLD], fits.items.gallery[OLD]), pair.backward)
    return RAW if method.backward == OLD else fit(to_old), RAW if is_single else fit(pair)


def _plan(
    comparison: Comparison, method: Method, given_C: Distances, segments: dict[bytes, NDArray[np.uint16]]
) -> _Plan:
    """segments: of items by order, by their bytes; those of this method are added."""
    how, maps = comparison.evaluation, comparison.maps
    some = Embeddings(*({m: v[:1] for m, v in side.items()} for side in vars(comparison.embeddings).values()))
    one = method.pair(some, maps.of(method))  # of one item: maps are applied to all of them only to be searched
    backward, forward = System.both_of(method)
    orders = comparison.orders_of(method)
    if not method.is_reference:
        orders |= further_permutations(comparison.orders, how.permutations)
    rows = {}
    for name, order in orders.items():
        own = segment_of_item(order, how.points, one.switch)
        segments.setdefault(own.tobytes(), own)
        rows[name] = list(segments).index(own.tobytes())
    carried = carry(comparison.merges, method, maps, given_C)
    return _Plan(
        method, backward, backward if one.backward is one.forward else forward, one.switch, carried, by_order(rows)
    )


def _systems(comparison: Comparison, plans: Sequence[_Plan]) -> Iterator[tuple[System, RetrievalSystem]]:
    """Each distinct system once; those of one method at a time, because they take memory."""
    e = comparison.embeddings
    for model in dict.fromkeys(s.model for plan in plans for s in (plan.backward, plan.forward) if s.model):
        yield System(model), RetrievalSystem(e.query[model], e.gallery[model])
    for plan in plans:
        own = {s: s.side for s in (plan.backward, plan.forward) if s.method}
        pair = comparison.pair(plan.method) if own else None
        for system, side in own.items():
            yield system, getattr(pair, side)


@dataclass(frozen=True)
class _Counted:
    """The pairs within the cut-offs of one system. rows: of the segments that were counted."""

    within: Within
    rows: list[int]

    def backfilled(self, row: int, cutoff: np.float32) -> Floats:
        """(2, T) sums of weights: all items and right answers."""
        return self.within.backfilled[:, self.rows.index(row), :, np.searchsorted(self.within.cutoffs, cutoff)]

    def waiting(self, row: int, cutoff: np.float32) -> Floats:
        """The same of items that are not backfilled yet."""
        return self.within.waiting[:, self.rows.index(row), :, np.searchsorted(self.within.cutoffs, cutoff)]


def _count(
    comparison: Comparison,
    system: System,
    vectors: RetrievalSystem,
    plans: Sequence[_Plan],
    segments: Sequence[NDArray[np.uint16]],
    given_C: Floats,
) -> _Counted:
    """Count what any method, order, merge and cut-off needs of one system."""
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


def _blocks(
    comparison: Comparison, plan: _Plan, counted: Mapping[System, _Counted], given_C: Floats
) -> Iterator[pd.DataFrame]:
    """The rows of one method: by merge, order and cut-off."""
    how = comparison.evaluation
    given, totals = as_distances(given_C, how.distance), _totals(comparison.truth)
    old = counted[_OLD]
    for name, carried in plan.carried.items():
        units = [as_cutoffs(each, given_C, how.distance) for each in carried]
        if plan.switch == "only_backfilled":
            units[0] = np.full(len(given_C), np.nan)
        for order, rows in plan.rows.items():
            for c, cutoff in enumerate(given_C):
                # The pairs of {old, old} at the start, of any order: all of them.
                before = _measured(old.waiting(old.rows[0], given[c])[:, :1], totals)
                unchanged = _measured(_shown(plan, counted, rows, given[c], given[c]), totals)
                translated = _measured(_shown(plan, counted, rows, carried.backward[c], carried.forward[c]), totals)
                yield block(
                    CutoffRow, plan.method.name, order, name, cutoff, np.linspace(0, 1, how.points), units[0][c],
                    units[1][c], *(float(each[0]) for each in before), *unchanged, *translated,
                )  # fmt: skip


def _shown(
    plan: _Plan, counted: Mapping[System, _Counted], rows: Sequence[int], backward: np.float32, forward: np.float32
) -> Floats:
    """(2, T) sums of weights of what the service shows, all items and right ones; the mean over permutations."""
    total = np.zeros((2, 1))
    for row in rows:
        total = total + counted[plan.forward].backfilled(row, forward)
        if plan.switch != "only_backfilled":
            total = total + counted[plan.backward].waiting(row, backward)
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


@dataclass(frozen=True)
class CutoffLine:
    """A cut-off with one method. row: of the summary. merge: that translates it. half, end: at t = 0.5 and t = 1."""

    row: Row
    merge: str
    half: CutoffRow
    end: CutoffRow


def cutoff_lines(results: ResultsData) -> list[CutoffLine]:
    """Each method but old in its best order, with its own merge if that translates.

    Otherwise with that of the best method, or the first that translates.
    """
    found: dict[tuple[str, str, str], dict[float, list[CutoffRow]]] = {}
    for point in results.table_of("cutoffs"):
        found.setdefault((point.method, point.order, point.merge), {}).setdefault(point.cutoff, []).append(point)
    best = results.best()
    merges = [*([best.merge] if best else []), *dict.fromkeys(key[2] for key in found)]
    lines = []
    for row in best_per_method(results, results.primary):
        wanted = [merge for merge in (row.merge, *merges) if merge != RAW.name] + [RAW.name]
        merge = next((m for m in wanted if (row.method, row.order, m) in found), None)
        if row.method == OLD or merge is None:
            continue
        for of_cutoff in found[row.method, row.order, merge].values():
            half = min(of_cutoff, key=lambda each: abs(each.t - 0.5))
            lines.append(CutoffLine(row, merge, half, of_cutoff[-1]))
    return lines


def section(results: ResultsData) -> page.Section | None:
    """A table, and a sentence for each line, first those of the best method."""
    lines, best = cutoff_lines(results), results.best()
    if not lines:
        return None
    first = best.method if best else lines[0].row.method
    told = {is_first: [sentence(results, line) for line in lines if (line.row.method == first) == is_first]
            for is_first in (True, False)}  # fmt: skip
    title, notes = f"Cut-offs: {_UNITS[_distance(results)][0]}", notes_on(lines)
    has_orders = any(_names_order(results, line.row) for line in lines)
    table = page.table_of(title, [table_line(results, line, has_orders) for line in lines])
    ends = "Precision and recall are in per cent, results per query. For every moment, see cutoffs.parquet."
    parts: list[page.Part] = [page.Sentences(told[True])]
    parts += [page.Folded("Every other method in words", [page.Sentences(told[False])])] if told[False] else []
    few = table._replace(
        heads=table.heads[:-_MORE], rows=[row._replace(cells=row.cells[:-_MORE]) for row in table.rows]
    )
    names = sum(head.css == "name" for head in table.heads)
    return page.Section(
        "What becomes of score cut-offs?",
        [*parts, page.Title(title), table, page.Note(" ".join((*notes, ends)))],
        printed=page.Printed(few, told[True] if best else [], notes, names + 3, "report.html or cutoffs.parquet"),
    )


def notes_on(lines: Sequence[CutoffLine]) -> list[str]:
    """What the figures mean, and a hint if nothing was translated."""
    return [NOTE] + [NOTHING_TRANSLATED] * all(line.merge == RAW.name for line in lines)


def sentence(results: ResultsData, line: CutoffLine) -> str:
    """What becomes of a cut-off: "Full RM, quantile merge: 0.85 becomes 0.71 for backfilled items (...)"."""
    # References do not mix systems: they show at the end what the new model alone needs.
    at, when = (line.end, "at the end") if line.row.is_reference else (line.half, f"at t = {line.half.t:g}")
    given, forward, backward = (_number(results, each) for each in (at.cutoff, at.forward_cutoff, at.backward_cutoff))
    name = line.row.title[:1].upper() + line.row.title[1:]
    name += f" ({results.order_name(line.row.order)} order)" if _names_order(results, line.row) else ""
    before = f"precision {percent_sign(at.precision_before)} before, {percent_sign(at.precision)} {when}"
    if at.forward_cutoff == at.cutoff and (at.backward_cutoff == at.cutoff or math.isnan(at.backward_cutoff)):
        return f"{name}, {line.merge} merge: {given} stays as it is; {before}."
    model = "the forward system" if results.manifest.traits.methods[line.row.method].stays else "the new model"
    what = f"{given} becomes {forward} for backfilled items ({_UNITS[_distance(results)][1]} of {model})"
    if math.isfinite(at.backward_cutoff) and not line.row.is_reference:
        what += f" and {'stays ' * (backward == given)}{backward} for the others"
    # Precision alone would praise a cut-off that hides nearly everything.
    counts = f"{at.results_unchanged:.3g} results per query instead of {at.results:.3g}"
    unchanged = f"unchanged it would be {percent_sign(at.precision_unchanged)}, with {counts}"
    return f"{name}, {line.merge} merge: {what}; {before}; {unchanged}."


def table_line(results: ResultsData, line: CutoffLine, has_orders: bool) -> page.Line:
    """A line of the table. The last columns have less to say."""
    half, end = line.half, line.end
    at, unchanged = f"t={half.t:g}", "if unchanged"
    return [
        ("method", page.Cell(results.name(line.row))),
        *([("order", page.word(results.order_name(line.row.order)))] if has_orders else []),
        ("merge", page.word(line.merge)),
        ("cut-off", _cutoff(results, half.cutoff)),
        ("not backfilled", _cutoff(results, half.backward_cutoff)),
        ("backfilled", _cutoff(results, half.forward_cutoff)),
        ("precision before", page.share(half.precision_before)),
        (at, page.share(half.precision)),
        (unchanged, page.share(half.precision_unchanged)),
        ("t=1", page.share(end.precision)),
        (unchanged, page.share(end.precision_unchanged)),
        ("results before", page.number(f"{half.results_before:.4g}", half.results_before)),
        (f"results {at}", page.number(f"{half.results:.4g}", half.results)),
        ("recall before", page.share(half.recall_before)),
        (f"recall {at}", page.share(half.recall)),
    ]


def _cutoff(results: ResultsData, cutoff: float) -> page.Cell:
    return page.number(_number(results, cutoff), cutoff)


def _names_order(results: ResultsData, row: Row) -> bool:
    return len(results.orders) > 1 and not row.is_reference


def _distance(results: ResultsData) -> str:
    return str(results.evaluation.get("distance", "cosine"))


def _number(results: ResultsData, cutoff: float) -> str:
    """A cut-off with four digits; "none" or "all" if no result passes, or every one."""
    if math.isnan(cutoff):
        return "\u2013"
    if math.isinf(cutoff):
        return "none" if (cutoff > 0) != (_distance(results) == "l2") else "all"
    return f"{cutoff:.4g}"


ANALYSES = (Analysis("cutoffs", CutoffRow, lambda comparison, *_: cutoff_table(comparison), section, place=40),)
