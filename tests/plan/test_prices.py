"""Prices: every row is whole, old ones are known to be old, and the script takes what a wheel states."""

import csv
import json
from datetime import date, timedelta
from math import isnan
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks.price_table import rows_of
from ray_backfill.core.errors import InputError
from ray_backfill.plan.prices import find_price
from tests.test_structure import ROOT

ROWS = list(csv.DictReader((ROOT / "ray_backfill" / "plan" / "prices.csv").read_text().splitlines()))
TODAY = date(2026, 11, 29)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['provider']}/{row['model']}")
def test_every_row_can_be_found_by_provider_and_model(row: dict[str, str]) -> None:
    price = find_price(f"{row['provider']}/{row['model']}", TODAY)
    assert (price.provider, price.model, price.source) == (row["provider"], row["model"], row["source"])
    assert 0.001 < price.dollars_per_million_tokens < 1
    assert isnan(price.batch_discount) or 0 < price.batch_discount < 1
    assert price.max_input_tokens > 100
    assert price.source.startswith(("https://", "litellm "))
    assert not price.is_old


def test_providers_and_prices_that_everybody_knows() -> None:
    assert {"openai", "cohere", "voyage", "gemini", "vertex", "bedrock", "mistral"} == {row["provider"] for row in ROWS}
    small = find_price("text-embedding-3-small", TODAY)
    assert (small.provider, small.dollars_per_million_tokens, small.batch_discount) == ("openai", 0.02, 0.5)
    assert find_price("amazon.titan-embed-text-v2:0", TODAY).dollars_per_million_tokens == 0.02


def test_a_price_is_old_after_180_days() -> None:
    made = find_price("text-embedding-3-small", TODAY).date
    for days, is_old in ((180, False), (181, True)):
        assert find_price("text-embedding-3-small", made + timedelta(days)).is_old is is_old


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("text-embedding-3-smal", "did you mean text-embedding-3-small"),
        ("", "unknown model of a provider ''"),
        ("gemini-embedding-001", "name one: gemini/gemini-embedding-001 or vertex/gemini-embedding-001"),
    ],
)
def test_a_model_that_is_unknown_or_sold_at_two_prices(model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_price(model, TODAY)


def test_the_script_takes_what_a_wheel_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, embeds = "https://example.org/prices", {"mode": "embedding"}
    stated = {
        "text-embedding-x": {"litellm_provider": "openai", "input_cost_per_token": 4e-8, "source": page, **embeds},
        "voyage/v": {
            "litellm_provider": "voyage", "input_cost_per_token": 2e-7, "input_cost_per_token_batches": 5e-8, **embeds,
        },
        "gpt": {"litellm_provider": "openai", "input_cost_per_token": 1e-7, "mode": "chat"},
        "voyage/free": {"litellm_provider": "voyage", **embeds},
        "mistral/m": {"litellm_provider": "mistral", "input_cost_per_token": 1e-7, "max_input_tokens": 8, **embeds},
        "embed-wrong": {"litellm_provider": "cohere", "input_cost_per_token": 1e-4, **embeds},
        "us.cohere.e": {"litellm_provider": "bedrock", "input_cost_per_token": 1e-7, **embeds},
    }  # fmt: skip
    with ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("litellm/model_prices_and_context_window_backup.json", json.dumps(stated))
        wheel.writestr(
            "x.dist-info/sboms/a.cyclonedx.json", json.dumps({"metadata": {"timestamp": "2026-03-04T05:06Z"}})
        )
    with ZipFile(tmp_path / "w.whl") as wheel:
        for file in wheel.infolist():
            file.date_time = (1980, 1, 1, 0, 0, 0)
        rows = {row["model"]: row for row in rows_of(wheel, "litellm 1")}
    assert list(rows) == ["text-embedding-x", "v", "m"]
    assert [row["dollars_per_million_tokens"] for row in rows.values()] == ["0.04", "0.2", "0.1"]
    assert [row["batch_discount"] for row in rows.values()] == ["", "0.75", ""]
    assert [row["source"] for row in rows.values()] == [page, "litellm 1", "litellm 1"]
    assert {row["date"] for row in rows.values()} == {"2026-03-04"}
    assert "embed-wrong" in capsys.readouterr().out
