"""What every HTML page is made with: the template environment, pictures as text, settings as names and values."""

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
    """Write ``curves.png`` and ``report.html``; each appears whole or not at all, an older one is replaced."""
    write_whole(folder / "curves.png", lambda temporary: temporary.write_bytes(curves_png))
    write_whole(folder / "report.html", lambda temporary: temporary.write_text(page, encoding="utf-8"))


def page_environment() -> Environment:
    """Templates of this folder, with numbers as per cent."""
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
    """Keeps numbers and their unit on one line."""
    return sentence.replace(" %", "\u00a0%")


def picture(figure: Figure | None) -> str | None:
    """The address of a figure that stands inside the page."""
    return None if figure is None else data_uri(to_png(figure))


def data_uri(png: bytes) -> str:
    """The address of a picture that stands inside the page."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def data_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """What is known about the data, in words; without its notes."""
    known = [k for k in DATA_WORDS if k in facts]
    rest = [k for k in facts if k not in DATA_WORDS and k != "notes"]
    return {DATA_WORDS.get(k, k.replace("_", " ")): plain(facts[k]) for k in known + rest}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names, as one would type them."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """A setting as one would say it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "\u2013"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(str(v) for v in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
