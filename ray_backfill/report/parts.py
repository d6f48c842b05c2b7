"""Parts shared by all HTML pages: template environment, embedded pictures, settings as names and values."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from ray_backfill.display.drawing import to_png
from ray_backfill.files import write_whole
from ray_backfill.report import wording

DATA_WORDS = {
    "gallery_items": "gallery items",
    "queries": "queries",
    "queries_skipped": "queries skipped (no right answer)",
    "old_dim": "dimensions of the old embedding",
    "new_dim": "dimensions of the new embedding",
    "broken_images": "broken images",
    "fingerprint": "fingerprint",
}


def write_pages(folder: Path, curves_png: bytes, page: str) -> None:
    """Write ``curves.png`` and ``report.html`` atomically; older files are replaced."""
    write_whole(folder / "curves.png", lambda temporary: temporary.write_bytes(curves_png))
    write_whole(folder / "report.html", lambda temporary: temporary.write_text(page, encoding="utf-8"))


def page_environment() -> Environment:
    """The environment for this folder's templates, with filters for percentages."""
    # Autoescape for every template: titles, notes and settings come from users.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=wording.percent, percent_sign=wording.percent_sign)
    return environment


def bind(sentence: str) -> str:
    """Keep numbers and their per cent sign on one line."""
    return sentence.replace(" %", "\u00a0%")


def picture(figure: Figure | None) -> str | None:
    """A figure as a data URI."""
    return None if figure is None else data_uri(to_png(figure))


def data_uri(png: bytes) -> str:
    """A PNG picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def data_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The known facts about the data, in words; without its notes."""
    known = [k for k in DATA_WORDS if k in facts]
    rest = [k for k in facts if k not in DATA_WORDS and k != "notes"]
    return {DATA_WORDS.get(k, k.replace("_", " ")): plain(facts[k]) for k in known + rest}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted option names with values."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """A setting's value as readable text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "\u2013"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(str(v) for v in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
