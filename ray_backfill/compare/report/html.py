"""The report as one self-contained HTML file: text, charts as SVG, one small script, no request."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_backfill.compare import charts, selection
from ray_backfill.compare.analyses import sections
from ray_backfill.compare.report import answers
from ray_backfill.compare.report.terminal import MOST_WARNINGS
from ray_backfill.compare.report.verdict import basis, conditions, in_two, verdict
from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.tables import OLD
from ray_backfill.page.heading import date_of, name_of, recipe_of, top_notes, without_folders
from ray_backfill.page.numbers import NOTHING, listed, percent, percent_sign
from ray_backfill.page.parts import bind, data_facts, flatten, page_charts, page_environment
from ray_backfill.page.sections import Cell, Line, PageTable, limits, number, share, table_of, word

FEW_RIVALS = 10  # number of the closest other methods shown without unfolding
DARKEST = 0.5  # opacity at which text stays readable
CONDITIONS = ("starts no worse than old", "ends no worse than new", "never falls")
# Field of ``Answers`` -> its question.
QUESTIONS = {
    "which": "Which method?",
    "when": "When to switch?",
    "cost": "What does it cost?",
    "risk": "What is at risk?",
}


def render(results: ResultsData) -> str:
    """The HTML page."""
    manifest, tables, analyses = results.manifest, heat_tables(results), sections(results)
    invented, warnings = top_notes(answers.warnings(results))
    act, rest = in_two(verdict(results))
    template = page_environment(Path(__file__).parent).get_template("report.html.jinja")
    seed = [("seed", str(manifest.seed))] if manifest.seed is not None else []
    return template.render(
        results=results,
        facts=manifest.data,
        name=name_of(manifest.data),
        recipe=recipe_of(manifest.data),
        date=date_of(manifest.created),
        invented=bind(invented),
        warnings=[bind(warning) for warning in warnings],
        act=bind(act),
        rest=bind(rest),
        basis=bind(basis(results)),
        most_warnings=MOST_WARNINGS,
        questions=_questions(results),
        gain_in_words=selection.explained(results),
        oracle_note=selection.ORACLE_NOTE,
        has_bounds=any(r.is_bound for r in results.rows),
        has_intervals=charts.has_intervals(results),
        large=selection.is_large(results),
        choice=selection.choice(results),
        size=selection.size(results),
        drawn=len(charts.drawn_variants(results)),
        curves=page_charts(charts.curve_charts(results), "curves"),
        orders=page_charts(charts.order_charts(results), "orders"),
        numbers=[(metric, *_numbers(results, metric)) for metric in results.metrics],
        rivals=_rivals(results),
        heat=tables,
        best_orders=orders_table(results),
        permutations=results.evaluation.get("permutations", 1),
        dashes=any(cell.text == NOTHING for _, table in tables for row in table.rows for cell in row.cells),
        sections=analyses,
        has_images=any(section.has_images for section in analyses),
        tuned=tuned_table(results),
        **_left_out(results),
        glossary=selection.glossary(results),
        command=without_folders(manifest.command),
        data=data_facts(manifest.data),
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in manifest.timings_s.items()],
        settings=[*flatten({**manifest.settings, **manifest.recipe}), *seed],
        versions=manifest.versions,
    )


def _left_out(results: ResultsData) -> dict[str, Any]:
    """Rows that are never bold, methods that did not learn, and methods that were not compared."""
    bounds = any(row.is_bound for row in results.rows)
    kinds = (("oracle orders", bounds), ("cascades", results.recalling), ("methods marked \u2021", results.unlearned))
    names = [name for name, there in kinds if there]
    return {
        "never_bold": f" (without {listed(names, 'and')})" if names else "",
        "unlearned_note": selection.UNLEARNED_NOTE if results.unlearned else "",
        "left_out": [(", ".join(names), without_folders(why)) for why, names in selection.left_out(results).items()],
    }


def _questions(results: ResultsData) -> list[tuple[str, list[str]]]:
    """Question -> its answers; without the verdict, which stands above them, and without questions that do not arise.

    If nothing is recommended, what remains to be said has no heading.
    """
    found, best = vars(answers.answer(results)), results.best()
    is_recommended = bool(found["when"])
    told = {name: [s for s in found[name] if s != verdict(results)] for name in QUESTIONS}
    if is_recommended and best is not None:
        value = percent_sign(best.auc, results.digits(best.metric))
        told["which"].insert(0, f"{best.title[:1].upper()}{best.title[1:]}: {value} {best.metric} on average.")
    return [
        (question if is_recommended else "", [bind(sentence) for sentence in told[name]])
        for name, question in QUESTIONS.items()
        if told[name]
    ]


def _numbers(results: ResultsData, metric: str) -> tuple[PageTable, PageTable | None]:
    """A metric's table, and the table of all its rows if they are too many for the first."""
    shown, everything = selection.shown_rows(results, metric), results.table(metric)
    first = numbers_table(results, metric, shown, selection.is_large(results))
    return first, numbers_table(results, metric, everything, False) if len(shown) < len(everything) else None


