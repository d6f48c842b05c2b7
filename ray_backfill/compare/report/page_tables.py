"""The tables of a simulation's page, as cells for the templates. Computes nothing."""

import math
from collections.abc import Sequence

from ray_backfill.compare.report.answers import conditions
from ray_backfill.compare.report.best_orders import best_orders
from ray_backfill.compare.report.cascades import embedded
from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.report.selection import Compared, shown_rows
from ray_backfill.compare.report.wording import is_retention, metric_title, variant_cells
from ray_backfill.compare.tables.results import CostRow
from ray_backfill.page.numbers import NOTHING, amount, interval, percent, percent_sign
from ray_backfill.page.parts import Cell, Head, PageTable, TableRow

# Column of costs.parquet -> its heading.
COST_WORDS = {
    "query_models": "models that embed a query",
    "query_backbone_macs": "their MACs per query",
    "query_macs": "other MACs per query",
    "query_parameters": "other parameters",
    "gallery_macs": "MACs per gallery item",
    "training_flops": "FLOPs to fit",
    "trained_models": "models to train",
    "backbone_training_flops": "FLOPs to train them",
}
CONDITIONS = ("starts no worse than old", "ends no worse than new", "never falls")


def numbers_table(results: Results, metric: str, rows: Sequence[Row], by_method: bool) -> PageTable:
    """A metric's results, one line per row. by_method: each method stands once, so orders do not form groups."""
    best, is_primary = results.best(metric), metric == results.primary
    heads = [Head("method", "name"), *(Head(name, "name") for name in variant_cells(results, rows[0]))]
    gain, half = (() if is_retention(results) else (name,) for name in ("gain", "half gain from"))
    heads += [Head(name) for name in ("AUC", "95 % interval", *gain, "start", "end", "largest fall")]
    heads += [Head(name) for name in ("as old from", *half, "as new from")]
    if is_primary:
        heads += [Head("flips vs old"), Head("flips vs own start")]
    lines = []
    before: Row | None = None
    for row in rows:
        css = [name for name, holds in (("best", row == best), ("reference", row.is_end)) if holds]
        if before is not None and _is_new_group(results, before, row, by_method):
            css.append("group")
        lines.append(TableRow(" ".join(css), _numbers(results, row, is_primary)))
        before = row
    return PageTable(f"{metric_title(results, metric)}: results of each method", heads, lines, "sortable cards")


def leads_table(results: Results, compared: Compared) -> PageTable:
    """The best method against others, one line each."""
    variants = variant_cells(results, compared[0][0])
    heads = [Head("compared with", "name"), *(Head(name, "name") for name in variants), Head("difference")]
    heads += [Head("95 % interval"), Head("the best is", "name")]
    lines = []
    for row, found in compared:
        cells = [Cell(results.name(row)), *(Cell(text, css="name") for text in variant_cells(results, row).values())]
        cells += [
            number(percent(found.value), found.value),
            number(interval(found.low, found.high), found.low, "range"),
        ]
        lines.append(TableRow("", [*cells, Cell(found.verdict, css="name")]))
    return PageTable("The best method against the others", heads, lines, "sortable")


def orders_table(results: Results) -> PageTable | None:
    """A line per method: its best order without labels of the gallery, against random; None without such orders."""
    heads = [Head("method", "name"), Head("best label-free order", "name"), Head("AUC"), Head("AUC in random order")]
    heads += [Head("difference"), Head("95 % interval")]
    lines = []
    for row, random, lead in best_orders(results):
        cells = [Cell(row.title), Cell(row.order, css="name")]
        cells += [number(percent(each.auc), each.auc) for each in (row, random)]
        value, low, high = (lead.value, lead.low, lead.high) if lead else (math.nan, math.nan, math.nan)
        cells += [number(percent(value), value), number(interval(low, high), low, "range")]
        lines.append(TableRow("", cells))
    return PageTable("The best label-free order of each method", heads, lines, "sortable") if lines else None


def costs_table(results: Results) -> PageTable | None:
    """A line per method, in the order of the first table, without columns of unknown values; None without costs."""
    if not results.costs:
        return None
    place = {row.method: index for index, row in enumerate(shown_rows(results, results.primary))}
    costs = sorted(results.costs, key=lambda cost: place.get(cost.method, len(place)))
    known = [name for name in COST_WORDS if not _is_unknown([getattr(cost, name) for cost in costs])]
    texts = ("query_models", "trained_models")
    heads = [Head("method", "name"), *(Head(COST_WORDS[name], "name" if name in texts else "") for name in known)]
    heads += [Head("needs labels", "name"), Head("after the backfill", "name")]
    lines = [TableRow("", _cost(results, cost, known)) for cost in costs]
    return PageTable("What each method costs", heads, lines, "sortable costs")


def cascades_table(results: Results) -> PageTable | None:
    """What the new model embeds for a query of each cascade, a line per order; None without cascades."""
    heads = [Head("method", "name"), Head("order", "name"), Head("at the start"), Head("half-way"), Head("on average")]
    lines = []
    for each in embedded(results):
        counts = (number(f"{count:.1f}", count) for count in (each.start, each.half_way, each.average))
        lines.append(TableRow("", [Cell(each.title), Cell(each.order, css="name"), *counts]))
    return PageTable("Items that cascades embed for a query", heads, lines, "sortable") if lines else None


