"""What providers charge for embeddings: a table with a source and a date in each row.

``prices.csv`` holds facts that the package litellm states, and nothing else; the package is not needed to read it.
``benchmarks/price_table.py`` makes the file.
"""

import csv
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from math import nan

from ray_backfill.core.errors import InputError, unknown_name

_OLD_DAYS = 180


@dataclass(frozen=True)
class Price:
    """A price of tokens, in US dollars.

    batch_discount: share of it that a batch interface saves; nan: unknown. max_input_tokens: of one text; 0: unknown.
    source: address of the vendor's page, or the release of litellm where it names none. date: of that release.
    is_old: so long before the day of the question that the price counts as unknown.
    """

    provider: str
    model: str
    dollars_per_million_tokens: float
    batch_discount: float
    max_input_tokens: int
    source: str
    date: date
    is_old: bool = False


def find_price(model: str, today: date) -> Price:
    """The price of a model, named as its provider names it, or as PROVIDER/MODEL.

    Raises:
        InputError: The table has no such model, or several providers sell it at different prices.
    """
    rows = _table()
    matches = [row for row in rows if model in (row.model, f"{row.provider}/{row.model}")]
    if not matches:
        raise unknown_name("model of a provider", model, dict.fromkeys(row.model for row in rows))
    if len({(row.dollars_per_million_tokens, str(row.batch_discount)) for row in matches}) > 1:
        names = " or ".join(f"{row.provider}/{row.model}" for row in matches)
        raise InputError(f"several providers sell {model} at different prices; name one: {names}")
    first = matches[0]
    return Price(**vars(first) | {"is_old": (today - first.date).days > _OLD_DAYS})


@cache
def _table() -> tuple[Price, ...]:
    text = (files("ray_backfill.plan") / "prices.csv").read_text(encoding="utf-8")
    return tuple(
        Price(
            row["provider"], row["model"], float(row["dollars_per_million_tokens"]),
            float(row["batch_discount"] or nan), int(row["max_input_tokens"] or 0), row["source"],
            date.fromisoformat(row["date"]),
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip
