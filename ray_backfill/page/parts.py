"""Parts shared by all HTML pages: template environment, drawn charts, settings as names and values."""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ray_backfill.core.errors import why_not_installed
from ray_backfill.core.stages import write_whole
from ray_backfill.page.charts import Chart, DrawnCurve, places_of, values_at
from ray_backfill.page.heading import without_folders
from ray_backfill.page.numbers import percent, percent_sign, tick

FOLDER = Path(__file__).parent
FEW_LINES = 6  # lines of a chart that are described to a screen reader one by one
DATA_WORDS = {
    "gallery_items": "gallery items",
    "queries": "queries",
    "queries_skipped": "queries skipped (no right answer)",
    "queries_weighted_by": "queries weighted by",
    "old_dim": "dimensions of the old embedding",
    "new_dim": "dimensions of the new embedding",
    "validation_items": "validation items",
    "validation_from": "validation items from",
    "not_checked": "fitted methods not checked",
    "broken_images": "broken images",
    "fingerprint": "fingerprint",
}


class Entry(NamedTuple):
    """A line of a chart's legend. values: what it is at each place, as text."""

    curve: DrawnCurve
    swatch: Markup
    values: str


class PageChart(NamedTuple):
    """A chart for a page. places: where the legend can show values. names: of places, if they have any.

    box: edges of the panel, and ends of its axis.
    """

    chart: Chart
    svg: Markup
    entries: list[Entry]
    places: str
    names: str
    box: str


def write_pages(folder: Path, curves: Callable[[], Sequence[Chart]], page: Callable[[], str]) -> None:
    """Make ``curves.png`` and ``report.html`` and write them atomically; older files are replaced.

    Without matplotlib there is no ``curves.png``, and the page says how to have curves drawn.
    """
    try:
        charts = [] if undrawn() else curves()
        drawn, text = _png(charts) if charts else None, page()
    except Exception as error:
        error.add_note(f"The results in {folder} are complete; ray-backfill report makes their page again.")
        raise
    if drawn is not None:
        write_whole(folder / "curves.png", lambda temporary: temporary.write_bytes(drawn))
    write_whole(folder / "report.html", lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _png(charts: Sequence[Chart]) -> bytes:
    from ray_backfill.page.drawing import panels_figure, to_png

    return to_png(panels_figure(charts))


def undrawn() -> str:
    """Why no curve is drawn, and the remedy; "" if they are."""
    lacking = why_not_installed("matplotlib")
    return f"A picture {lacking}, then: ray-backfill report RUN" if lacking else ""


def page_environment(templates: Path) -> Environment:
    """The environment for the templates of this folder and of ``templates``: filters, the script and its hash."""
    # Autoescape for every template: titles, notes and settings come from users.
    loader = FileSystemLoader([templates, FOLDER])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, percent_sign=percent_sign, tick=tick, bind=bind, drawn=page_charts)
    environment.filters["kind"] = lambda part: type(part).__name__
    script = "\n" + (FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    # The policy allows this one script by its hash, so text from users can never become a script.
    environment.globals.update(script=Markup(script), script_hash=f"sha256-{digest}", undrawn=undrawn())
    return environment


def page_charts(charts: Sequence[Chart], name: str) -> list[PageChart]:
    """Charts drawn for a page; none without matplotlib. name: unique in the page."""
    if undrawn():
        return []
    from ray_backfill.page.drawing import box_of, chart_svg, swatch_svg

    drawn = []
    for index, chart in enumerate(charts):
        places = places_of(chart)
        entries = [
            Entry(curve, Markup(swatch_svg(curve.style)), " ".join(map(_in_words, values_at(curve, places))))
            for curve in chart.curves
        ]
        svg = Markup(chart_svg(chart, f"{name}-{index}", _described(chart)))
        box = " ".join(f"{edge:g}" for edge in (*box_of(chart), *chart.x_range))
        shown = " ".join(f"{x:.4g}" for x in places)
        names = "\t".join(f"{label} %" if label[:1].isdigit() else label for label in chart.bars)
        drawn.append(PageChart(chart, svg, entries, shown, names, box))
    return drawn


def bind(sentence: str) -> str:
    """Keep numbers and their per cent sign on one line."""
    return sentence.replace(" %", "\u00a0%")


def data_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The known facts about the data, in words; without its notes and remarks."""
    known = [k for k in DATA_WORDS if k in facts]
    rest = [k for k in facts if k not in (*DATA_WORDS, "notes", "remarks", "models")]
    models = {f"model of {column}": plain(model) for column, model in facts.get("models", {}).items()}
    return {DATA_WORDS.get(k, k.replace("_", " ")): plain(facts[k]) for k in known + rest} | models


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted option names with values."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """A setting's value as readable text, without the folders of a path."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "\u2013"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return without_folders(", ".join(str(v) for v in value))
    return without_folders(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _in_words(y: float) -> str:
    if not math.isfinite(y):
        return ""
    return f"{y:.1f}" if abs(y) < 1000 else f"{y:,.0f}"


def _described(chart: Chart) -> str:
    """What the chart shows, in a sentence."""
    shown, lines = chart.shown, []
    for curve in shown[:FEW_LINES]:
        known = [y for y in curve.y if math.isfinite(y)]
        if known:
            first, last = _in_words(known[0]), _in_words(known[-1])
            course = f"{'rises' if known[-1] > known[0] else 'falls'} from {first} to {last}"
            lines.append(f"{curve.title} {course if first != last else f'starts and ends at {first}'}")
    more = f"; and {len(shown) - FEW_LINES} more" if len(shown) > FEW_LINES else ""
    return f"{chart.title}, {chart.unit}, {len(shown)} lines over the {chart.x_unit}: {'; '.join(lines)}{more}."
