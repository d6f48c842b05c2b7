"""A method that did not learn is marked wherever it is shown, and no sentence recommends it."""

from pathlib import Path

import pytest

from ray_backfill.compare.analyses.checks import CheckRow
from ray_backfill.compare.report import Results, html, print_table, read_results
from ray_backfill.compare.report.answers import answer, good_to_know, runner_up, warnings
from ray_backfill.compare.report.verdict import Situation, find_situation, verdict
from ray_backfill.compare.results import DOUBLE_DAGGER
from ray_backfill.compare.selection import UNLEARNED_NOTE
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import NO, YES, frame, write_table
from tests.compare.report.folder import MANIFEST, METHODS, many_methods, printed, write_results

DATA = MANIFEST["data"] | {"validation_items": 120, "validation_from": "train.parquet, held out from every fit"}


def results_with(folder: Path, *marked: str, **methods: object) -> Results:
    """Hand-made results: full RM and BCT were checked, and these methods did not learn."""
    write_results(folder, METHODS | methods, data=DATA)  # type: ignore[arg-type]
    checked = {name: unlearned(name) for name in marked}
    learned = {name: CheckRow(name, "mAP", 120, 0.45, 0.4, 0.05, 0.01, 0.09, False) for name in ("rm", "bct")}
    write_table(folder / "checks.parquet", frame(CheckRow, [*(learned | checked).values()]))
    return read_results(folder)


def unlearned(name: str) -> CheckRow:
    return CheckRow(name, "mAP", 120, 0.3, 0.4, -0.1, -0.15, -0.05, is_worse=True)


def test_the_best_method_is_not_recommended_if_it_did_not_learn(tmp_path: Path) -> None:
    assert verdict(results_with(tmp_path)).startswith("Merge online with full RM: ")
    results = results_with(tmp_path, "rm")
    assert results.unlearned == {"rm"}
    assert [row.method for row in results.candidates("mAP")] == ["bct", "rm_naive"]
    assert verdict(results).startswith("Merge online with BCT: ")
    assert ", but mAP and CMC@1 start below the old service" in verdict(results)
    told = " ".join(sentence for sentences in vars(answer(results)).values() for sentence in sentences)
    assert "full RM" not in told
    assert "Full RM" not in told
    assert runner_up(results).startswith("Next best: RM naive")


def test_a_warning_names_the_methods(tmp_path: Path) -> None:
    assert not any("learn" in sentence for sentence in warnings(results_with(tmp_path)))
    assert any("Did not learn here: full RM, BCT. " in s for s in warnings(results_with(tmp_path, "rm", "bct")))
    # One that would not have been recommended anyway changes nothing.
    results = results_with(tmp_path, "rm_naive")
    assert not any("learn" in sentence for sentence in warnings(results))
    assert any(sentence.startswith("Did not learn here: RM naive. ") for sentence in good_to_know(results))


def test_if_nothing_learned_nothing_is_recommended(tmp_path: Path) -> None:
    write_results(tmp_path, {name: METHODS[name] for name in ("old", "new", "rm")}, data=DATA)
    write_table(tmp_path / "checks.parquet", frame(CheckRow, [unlearned("rm")]))
    results = read_results(tmp_path)
    assert find_situation(results) is Situation.UNLEARNED
    assert verdict(results) == "No method learned anything here, so nothing is recommended."
    with pytest.raises(InputError, match="have no row for"):
        results.crossings()


def test_tables_mark_it_and_say_why(tmp_path: Path) -> None:
    results = results_with(tmp_path, "rm")
    text = printed(lambda console: print_table(tmp_path, console))
    assert f"full RM {DOUBLE_DAGGER}" in text
    assert f"BCT {DOUBLE_DAGGER}" not in text
    assert "Did not learn here: full RM." in text
    page = html.render(results)
    assert page.count(f"full RM {DOUBLE_DAGGER}") >= 2, "in each metric's table"
    assert f"BCT {DOUBLE_DAGGER}" not in page
    assert UNLEARNED_NOTE in page.replace("&#39;", "'")
    assert "did not learn here</td>" in page
    assert "120" in page
    assert UNLEARNED_NOTE not in html.render(results_with(tmp_path))


def test_what_was_not_checked_is_said_once(tmp_path: Path) -> None:
    write_results(tmp_path, data=MANIFEST["data"] | {"not_checked": "train.parquet has no labels"})
    text = printed(lambda console: print_table(tmp_path, console))
    assert text.count("fitted methods were not checked: train.parquet has no labels") == 1
    assert "Fitted methods were not checked: train.parquet has no labels." in html.render(read_results(tmp_path))


def test_no_stretch_is_given_to_a_method_that_did_not_learn(tmp_path: Path) -> None:
    early = {"early": ("early", (0.45, 0.46, 0.47), 0.46, 0.46, 0.8, YES, 0.0, YES, NO, 0.0)}
    write_results(tmp_path, many_methods(0) | early, data=DATA)
    assert any("early serves better" in sentence for sentence in answer(read_results(tmp_path)).which)
    write_table(tmp_path / "checks.parquet", frame(CheckRow, [unlearned("early")]))
    assert not any("early" in sentence for sentence in answer(read_results(tmp_path)).which)
