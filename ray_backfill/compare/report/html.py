"""The report as one self-contained HTML file: text, charts as SVG, one small script, no request."""

import math
from pathlib import Path
from typing import Any

from ray_backfill.compare.report import answers, charts, cutoffs, selection, wording
from ray_backfill.compare.report.glossary import glossary
from ray_backfill.compare.report.grids import grids
from ray_backfill.compare.report.page_tables import (
    cascades_table,
    checks_table,
    costs_table,
    leads_table,
    numbers_table,
    orders_table,
    tuned_table,
)
from ray_backfill.compare.report.results import Results
from ray_backfill.compare.report.selection import Compared
from ray_backfill.compare.report.shown import counted, shown_lines, shown_of
from ray_backfill.compare.report.slice_tables import slice_tables
from ray_backfill.compare.report.verdict import verdict
from ray_backfill.page.heading import date_of, name_of, recipe_of, top_notes, without_folders
from ray_backfill.page.numbers import listed, percent_sign
from ray_backfill.page.parts import PageTable, bind, data_facts, flatten, page_charts, page_environment

FEW_RIVALS = 10  # number of the closest other methods shown without unfolding
# Field of ``Answers`` -> its question.
QUESTIONS = {
    "which": "Which method?",
    "when": "When is it safe to switch?",
    "cost": "What does it cost?",
    "risk": "What is at risk?",
}


def render(results: Results) -> str:
    """The HTML page."""
    manifest, tables = results.manifest, grids(results)
    invented, warnings = top_notes(manifest.data, answers.warnings(results))
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
        verdict=bind(verdict(results)),
        questions=_questions(results),
        gain_in_words=wording.explained(results),
        oracle_note=wording.ORACLE_NOTE,
        has_bounds=any(r.is_bound for r in results.rows),
        has_intervals=charts.has_intervals(results),
        large=selection.is_large(results),
        choice=wording.choice(results),
        size=wording.size(results),
        drawn=len(charts.drawn_variants(results)),
        curves=page_charts(charts.curve_charts(results), "curves"),
        orders=page_charts(charts.order_charts(results), "orders"),
        subgroups=page_charts(charts.subgroup_charts(results), "groups"),
        slices=slice_tables(results),
        **_queries(results),
        flips=page_charts(charts.flip_charts(results, results.best_variant), "flips"),
        numbers=[(metric, *_numbers(results, metric)) for metric in results.metrics],
        rivals=_rivals(results),
        grids=tables,
        best_orders=orders_table(results),
        permutations=manifest.settings.get("evaluation", {}).get("permutations", 1),
        dashes=any(not math.isfinite(c.auc) for grid in tables for _, cells in grid.rows for c in cells),
        cutoffs=_cutoffs(results),
        costs=costs_table(results),
        cascades=cascades_table(results),
        tuned=tuned_table(results),
        checks=checks_table(results),
        **_left_out(results),
        glossary=glossary(results),
        command=without_folders(manifest.command),
        data=data_facts(manifest.data),
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in manifest.timings_s.items()],
        settings=[*flatten({**manifest.settings, **manifest.recipe}), *seed],
        versions=manifest.versions,
    )


def _left_out(results: Results) -> dict[str, Any]:
    """Rows that are never bold, methods that did not learn, and methods that were not compared."""
    bounds = any(row.is_bound for row in results.rows)
    kinds = (("oracle orders", bounds), ("cascades", results.recalling), ("methods marked \u2021", results.unlearned))
    names = [name for name, there in kinds if there]
    return {
        "never_bold": f" (without {listed(names, 'and')})" if names else "",
        "unlearned_note": wording.UNLEARNED_NOTE if results.unlearned else "",
        "left_out": [(", ".join(names), without_folders(why)) for why, names in wording.left_out(results).items()],
    }


def _queries(results: Results) -> dict[str, Any]:
    """What happened to single queries."""
    return {
        "shown_queries": shown_lines(results),
        "shown_of": shown_of(results),
        "counted": counted(results),
        "has_items": any(row.before or row.first for row in results.shown),
        "has_images": any(row.query_image or row.before_image or row.first_image for row in results.shown),
    }


def _cutoffs(results: Results) -> dict[str, Any] | None:
    """What becomes of score cut-offs: a table, and a sentence for each line, first those of the best method."""
    lines, best = cutoffs.cutoff_lines(results), results.best()
    first = lines[0].row.method if lines and best is None else best.method if best else ""
    told = [(line.row.method == first, bind(cutoffs.sentence(results, line))) for line in lines]
    return (
        {
            "table": cutoffs.cutoffs_table(results, lines),
            "title": cutoffs.title(results),
            "first": [sentence for is_first, sentence in told if is_first],
            "rest": [sentence for is_first, sentence in told if not is_first],
            "notes": cutoffs.notes(lines),
        }
        if lines
        else None
    )


def _questions(results: Results) -> list[tuple[str, list[str]]]:
    """Question -> its answers; without the verdict, which stands above them, and without questions that do not arise.

    If nothing is recommended, what remains to be said has no heading.
    """
    found, best = vars(answers.answer(results)), results.best()
    is_recommended = bool(found["when"])
    told = {name: [s for s in found[name] if s != verdict(results)] for name in QUESTIONS}
    if is_recommended and best is not None:
        told["which"].insert(0, f"Best: {best.title}, AUC {percent_sign(best.auc)}.")
    return [
        (question if is_recommended else "", [bind(sentence) for sentence in told[name]])
        for name, question in QUESTIONS.items()
        if told[name]
    ]


def _numbers(results: Results, metric: str) -> tuple[PageTable, PageTable | None]:
    """A metric's table, and the table of all its rows if they are too many for the first."""
    shown, everything = selection.shown_rows(results, metric), results.table(metric)
    first = numbers_table(results, metric, shown, selection.is_large(results))
    return first, numbers_table(results, metric, everything, False) if len(shown) < len(everything) else None


def _rivals(results: Results) -> list[tuple[str, PageTable, PageTable | None]]:
    """Heading, table, and the table of all rows if they are too many for the first; [] if nothing was compared."""
    best = results.best()
    found = selection.rivals(results, best) if best else []
    if best is None or not found:
        return []
    if not selection.is_large(results):
        return [("", leads_table(results, found), None)]
    words = wording.choice(results)
    of_others = f"The closest other methods{', in the same ' + words if words else ''}"
    of_variants = f"The same method in another {words.replace(' and ', ' or ')}"
    parts: list[tuple[str, Compared]] = [
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
