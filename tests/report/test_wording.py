"""Numbers and sentences against hand-made cases."""

import math
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.display import Difference
from ray_backfill.report.reading import read_results
from ray_backfill.report.results import Results
from ray_backfill.report.wording import (
    GLOSSARY,
    amount,
    glossary,
    percent,
    percent_sign,
    runner_up,
    safety,
    tick,
    verdict,
)
from tests.report.folder import METHODS, many_methods, write_results


def results_of(folder: Path, *names: str, **changed: tuple[Any, ...]) -> Results:
    """The hand-made results with only some methods, or with replaced ones."""
    chosen = {n: v for n, v in (METHODS | changed).items() if not names or n in names or n in changed}
    return read_results(write_results(folder, methods=chosen))


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.605, "60.5"),
        (1.095, "109.5"),
        (0.0, "0.0"),
        (-0.0001, "0.0"),
        (-0.021, "−2.1"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
    assert percent_sign(share) == (text if text == "–" else f"{text} %")


def test_tick() -> None:
    assert [tick(flag) for flag in (True, False, None)] == ["✓", "✗", "–"]


def test_verdict_names_the_best_method(tmp_path: Path) -> None:
    assert verdict(results_of(tmp_path)) == (
        "Full RM reaches 115 % of the upgrade’s gain during the backfill and never falls; "
        "mAP starts at 40.0 % (old service: 30.0 %) and ends at 62.0 % (finished upgrade: 50.0 %)."
    )


def test_verdict_tells_of_falls(tmp_path: Path) -> None:
    assert verdict(results_of(tmp_path, "old", "new", "rm_naive")) == (
        "RM naive reaches 20 % of the upgrade’s gain during the backfill and falls at times, by at most 2.0 points "
        "from one moment to the next; mAP starts at 30.0 % (old service: 30.0 %) and ends at 50.0 % "
        "(finished upgrade: 50.0 %)."
    )


def test_verdict_names_the_order_where_there_are_several(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, orders=("random", "score")))
    assert verdict(results).startswith("Full RM (random order) reaches 115 % of")


def test_verdict_when_nothing_beats_the_old_service(tmp_path: Path) -> None:
    bad = ("bad", (0.1, 0.2, 0.5), 0.25, 0.27, -0.25, True, 0.0, False, True, 0.1)
    assert verdict(results_of(tmp_path, "old", "new", bad=bad)) == (
        "No method beats the old service while the backfill runs: the best, bad, has 25.0 % mAP on average against "
        "30.0 %; finish the backfill before you switch over."
    )


def test_verdict_when_the_new_model_is_no_better(tmp_path: Path) -> None:
    new = ("new", (0.3, 0.3, 0.3), 0.30, 0.30, math.nan, True, 0.0, True, True, math.nan)
    naive = ("RM naive", (0.3, 0.3, 0.3), 0.30, 0.30, math.nan, True, 0.0, True, True, math.nan)
    text = verdict(results_of(tmp_path, "old", new=new, rm_naive=naive))
    assert text.startswith("The new model is no better than the old one (30.0 % mAP against 30.0 %)")


def test_verdict_without_methods_or_references(tmp_path: Path) -> None:
    assert verdict(results_of(tmp_path, "old", "new")).startswith("Only old and new were compared")
    alone = verdict(results_of(tmp_path, "rm"))
    assert alone.endswith("mAP starts at 40.0 % and ends at 62.0 %.")


def test_runner_up_and_safety(tmp_path: Path) -> None:
    results = results_of(tmp_path)
    lead = "; 18.0 points behind (95 % interval 16.0 to 20.0)"
    assert runner_up(results) == f"Next best: BCT, AUC 35.0 %, 25 % of the gain{lead}."
    assert safety(results) == "All three safety conditions hold for full RM."
    assert runner_up(results_of(tmp_path, "old", "new", "rm")) == ""
    assert safety(results_of(tmp_path, "old", "bct")) == "No method meets all three safety conditions."
    both = read_results(write_results(tmp_path, orders=("score", "random")))
    assert safety(both) == "All three safety conditions hold for full RM (score order); full RM (random order)."


def test_what_an_interval_says_about_the_better_one(tmp_path: Path) -> None:
    assert Difference(0.02, 0.01, 0.03).verdict == "better"
    assert Difference(-0.02, -0.03, -0.01).verdict == "worse"
    assert Difference(0.02, -0.01, 0.05).verdict == "not distinguishable"
    close = dict(METHODS) | {"bct": (METHODS["bct"][0], METHODS["bct"][1], 0.52, *METHODS["bct"][3:])}
    assert runner_up(read_results(write_results(tmp_path, close))).endswith(
        "; 1.0 points behind (95 % interval \u22121.0 to 3.0), so these queries do not distinguish the two."
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (132_900, "132.9 k"), (1.8e9, "1.8 G"), (3e15, "3.0 P"), (math.nan, "–")],
)
def test_amount(number: float, text: str) -> None:
    assert amount(number) == text


def test_the_safety_of_many_is_counted(tmp_path: Path) -> None:
    safe = read_results(write_results(tmp_path, many_methods(30), ("a", "b")))
    assert safety(safe) == (
        "All three safety conditions hold for 31 of 33 methods, each in its best order: "
        "full RM, method 0, method 1, method 2, method 3, method 4 and 25 more."
    )
    unsafe = {m: (*v[:5], False, *v[6:]) for m, v in many_methods(30).items()}
    none = read_results(write_results(tmp_path, unsafe))
    assert safety(none) == "None of 33 methods meets all three safety conditions."


def test_the_verdict_on_oracle_orders_and_on_offline_names_no_order(tmp_path: Path) -> None:
    only = read_results(write_results(tmp_path, orders=("oracle_loss",)))
    assert verdict(only).startswith("Only oracle orders were run")
    offline = ("offline", (0.3, 0.3, 0.5), 0.6, 0.4, 1.5, True, 0.0, True, True, 0.0)
    best = read_results(write_results(tmp_path, METHODS | {"offline": offline}, ("oracle_loss", "a")))
    assert verdict(best).startswith("Offline reaches 150 %")


def test_the_glossary_has_the_words_of_this_run(tmp_path: Path) -> None:
    plain = read_results(write_results(tmp_path))
    assert glossary(plain) == GLOSSARY
    own = {name: (name, *METHODS["rm"][1:]) for name in ("ridge_query", "fastfill")}
    rich = read_results(write_results(tmp_path, METHODS | own, ("sigma", "random"), merges=("raw", "csls")))
    assert list(glossary(rich)) == [*GLOSSARY, *(f"word of {name}" for name in ("csls", *own, "sigma"))]
