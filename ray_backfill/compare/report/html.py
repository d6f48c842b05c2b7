"""The report as one self-contained HTML file: text, charts as SVG, one small script, no request."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ray_backfill.compare import charts, selection
from ray_backfill.compare.analyses import sections
from ray_backfill.compare.analyses.shown import examples
from ray_backfill.compare.report import answers
from ray_backfill.compare.report.terminal import MOST_WARNINGS
from ray_backfill.compare.report.verdict import basis, conditions, in_two, verdict
from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.tables import OLD
from ray_backfill.page.heading import date_of, name_of, recipe_of, top_notes, without_folders
from ray_backfill.page.numbers import NOTHING, listed, percent, percent_sign, upper
from ray_backfill.page.parts import bind, data_facts, flatten, page_charts, page_environment
from ray_backfill.page.sections import Cell, PageTable, TableLine, limits, number, share, table_of, word

FEW_RIVALS = 10  # number of the closest other methods shown without unfolding
FEW_CHARACTERS = 300  # of sentences that are good to know, shown without unfolding
DARKEST = 0.5  # opacity at which text stays readable


def render(results: ResultsData) -> str:
    """The HTML page."""
    manifest, tables, analyses = results.manifest, heat_tables(results), sections(results)
    invented, warnings = top_notes(answers.warnings(results))
    known = [bind(without_folders(sentence)) for sentence in answers.good_to_know(results)]
    act, rest = in_two(verdict(results))
    template = page_environment(Path(__file__).parent).get_template("report.html.jinja")
    seed = [("seed", str(manifest.seed))] if manifest.seed is not None else []
    kinds = {
        "oracle orders": any(row.is_bound for row in results.rows),
        "cascades": results.recalling,
        "methods marked \u2021": results.unlearned,
    }
    never_bold = [name for name, there in kinds.items() if there]
    return template.render(
        results=results,
        facts=manifest.data,
        name=name_of(manifest.data),
        recipe=recipe_of(manifest.data),
        date=date_of(manifest.created),
        invented=bind(invented),
        warnings=[bind(warning) for warning in warnings],
        known=known,
        is_known_short=sum(map(len, known)) <= FEW_CHARACTERS,
        act=bind(act),
        rest=bind(rest),
        basis=bind(basis(results)),
        most_warnings=MOST_WARNINGS,
        questions=_questions(results),
        examples=examples(results),
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
        never_bold=f" (without {listed(never_bold, 'and')})" if never_bold else "",
        unlearned_note=selection.UNLEARNED_NOTE if results.unlearned else "",
        left_out=[(", ".join(names), without_folders(why)) for why, names in selection.left_out(results).items()],
        glossary=selection.glossary(results),
        command=without_folders(manifest.command),
        data=data_facts(manifest.data),
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in manifest.timings_s.items()],
        settings=[*flatten({**manifest.settings, **manifest.recipe}), *seed],
        versions=manifest.versions,
    )


def _questions(results: ResultsData) -> list[tuple[str, list[str]]]:
    """Question -> its answers; without the verdict, which stands above them, and without questions that do not arise.

    If nothing is recommended, what remains to be said has no heading.
    """
    answer, best = answers.answer(results), results.best()
    is_recommended = bool(answer.when)
    which = [sentence for sentence in answer.which if sentence != verdict(results)]
    if is_recommended and best is not None:
        value = percent_sign(best.auc, results.digits(best.metric))
        which.insert(0, f"{upper(best.title)}: {value} {best.metric} on average.")
    told = {
        "Which method?": which,
        "When to switch?": answer.when,
        "What does it cost?": answer.cost,
        "What is at risk?": answer.risk,
    }
    return [(question if is_recommended else "", [*map(bind, said)]) for question, said in told.items() if said]


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


def _number_line(results: ResultsData, row: Row, is_primary: bool) -> TableLine:
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
        # The bar's width in per cent of its cell; 60 % stands for a gain of 125 % or more.
        has_bar = math.isfinite(row.gain) and not row.is_end
        width = round(min(max(row.gain, 0.0), 1.25) / 1.25 * 60, 1) if has_bar else 0.0
        line.append(("gain", number(percent_sign(row.gain, 0), row.gain, "gain")._replace(width=width)))
    fall, fall_mark = answers.fall_cell(results, row, marks[2])
    for head, cell, mark, words in (
        ("start", share(row.start), marks[0], "starts no worse than old"),
        ("end", share(row.end), marks[1], "ends no worse than new"),
        ("largest fall", number(fall, row.largest_fall), fall_mark, "never falls"),
    ):
        line.append((head, cell._replace(mark=mark, mark_words=words)))
    for head, t, low, high in steps:
        if row.is_end or (head == "half gain from" and math.isnan(row.gain)):
            line.append((head, Cell(NOTHING, "")))
            continue
        # With its 95 % interval where this is more than the milestone: "12 % (5 % to 31 %)".
        more = f" ({answers.moment(low)} to {answers.moment(high)})" * (not math.isnan(low) and not low == t == high)
        line.append((head, number(f"{answers.moment(t)}{more}", t if math.isfinite(t) else 2.0)))
    if is_primary:
        line += [("lost", share(row.negative_flips_vs_old_max))]
        line += [("lost vs own start", share(row.negative_flips_max))]
    return line


def _named(results: ResultsData, row: Row, head: str = "method") -> list[tuple[str, Cell]]:
    """The method, and its order and merge where there are several."""
    return [
        (head, Cell(results.name(row))),
        *((name, word(x)) for name, x in selection.variant_cells(results, row).items()),
    ]


def _rivals(results: ResultsData) -> list[tuple[str, PageTable, PageTable | None]]:
    """Heading, table, and the table of all rows if they are too many for the first; [] if nothing was compared."""
    best = results.best()
    compared = selection.rivals(results, best) if best else []
    if best is None or not compared:
        return []
    if not selection.is_large(results):
        return [("", leads_table(results, compared), None)]
    words = selection.choice(results)
    parts = {
        f"The closest other methods{', in the same ' + words if words else ''}": [
            (row, lead) for row, lead in compared if row.method != best.method
        ],
        f"The same method in another {words.replace(' and ', ' or ')}": [
            (row, lead) for row, lead in compared if row.method == best.method
        ],
    }
    return [
        (
            heading,
            leads_table(results, rows[:FEW_RIVALS]),
            leads_table(results, rows) if len(rows) > FEW_RIVALS else None,
        )
        for heading, rows in parts.items()
        if rows
    ]


def leads_table(results: ResultsData, compared: selection.Leads) -> PageTable:
    """The best method against others, one line each."""
    lines = [
        [
            *_named(results, row, "compared with"),
            ("difference", share(lead.value)),
            ("95 % interval", limits(lead.low, lead.high)),
            ("the best is", word(lead.verdict)),
        ]
        for row, lead in compared
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
    lines = []
    for tuned in results.manifest.tuned:
        values = {name: f"{v:g}" if isinstance(v, float) else str(v) for name, v in tuned.values.items()}
        lines.append(
            [
                ("method", Cell(results.titles.get(tuned.method, tuned.method))),
                ("settings tried", number(str(tuned.trials), tuned.trials)),
                ("chosen", word(", ".join(f"{name} {value}" for name, value in values.items()))),
                (f"average {tuned.metric} there", share(math.nan if tuned.score is None else tuned.score)),
                ("as given", share(math.nan if tuned.given is None else tuned.given)),
            ]
        )
    return table_of("Settings chosen on the validation split", lines) if lines else None


def heat_tables(results: ResultsData) -> list[tuple[str, PageTable]]:
    """Title and AUC of every method by order at the first merge, and by merge at the first deployable order."""
    merge, several = results.merges[0], len(results.orders) > 1 and len(results.merges) > 1
    order = next((o for o in results.orders if o not in results.oracles), results.orders[0])
    by_order = {results.order_name(o): Variant(o, merge) for o in results.orders}
    by_merge = {m: Variant(order, m) for m in results.merges}
    tables = []
    for what, fixed, variants in (
        ("order", f", {merge} merge", by_order),
        ("merge", f", {results.order_name(order)} order", by_merge),
    ):
        table = _heat_table(results, what, variants) if len(variants) > 1 else None
        if table is not None:
            tables.append((f"By {what}{fixed * several}", table))
    return tables


def _heat_table(results: ResultsData, what: str, variants: Mapping[str, Variant]) -> PageTable | None:
    """Darker is better. variants: by heading. None if no method was run with one of them."""
    ranked = [row for row in selection.best_per_method(results, results.primary) if not row.is_reference]
    rows = {row: [results.row(row.method, v, row.metric) for v in variants.values()] for row in ranked}
    areas = [r.auc for cells in rows.values() for r in cells if r is not None and math.isfinite(r.auc)]
    # From the old service, or the worst cell if none is above old, to the best cell.
    old, high = results.reference(OLD), max(areas, default=1.0)
    low = old.auc if old is not None and old.auc < high else min(areas, default=0.0)
    lines: list[TableLine] = []
    for row, cells in rows.items():
        if not any(cells):
            continue
        best = max((r.auc for r in cells if r and not r.is_bound and math.isfinite(r.auc)), default=math.inf)
        line = [(f"average {row.metric}", Cell(results.name(row)))]
        for head, r in zip(variants, cells, strict=True):
            if r is None:
                line.append((head, Cell(NOTHING)))
                continue
            place = (r.auc - low) / (high - low) if high > low and math.isfinite(r.auc) else 0.0
            css = "top" if not r.is_bound and r.auc == best else ""
            shade = round(DARKEST * min(max(place, 0.0), 1.0), 3)
            line.append((head, Cell(percent(r.auc), css=css, shade=shade)))
        lines.append(line)
    return table_of(f"average of each method by {what}", lines, "heat") if lines else None