def numbers_table(results: ResultsData, metric: str, rows: Sequence[Row], by_method: bool) -> PageTable:
    """A metric's results, one line per row. by_method: each method stands once, so orders do not form groups."""
    best, css_of = results.best(metric), []
    for before, row in zip((None, *rows), rows, strict=False):
        css = [name for name, holds in (("best", row == best), ("reference", row.is_end)) if holds]
        group = (lambda r: r.is_reference) if by_method else results.group
        if before is not None and group(before) != group(row):
            css.append("group")
        css_of.append(" ".join(css))
    lines = [_number_line(results, row, metric == results.primary) for row in rows]
    return table_of(
        f"{selection.metric_title(results, metric)}: results of each method", lines, "sortable cards", css_of
    )


def _number_line(results: ResultsData, row: Row, is_primary: bool) -> Line:
    # Old and new are what the conditions and milestones compare with.
    marks = ("", "", "") if row.is_end else conditions(results, row)
    line = [
        *_named(results, row),
        ("average", number(percent(row.auc), row.auc, "key")),
        ("95 % interval", limits(row.auc_low, row.auc_high)),
    ]
    steps = [
        ("as old from", row.passes_old_at, row.passes_old_at_low, row.passes_old_at_high),
        ("half gain from", row.half_gain_at, row.half_gain_at_low, row.half_gain_at_high),
        ("as new from", row.passes_new_at, row.passes_new_at_low, row.passes_new_at_high),
    ]
    if selection.is_retention(results):
        del steps[1]
    else:
        gain = number(percent_sign(row.gain, 0), row.gain, "gain")
        line.append(("gain", gain._replace(width=0.0 if row.is_end else _bar(row))))
    fall, mark = answers.fall_cell(results, row, marks[2])
    cells = (share(row.start), share(row.end), number(fall, row.largest_fall))
    for head, cell, of, words in zip(
        ("start", "end", "largest fall"), cells, (*marks[:2], mark), CONDITIONS, strict=True
    ):
        line.append((head, cell._replace(mark=of, mark_words=words)))
    for head, *found in steps:
        unknown = row.is_end or (head == "half gain from" and math.isnan(row.gain))
        line.append((head, Cell(NOTHING, "") if unknown else _moment(*found)))
    if is_primary:
        line += [("flips vs old", share(row.negative_flips_vs_old_max))]
        line += [("flips vs own start", share(row.negative_flips_max))]
    return line


def _named(results: ResultsData, row: Row, head: str = "method") -> list[tuple[str, Cell]]:
    """The method, and its order and merge where there are several."""
    return [
        (head, Cell(results.name(row))),
        *((name, word(x)) for name, x in selection.variant_cells(results, row).items()),
    ]


def _moment(t: float, low: float, high: float) -> Cell:
    """A milestone with its 95 % interval where this is more than the milestone: "12 % (5 % to 31 %)"."""
    more = f" ({answers.moment(low)} to {answers.moment(high)})" * (not math.isnan(low) and not low == t == high)
    return number(f"{answers.moment(t)}{more}", t if math.isfinite(t) else 2.0)


def _bar(row: Row) -> float:
    """Width of a gain's bar in per cent of its cell; 60 % stands for a gain of 125 % or more."""
    return round(min(max(row.gain, 0.0), 1.25) / 1.25 * 60, 1) if math.isfinite(row.gain) else 0.0


def _rivals(results: ResultsData) -> list[tuple[str, PageTable, PageTable | None]]:
    """Heading, table, and the table of all rows if they are too many for the first; [] if nothing was compared."""
    best = results.best()
    found = selection.rivals(results, best) if best else []
    if best is None or not found:
        return []
    if not selection.is_large(results):
        return [("", leads_table(results, found), None)]
    words = selection.choice(results)
    of_others = f"The closest other methods{', in the same ' + words if words else ''}"
    of_variants = f"The same method in another {words.replace(' and ', ' or ')}"
    parts: list[tuple[str, selection.Compared]] = [
        (of_others, [pair for pair in found if pair[0].method != best.method]),
        (of_variants, [pair for pair in found if pair[0].method == best.method]),
    ]
    return [
        (
            heading,
            leads_table(results, rows[:FEW_RIVALS]),
            leads_table(results, rows) if len(rows) > FEW_RIVALS else None,
        )
        for heading, rows in parts
        if rows
    ]


