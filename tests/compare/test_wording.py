"""Numbers in words, and the glossary."""

import math
from pathlib import Path

import pytest

from ray_backfill.compare.report import read_results
from ray_backfill.compare.selection import GLOSSARY, glossary, of_metrics
from ray_backfill.page.numbers import amount, listed, percent, percent_sign, tick
from tests.compare.report.folder import METHODS, write_results

NAN = math.nan


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.605, "60.5"),
        (1.095, "109.5"),
        (0.0, "0.0"),
        (-0.0001, "0.0"),
        (-0.021, "−2.1"),
        (NAN, "–"),
        (math.inf, "–"),
    ],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
    assert percent_sign(share) == (text if text == "–" else f"{text} %")


def test_tick() -> None:
    assert [tick(verdict) for verdict in ("yes", "no", "undecided")] == ["✓", "✗", "?"]


def test_names_with_commas_are_separated_by_semicolons() -> None:
    assert listed(["a"], "and") == "a"
    assert listed(["a", "b", "c"], "and") == "a, b and c"
    assert listed(["Procrustes, query", "FCT", "rm"], "or") == "Procrustes, query; FCT or rm"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (132_900, "132.9 k"), (1.8e9, "1.8 G"), (3e15, "3.0 P"), (NAN, "–")],
)
def test_amount(number: float, text: str) -> None:
    assert amount(number) == text


def test_the_glossary_has_the_words_of_this_run(tmp_path: Path) -> None:
    plain = read_results(write_results(tmp_path))
    assert glossary(plain) == GLOSSARY | of_metrics(plain.metrics)
    own = {name: (name, *METHODS["rm"][1:]) for name in ("ridge_query", "fastfill")}
    rich = read_results(write_results(tmp_path, METHODS | own, ("sigma", "random"), merges=("raw", "csls")))
    of_names = (f"word of {name}" for name in ("csls", *own, "sigma"))
    assert list(glossary(rich)) == [*GLOSSARY, *of_metrics(rich.metrics), *of_names]
