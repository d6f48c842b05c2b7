"""The report as one HTML file that needs nothing else: pictures inside, no script, no request."""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ray_backfill.report import figures, wording
from ray_backfill.report.results import ORDER_FREE, Difference, Results, Row

DATA_WORDS = {
    "gallery_items": "gallery items",
    "queries": "queries",
    "queries_skipped": "queries skipped (no right answer)",
    "old_dim": "dimensions of the old embedding",
    "new_dim": "dimensions of the new embedding",
    "broken_images": "broken images",
    "fingerprint": "fingerprint",
}


def render(results: Results, curves_png: bytes) -> str:
    """The page. ``curves_png`` is what stands beside it as curves.png, so that the two never differ."""
    # Autoescape for every template: titles, notes and settings come from users.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=wording.percent,
        percent_sign=wording.percent_sign,
        tick=wording.tick,
        falls=wording.falls,
        surely=wording.surely,
    )
    environment.globals.update(interval=wording.interval)
    template = environment.get_template("report.html.jinja")
    return template.render(
        results=results,
        manifest=results.manifest,
        verdict=_bind(wording.verdict(results)),
        runner_up=_bind(wording.runner_up(results)),
        safety=wording.safety(results),
        gain_in_words=wording.GAIN_IN_WORDS,
        glossary=wording.GLOSSARY,
        order_free=ORDER_FREE,
        has_orders=len({v.order for v in results.variants}) > 1,
        has_merges=len({v.merge for v in results.variants}) > 1,
        has_bounds=any(r.is_bound and r.method not in ORDER_FREE for r in results.rows),
        has_intervals=figures.has_intervals(results),
        best={metric: results.best(metric) for metric in results.metrics},
        rivals=_rivals(results),
        bar=_bar,
        starts_group=lambda before, row: before is not None and results.group(before) != results.group(row),
        curves=_data_uri(curves_png),
        data=_data_facts(results),
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in results.manifest.get("timings_s", {}).items()],
        settings=list(_flatten({k: v for k in ("settings", "recipe") for k, v in results.manifest.get(k, {}).items()})),
        **_more_pictures(results),
    )


def _rivals(results: Results) -> list[tuple[Row, Difference]]:
    """All rows that the best one was compared with, the closest first."""
    best = results.best()
    if best is None:
        return []
    others = [row for row in results.table(results.primary) if row != best and not row.is_bound]
    compared = [(row, found) for row in others if (found := results.difference(best, row)) is not None]
    return sorted(compared, key=lambda pair: pair[1].value)


def _bind(sentence: str) -> str:
    """Keeps numbers and their unit on one line."""
    return sentence.replace(" %", "\u00a0%")


def _more_pictures(results: Results) -> dict[str, Any]:
    several = len(results.variants) > 1
    drawn = figures.drawn_variants(results)
    rest = [(metric, variant) for metric in results.metrics[1:] for variant in drawn]
    best = results.best()
    best_variant = best.variant if best else results.variants[0]
    others = [v for v in drawn if v != best_variant]
    return {
        "orders": _picture(figures.orders_figure(results)),
        "subgroups": _picture(figures.subgroups_figure(results)),
        "other_metrics": _picture(figures.panels_figure(results, rest)) if several and rest else None,
        "flips": _picture(figures.flips_figure(results, best_variant)),
        "drawn": drawn,
        "flips_label": results.label(best_variant),
        "other_flips": [
            (results.label(v), uri) for v in others if (uri := _picture(figures.flips_figure(results, v))) is not None
        ],
    }


def _picture(figure: Any) -> str | None:
    return None if figure is None else _data_uri(figures.to_png(figure))


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _bar(row: Row) -> float:
    """Width of the bar beside a gain in per cent of its cell; 55 % stands for a gain of 125 % or more."""
    return round(min(max(row.gain, 0.0), 1.25) / 1.25 * 55, 1) if math.isfinite(row.gain) else 0.0


def _data_facts(results: Results) -> dict[str, str]:
    facts = results.manifest.get("data", {})
    known = [k for k in DATA_WORDS if k in facts]
    rest = [k for k in facts if k not in DATA_WORDS and k != "notes"]
    return {DATA_WORDS.get(k, k.replace("_", " ")): _plain(facts[k]) for k in known + rest}


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names, as one would type them."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "\u2013"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(str(v) for v in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
