"""How score cut-offs should change: ``compare.cutoffs`` translates them to the systems of each method, and counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pandas as pd

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.compare.selection import best_per_method
from ray_backfill.compare.tables import OLD
from ray_backfill.core.schema import block
from ray_backfill.page import sections as page
from ray_backfill.page.numbers import percent_sign, upper

if TYPE_CHECKING:
    from ray_backfill.compare.resolve import Comparison

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


def cutoff_table(comparison: "Comparison", *_: object) -> pd.DataFrame | None:
    """``CutoffRow``s; None without a cut-off, or a merge that translates it."""
    from ray_backfill.compare.cutoffs import measured_cutoffs

    blocks = [block(CutoffRow, *columns) for columns in measured_cutoffs(comparison)]
    return pd.concat(blocks, ignore_index=True) if blocks else None


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
    points: dict[tuple[str, str, str], dict[float, list[CutoffRow]]] = {}
    for point in results.table_of("cutoffs"):
        points.setdefault((point.method, point.order, point.merge), {}).setdefault(point.cutoff, []).append(point)
    best = results.best()
    merges = [*([best.merge] if best else []), *dict.fromkeys(key[2] for key in points)]
    lines = []
    for row in best_per_method(results, results.primary):
        wanted = [merge for merge in (row.merge, *merges) if merge != "raw"] + ["raw"]
        merge = next((m for m in wanted if (row.method, row.order, m) in points), None)
        if row.method == OLD or merge is None:
            continue
        for of_cutoff in points[row.method, row.order, merge].values():
            half = min(of_cutoff, key=lambda point: abs(point.t - 0.5))
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
    report, file = results.file("report.html"), results.file("cutoffs.parquet")
    ends = f"Precision and recall are in per cent, results per query. For every moment, see {file}."
    parts: list[page.Part] = [page.Sentences(told[True])]
    parts += [page.Folded("Every other method in words", [page.Sentences(told[False])])] if told[False] else []
    # The last four columns have less to say.
    few = table._replace(heads=table.heads[:-4], rows=[row._replace(cells=row.cells[:-4]) for row in table.rows])
    names = sum(head.css == "name" for head in table.heads)
    return page.Section(
        "How should score cut-offs change?",
        [*parts, page.Title(title), table, page.Note(" ".join((*notes, ends)))],
        printed=page.Printed(few, told[True] if best else [], notes, names + 3, f"{report} or {file}"),
    )


def notes_on(lines: Sequence[CutoffLine]) -> list[str]:
    """What the figures mean, and a hint if nothing was translated."""
    return [NOTE] + [NOTHING_TRANSLATED] * all(line.merge == "raw" for line in lines)


def sentence(results: ResultsData, line: CutoffLine) -> str:
    """What becomes of a cut-off: "Full RM, quantile merge: 0.85 becomes 0.71 for backfilled items (...)"."""
    # References do not mix systems: they show at the end what the new model alone needs.
    at, when = (line.end, "at the end") if line.row.is_reference else (line.half, f"at t = {line.half.t:g}")
    given, forward, backward = (_number(results, each) for each in (at.cutoff, at.forward_cutoff, at.backward_cutoff))
    name = upper(line.row.title) + f" ({results.order_name(line.row.order)} order)" * _names_order(results, line.row)
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


def table_line(results: ResultsData, line: CutoffLine, has_orders: bool) -> page.TableLine:
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


ANALYSES = (Analysis("cutoffs", CutoffRow, cutoff_table, section, place=40),)
