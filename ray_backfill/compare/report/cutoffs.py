"""What becomes of score cut-offs: a line and a sentence for each method and cut-off. Computes nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ray_backfill.compare.report.page_tables import number
from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.report.selection import best_per_method
from ray_backfill.compare.tables.cutoffs import CutoffRow
from ray_backfill.compare.tables.results import OLD
from ray_backfill.page.numbers import percent, percent_sign
from ray_backfill.page.parts import Cell, Head, PageTable, TableRow

MORE = 4
# The merge that translates nothing.
_RAW = "raw"
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
class CutoffLine:
    """A cut-off with one method. row: of the summary. merge: that translates it. half, end: at t = 0.5 and t = 1."""

    row: Row
    merge: str
    half: CutoffRow
    end: CutoffRow


def cutoff_lines(results: Results) -> list[CutoffLine]:
    """Each method but old in its best order, with its own merge if that translates.

    Otherwise with that of the best method, or the first that translates.
    """
    found: dict[tuple[str, str, str], dict[float, list[CutoffRow]]] = {}
    for point in results.cutoffs:
        found.setdefault((point.method, point.order, point.merge), {}).setdefault(point.cutoff, []).append(point)
    best = results.best()
    merges = [*([best.merge] if best else []), *dict.fromkeys(key[2] for key in found)]
    lines = []
    for row in best_per_method(results, results.primary):
        wanted = [merge for merge in (row.merge, *merges) if merge != _RAW] + [_RAW]
        merge = next((m for m in wanted if (row.method, row.order, m) in found), None)
        if row.method == OLD or merge is None:
            continue
        for of_cutoff in found[row.method, row.order, merge].values():
            half = min(of_cutoff, key=lambda each: abs(each.t - 0.5))
            lines.append(CutoffLine(row, merge, half, of_cutoff[-1]))
    return lines


def title(results: Results) -> str:
    """What the cut-offs are: "Cut-offs: least cosine similarity of a result"."""
    return f"Cut-offs: {_UNITS[_distance(results)][0]}"


def notes(lines: Sequence[CutoffLine]) -> list[str]:
    """What the figures mean, and a hint if nothing was translated."""
    return [NOTE] + [NOTHING_TRANSLATED] * all(line.merge == _RAW for line in lines)


def sentence(results: Results, line: CutoffLine) -> str:
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


def cutoffs_table(results: Results, lines: Sequence[CutoffLine]) -> PageTable | None:
    """A line for each method and cut-off; None if no cut-off was given. The last ``MORE`` columns have less to say."""
    if not lines:
        return None
    has_orders = any(_names_order(results, line.row) for line in lines)
    half, unchanged = f"t={lines[0].half.t:g}", "if unchanged"
    heads = [Head(name, "name") for name in ("method", *(("order",) if has_orders else ()), "merge")]
    heads += [Head(name) for name in ("cut-off", "not backfilled", "backfilled", "precision before", half)]
    heads += [Head(name) for name in (unchanged, "t=1", unchanged)]
    heads += [Head(name) for name in ("results before", f"results {half}", "recall before", f"recall {half}")]
    return PageTable(
        title(results), heads, [TableRow("", _cells(results, each, has_orders)) for each in lines], "sortable"
    )


def _cells(results: Results, line: CutoffLine, has_orders: bool) -> list[Cell]:
    half, end = line.half, line.end
    order = [Cell(results.order_name(line.row.order), css="name")] if has_orders else []
    cells = [Cell(results.name(line.row)), *order, Cell(line.merge, css="name")]
    cells += [number(_number(results, x), x) for x in (half.cutoff, half.backward_cutoff, half.forward_cutoff)]
    shares = (half.precision_before, half.precision, half.precision_unchanged, end.precision, end.precision_unchanged)
    cells += [number(percent(share), share) for share in shares]
    cells += [number(f"{count:.4g}", count) for count in (half.results_before, half.results)]
    return cells + [number(percent(share), share) for share in (half.recall_before, half.recall)]


def _names_order(results: Results, row: Row) -> bool:
    return len(results.orders) > 1 and not row.is_reference


def _distance(results: Results) -> str:
    return str(results.manifest.settings.get("evaluation", {}).get("distance", "cosine"))


def _number(results: Results, cutoff: float) -> str:
    """A cut-off with four digits; "none" or "all" if no result passes, or every one."""
    if math.isnan(cutoff):
        return "\u2013"
    if math.isinf(cutoff):
        return "none" if (cutoff > 0) != (_distance(results) == "l2") else "all"
    return f"{cutoff:.4g}"