def leads_table(results: ResultsData, compared: selection.Compared) -> PageTable:
    """The best method against others, one line each."""
    lines = [
        [
            *_named(results, row, "compared with"),
            ("difference", share(found.value)),
            ("95 % interval", limits(found.low, found.high)),
            ("the best is", word(found.verdict)),
        ]
        for row, found in compared
    ]
    return table_of("The best method against the others", lines)


def orders_table(results: ResultsData) -> PageTable | None:
    """A line per method: its best order without labels of the gallery, against random; None without such orders."""
    lines = []
    for row, random, lead in selection.best_orders(results):
        value, low, high = lead or (math.nan, math.nan, math.nan)
        lines.append(
            [
                ("method", Cell(row.title)),
                ("best label-free order", word(row.order)),
                ("average", share(row.auc)),
                ("average in random order", share(random.auc)),
                ("difference", share(value)),
                ("95 % interval", limits(low, high)),
            ]
        )
    return table_of("The best label-free order of each method", lines) if lines else None


def tuned_table(results: ResultsData) -> PageTable | None:
    """A line per method with what --tune chose for it; None without it."""
    lines = [
        [
            ("method", Cell(results.titles.get(each.method, each.method))),
            ("settings tried", number(str(each.trials), each.trials)),
            ("chosen", word(", ".join(f"{name} {_plain(value)}" for name, value in each.values.items()))),
            (f"average {each.metric} there", share(math.nan if each.score is None else each.score)),
            ("as given", share(math.nan if each.given is None else each.given)),
        ]
        for each in results.manifest.tuned
    ]
    return table_of("Settings chosen on the validation split", lines) if lines else None


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def heat_tables(results: ResultsData) -> list[tuple[str, PageTable]]:
    """Title and AUC of every method by order at the first merge, and by merge at the first deployable order."""
    merge, several = results.merges[0], len(results.orders) > 1 and len(results.merges) > 1
    order = next((o for o in results.orders if o not in results.oracles), results.orders[0])
    by_order = {results.order_name(o): Variant(o, merge) for o in results.orders}
    by_merge = {m: Variant(order, m) for m in results.merges}
    kinds = (("order", f", {merge} merge", by_order), ("merge", f", {results.order_name(order)} order", by_merge))
    found = [(f"By {what}{fixed * several}", _heat_table(results, what, variants))
             for what, fixed, variants in kinds if len(variants) > 1]  # fmt: skip
    return [(title, table) for title, table in found if table is not None]


def _heat_table(results: ResultsData, what: str, variants: Mapping[str, Variant]) -> PageTable | None:
    """Darker is better. variants: by heading. None if no method was run with one of them."""
    ranked = [row for row in selection.best_per_method(results, results.primary) if not row.is_reference]
    rows = {row: [results.row(row.method, v, row.metric) for v in variants.values()] for row in ranked}
    areas = [r.auc for cells in rows.values() for r in cells if r is not None and math.isfinite(r.auc)]
    # From the old service, or the worst cell if none is above old, to the best cell.
    old, high = results.reference(OLD), max(areas, default=1.0)
    low = old.auc if old is not None and old.auc < high else min(areas, default=0.0)
    lines: list[Line] = []
    for row, cells in rows.items():
        real = [r.auc for r in cells if r is not None and not r.is_bound and math.isfinite(r.auc)]
        heat = [_heat(cell, low, high, max(real, default=math.inf)) for cell in cells]
        if any(cells):
            lines.append([(f"average {row.metric}", Cell(results.name(row))), *zip(variants, heat, strict=True)])
    return table_of(f"average of each method by {what}", lines, "heat") if lines else None


def _heat(row: Row | None, low: float, high: float, best: float) -> Cell:
    if row is None:
        return Cell(NOTHING)
    share = (row.auc - low) / (high - low) if high > low and math.isfinite(row.auc) else 0.0
    css = "top" if not row.is_bound and row.auc == best else ""
    return Cell(percent(row.auc), css=css, shade=round(DARKEST * min(max(share, 0.0), 1.0), 3))