def checks_table(results: Results) -> PageTable | None:
    """A line per fitted method on the validation part, the one that is furthest behind first; None if not checked."""
    if not results.checks:
        return None
    heads = [Head("method", "name"), Head(f"AUC {results.checks[0].metric}"), Head("RM naive"), Head("difference")]
    heads += [Head("95 % interval"), Head("verdict", "name")]
    lines = []
    for each in sorted(results.checks, key=lambda check: check.difference):
        cells = [Cell(results.titles.get(each.method, each.method))]
        cells += [number(percent(share), share) for share in (each.auc, each.auc_rm_naive, each.difference)]
        cells.append(number(interval(each.low, each.high), each.low, "range"))
        lines.append(TableRow("", [*cells, Cell("did not learn here" if each.is_worse else "no worse", css="name")]))
    return PageTable("Fitted methods on the validation items", heads, lines, "sortable")


def tuned_table(results: Results) -> PageTable | None:
    """A line per method with what --tune chose for it; None without it."""
    if not results.manifest.tuned:
        return None
    metric = results.manifest.tuned[0].metric
    heads = [Head("method", "name"), Head("settings tried"), Head("chosen", "name")]
    heads += [Head(f"AUC {metric} there"), Head("as given")]
    lines = []
    for each in results.manifest.tuned:
        words = ", ".join(f"{name} {_plain(value)}" for name, value in each.values.items())
        scores = [math.nan if score is None else score for score in (each.score, each.given)]
        cells = [Cell(results.titles.get(each.method, each.method)), number(str(each.trials), each.trials)]
        cells += [Cell(words, css="name"), *(number(percent(score), score) for score in scores)]
        lines.append(TableRow("", cells))
    return PageTable("Settings chosen on the validation split", heads, lines, "sortable")


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def number(text: str, value: float, css: str = "") -> Cell:
    """A cell that is sorted by its value; by nothing where there is none."""
    return Cell(text, f"{value:.6g}" if math.isfinite(value) else "", css)


def _numbers(results: Results, row: Row, is_primary: bool) -> list[Cell]:
    # Old and new are what the conditions and milestones compare with.
    marks = ("", "", "") if row.is_end else conditions(results, row)
    cells = [Cell(results.name(row)), *(Cell(text, css="name") for text in variant_cells(results, row).values())]
    cells.append(number(percent(row.auc), row.auc, "key"))
    cells.append(number(interval(row.auc_low, row.auc_high), row.auc_low, "range"))
    if not is_retention(results):
        gain = number(percent_sign(row.gain, 0), row.gain, "gain")
        cells.append(gain._replace(width=0.0 if row.is_end else _bar(row)))
    values = (row.start, row.end, row.largest_fall)
    for value, mark, words in zip(values, marks, CONDITIONS, strict=True):
        cells.append(number(percent(value), value)._replace(mark=mark, mark_words=words))
    half = () if is_retention(results) else (row.half_gain_at,)
    for t in (row.passes_old_at, *half, row.passes_new_at):
        unknown = row.is_end or (t is row.half_gain_at and math.isnan(row.gain))
        cells.append(Cell(NOTHING, "") if unknown else number(_moment(t), t if math.isfinite(t) else 2.0))
    if is_primary:
        flips = (row.negative_flips_vs_old_max, row.negative_flips_max)
        cells += [number(percent(share), share) for share in flips]
    return cells


def _moment(t: float) -> str:
    """A milestone: "start", "12 %", "end", "never"."""
    if not math.isfinite(t):
        return "never"
    return {0.0: "start", 1.0: "end"}.get(t, percent_sign(t, 0))


def _cost(results: Results, cost: CostRow, known: Sequence[str]) -> list[Cell]:
    cells = [Cell(cost.title)]
    for name in known:
        value = getattr(cost, name)
        cells.append(Cell(value or NOTHING, css="name") if isinstance(value, str) else number(amount(value), value))
    traits = results.manifest.traits.methods[cost.method]
    stays = "its maps stay" if traits.stays else "only the new model"
    labels = "yes" if traits.needs_labels else "no"
    return [*cells, Cell(labels, css="name"), Cell(stays if cost.method != "old" else NOTHING, css="name")]


def _is_unknown(values: Sequence[str | float]) -> bool:
    """Whether a column is uninformative: some numbers are unknown and all others are 0."""
    numbers = [value for value in values if not isinstance(value, str)]
    return any(math.isnan(n) for n in numbers) and not any(n > 0 for n in numbers)


def _is_new_group(results: Results, before: Row, row: Row, by_method: bool) -> bool:
    if by_method:
        return before.is_reference != row.is_reference
    return results.group(before) != results.group(row)


def _bar(row: Row) -> float:
    """Width of a gain's bar in per cent of its cell; 60 % stands for a gain of 125 % or more."""
    return round(min(max(row.gain, 0.0), 1.25) / 1.25 * 60, 1) if math.isfinite(row.gain) else 0.0
