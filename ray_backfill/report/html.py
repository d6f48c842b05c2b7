"""The report as one self-contained HTML file: embedded pictures, no script, no request."""

import math
from collections.abc import Sequence
from typing import Any

from ray_backfill.report import answers, figures, selection, wording
from ray_backfill.report.glossary import glossary
from ray_backfill.report.grids import grids
from ray_backfill.report.parts import bind, data_facts, data_uri, flatten, page_environment, picture
from ray_backfill.report.results import Results, Row

FEW_RIVALS = 10  # number of the closest other methods shown without unfolding
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


def render(results: Results, curves_png: bytes) -> str:
    """The HTML page. ``curves_png``: content of curves.png, so that the page and the file never differ."""
    environment = page_environment()
    environment.filters.update(tick=wording.tick)
    environment.globals.update(interval=wording.interval)
    tables, best = grids(results), results.best()
    rivals = selection.rivals(results, best) if best else []
    template = environment.get_template("report.html.jinja")
    return template.render(
        results=results,
        manifest=results.manifest,
        verdict=bind(answers.verdict(results)),
        answers={name: [bind(sentence) for sentence in found] for name, found in vars(answers.answer(results)).items()},
        warnings=answers.warnings(results),
        verdicts_on=lambda row: answers.conditions(results, row),
        gain_in_words=wording.GAIN_IN_WORDS,
        glossary=glossary(results),
        oracle_note=wording.ORACLE_NOTE,
        has_orders=len(results.orders) > 1,
        has_merges=len(results.merges) > 1,
        has_bounds=any(r.is_bound for r in results.rows),
        large=selection.is_large(results),
        choice=wording.choice(results),
        size=wording.size(results),
        shown={metric: selection.shown_rows(results, metric) for metric in results.metrics},
        own_methods=selection.own_methods(results),
        drawn_in_words=" ".join(selection.drawn_in_words(results.panel(results.primary, results.best_variant))),
        left_out=[(", ".join(methods), reason) for reason, methods in wording.left_out(results).items()],
        has_intervals=figures.has_intervals(results),
        best={metric: results.best(metric) for metric in results.metrics},
        rivals=rivals,
        other_methods=[pair for pair in rivals if best is not None and pair[0].method != best.method],
        other_variants=[pair for pair in rivals if best is not None and pair[0].method == best.method],
        few=FEW_RIVALS,
        grids=tables,
        dashes=any(not math.isfinite(c.auc) for grid in tables for _, cells in grid.rows for c in cells),
        costs=_costs(results),
        bar=_bar,
        starts_group=lambda before, row: before is not None and results.group(before) != results.group(row),
        curves=data_uri(curves_png),
        data=data_facts(results.manifest.data),
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in results.manifest.timings_s.items()],
        settings=list(flatten({**results.manifest.settings, **results.manifest.recipe})),
        **_more_pictures(results),
    )


def _costs(results: Results) -> list[list[str]]:
    """A header and one line per method, in the order of the first table, without columns of unknown values."""
    if not results.costs:
        return []
    place = {row.method: index for index, row in enumerate(selection.shown_rows(results, results.primary))}
    costs = sorted(results.costs, key=lambda cost: place.get(cost.method, len(place)))
    known = [name for name in COST_WORDS if not _is_unknown([getattr(cost, name) for cost in costs])]
    lines = [[cost.title, *(_cost(getattr(cost, name)) for name in known)] for cost in costs]
    return [["method", *(COST_WORDS[name] for name in known)], *lines]


def _cost(value: str | float) -> str:
    return wording.amount(value) if not isinstance(value, str) else value or wording.NOTHING


def _is_unknown(values: Sequence[str | float]) -> bool:
    """Whether a column is uninformative: some numbers are unknown and all others are 0."""
    numbers = [value for value in values if not isinstance(value, str)]
    return any(math.isnan(n) for n in numbers) and not any(n > 0 for n in numbers)


def _more_pictures(results: Results) -> dict[str, Any]:
    several = len(results.variants) > 1
    drawn = figures.drawn_variants(results)
    rest = [(metric, variant) for metric in results.metrics[1:] for variant in drawn]
    best, best_variant = results.best(), results.best_variant
    other_flips = [(v, picture(figures.flips_figure(results, v))) for v in drawn if v != best_variant]
    return {
        "orders": picture(figures.orders_figure(results)),
        "orders_bound": best is not None and any(r.is_bound for r in selection.compared_variants(results, best.method)),
        "subgroups": picture(figures.subgroups_figure(results)),
        "other_metrics": picture(figures.panels_figure(results, rest)) if several and rest else None,
        "flips": picture(figures.flips_figure(results, best_variant)),
        "drawn": drawn,
        "flips_label": results.label(best_variant),
        "other_flips": [(results.label(v), address) for v, address in other_flips if address is not None],
    }


def _bar(row: Row) -> float:
    """Width of a gain's bar in per cent of its cell; 55 % stands for a gain of 125 % or more."""
    return round(min(max(row.gain, 0.0), 1.25) / 1.25 * 55, 1) if math.isfinite(row.gain) else 0.0
