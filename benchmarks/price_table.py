"""Writes ``ray_backfill/plan/prices.csv`` from a wheel of litellm, whose table of prices names the vendors' pages.

    python -m pip download --no-deps litellm -d DIR
    python -m benchmarks.price_table DIR/litellm-*.whl [--to FILE]

Facts alone are taken: prices of tokens, of batches, and limits of inputs, of models that embed. A row has the date of
the release: the newest time of a file in the wheel or, where these are not real, the time that its list of components
states. Models with a price far beyond all others are left out and named: a number in the wrong unit.
"""

import argparse
import csv
import json
import re
from datetime import date
from pathlib import Path
from statistics import median
from zipfile import ZipFile

# Provider in litellm's table -> ours, and how the keys of its models begin. Keys of single regions are left out.
PROVIDERS = {
    "openai": ("openai", r"(?!ft:)"),
    "cohere": ("cohere", r"(cohere/)?"),
    "voyage": ("voyage", r"voyage/"),
    "gemini": ("gemini", r"gemini/"),
    "vertex_ai-embedding-models": ("vertex", r""),
    "bedrock": ("bedrock", r"(?=amazon\.|cohere\.)"),
    "mistral": ("mistral", r"mistral/"),
}
COLUMNS = (
    *("provider", "model", "dollars_per_million_tokens", "batch_discount", "max_input_tokens", "source", "date"),
)
# Times of files before this year were set by a build that makes equal wheels each time.
_FIRST_YEAR, _TOO_MANY_TIMES = 2020, 50


def release_date(wheel: ZipFile) -> date:
    """When the wheel was made."""
    newest = max(file.date_time for file in wheel.infolist())
    if newest[0] >= _FIRST_YEAR:
        return date(*newest[:3])
    stated = [
        json.loads(wheel.read(name))["metadata"]["timestamp"]
        for name in wheel.namelist()
        if name.endswith(".cyclonedx.json")
    ]
    return date.fromisoformat(max(stated)[:10])


def rows_of(wheel: ZipFile, release: str) -> list[dict[str, str]]:
    """The rows of the table, by provider and model. release: source of those for which no page is named."""
    (name,) = [name for name in wheel.namelist() if re.search(r"model_prices_and_context_window\w*\.json$", name)]
    made, rows = release_date(wheel).isoformat(), []
    for key, model in json.loads(wheel.read(name)).items():
        provider, begins = PROVIDERS.get(model.get("litellm_provider"), ("", ""))
        cost, in_batches = model.get("input_cost_per_token"), model.get("input_cost_per_token_batches")
        if provider and model.get("mode") == "embedding" and cost and (start := re.match(begins, key)):
            discount = f"{1 - in_batches / cost:.4g}" if in_batches else ""
            values = (
                *(provider, key[start.end() :], f"{cost * 1e6:.6g}", discount, str(model.get("max_input_tokens", ""))),
                *(model.get("source", release), made),
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    usual = median(float(row["dollars_per_million_tokens"]) for row in rows)
    for row in rows:
        if float(row["dollars_per_million_tokens"]) > _TOO_MANY_TIMES * usual:
            price = row["dollars_per_million_tokens"]
            print(f"left out: {row['provider']}/{row['model']}, ${price} a million, and the median is ${usual:g}")
    rows = [row for row in rows if float(row["dollars_per_million_tokens"]) <= _TOO_MANY_TIMES * usual]
    return sorted(rows, key=lambda row: (list(PROVIDERS).index(key_of(row["provider"])), row["model"]))


def key_of(provider: str) -> str:
    """The name in litellm's table of one of our providers."""
    return next(key for key, (ours, _) in PROVIDERS.items() if ours == provider)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--to", type=Path, default=Path("ray_backfill/plan/prices.csv"))
    given = parser.parse_args()
    with ZipFile(given.wheel) as wheel:
        rows = rows_of(wheel, " ".join(given.wheel.name.split("-")[:2]))
    with given.to.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{given.to}: {len(rows)} models, {rows[0]['date']}")


if __name__ == "__main__":
    main()
