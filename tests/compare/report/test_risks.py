"""What a method costs users stands in the first sentence or in a warning: starts, ends, falls, lost first results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.compare.report import Results, read_results
from ray_backfill.compare.report.answers import answer, fall_cell, warnings
from ray_backfill.compare.report.html import render
from ray_backfill.compare.report.verdict import Situation, basis, conditions, decide, find_situation, in_two, verdict
from ray_backfill.compare.results import Line
from ray_backfill.compare.tables import NEGATIVE_FLIPS_VS_OLD, NEW
from ray_backfill.core.outcome import Decision
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.page import Difference
from tests.compare.report.folder import METHODS, write_results

NAN = float("nan")
# Half of the upgrade's improvement, and nothing wrong.
GOOD = ("FCT", (0.32, 0.42, 0.5), 0.40, 0.4, 0.5, YES, 0.0, YES, YES, 0.0)


def results_of(folder: Path, **changed: Any) -> Results:
    """Old, new and FCT. fct: its numbers. changed: columns of its rows; with the name of a metric, of that row."""
    methods = {"old": METHODS["old"], "new": METHODS["new"], "fct": changed.pop("fct", GOOD)}
    found = read_results(write_results(folder, methods=methods))
    own = {name: value for name, value in changed.items() if not isinstance(value, dict)}
    rows = tuple(
        replace(row, **own | changed.get(row.metric, {})) if row.method == "fct" else row for row in found.rows
    )
    return replace(found, rows=rows)


def losing(found: Results, first_day: float, worst: float, finished: float) -> Results:
    """These shares of queries lose a right first result of the old service."""

    def line(*values: float) -> Line:
        return Line(np.array((0.0, 0.5, 1.0)), np.array(values), np.full(3, NAN), np.full(3, NAN))

    variant = found.variants[0]
    lines = {
        ("fct", variant, NEGATIVE_FLIPS_VS_OLD): line(first_day, worst, finished),
        (NEW, variant, NEGATIVE_FLIPS_VS_OLD): line(finished, finished, finished),
    }
    rows = tuple(replace(r, negative_flips_vs_old_max=worst) if r.method == "fct" else r for r in found.rows)
    return replace(found, lines=found.lines | lines, rows=rows)


@pytest.mark.parametrize(
    ("shares", "trade"),
    [
        (
            (0.095, 0.097, 0.026),
            ", but 9.5 % of queries lose their right first result on the first day (finished upgrade: 2.6 %).",
        ),
        (
            (0.0, 0.082, 0.05),
            ", but 8.2 % of queries lose their right first result on the way (finished upgrade: 5.0 %).",
        ),
        ((0.05, 0.052, 0.05), "(95 % interval 40 to 60)."),  # no more than the finished upgrade and the margin
    ],
)
def test_the_first_sentence_names_what_users_lose(tmp_path: Path, shares: tuple[float, ...], trade: str) -> None:
    found = losing(results_of(tmp_path), *shares)
    assert in_two(verdict(found))[0].endswith(trade)
    assert f"{100 * shares[0]:.1f} % of queries lose their right first result on the first day" in answer(found).when[0]
    assert "is it safe" not in render(found)


def test_when_says_from_when_on_no_more_are_lost_than_with_the_finished_upgrade(tmp_path: Path) -> None:
    found = losing(results_of(tmp_path, flips_as_new_at=0.62), 0.095, 0.097, 0.026)
    assert answer(found).when[0] == (
        "On average it is as good as the old service by mAP and CMC@1 from the start. 9.5 % of queries lose their "
        "right first result on the first day; from 62 % of the backfill on no more do than with the finished upgrade "
        "(2.6 %)."
    )


def test_a_start_below_the_old_service_by_another_metric_than_the_first_is_said(tmp_path: Path) -> None:
    loss = {"starts_at_old": NO, "start_vs_old": -0.05, "start_vs_old_low": -0.06, "start_vs_old_high": -0.04}
    found = losing(results_of(tmp_path, **{"CMC@1": loss | {"passes_old_at": 0.3}}), 0.27, 0.27, 0.26)
    assert in_two(verdict(found))[0].endswith(
        ", but CMC@1 starts below the old service and 27.0 % of queries lose their right first result on the "
        "first day (finished upgrade: 26.0 %)."
    )
    assert warnings(found)[0] == (
        "FCT starts below the old service, by 5.0 points of CMC@1 (95 % interval 4.0 to 6.0)."
    )
    assert (
        answer(found)
        .when[0]
        .startswith("On average it is as good as the old service by mAP and CMC@1 from 30 % of the backfill on.")
    )


def test_a_merge_that_costs_the_finished_upgrade_is_a_warning(tmp_path: Path) -> None:
    cost = {"ends_at_new": NO, "end_vs_new": -0.012, "end_vs_new_low": -0.017, "end_vs_new_high": -0.006, "end": 0.488}
    found = results_of(tmp_path, mAP=cost, merge="csls")
    found = replace(found, at_once={}, differences=found.differences)
    row = found.best()
    assert row is not None
    assert conditions(replace(found), row)[1] == NO
    assert warnings(found)[0] == (
        "FCT costs the finished upgrade 1.2 points of mAP (95 % interval 0.6 to 1.7), as long as its merge stays in "
        "use: use none when the backfill is complete."
    )
    assert warnings(results_of(tmp_path / "raw", mAP=cost))[0].endswith("(95 % interval 0.6 to 1.7), for ever.")


def test_of_a_curve_that_falls_it_is_said_that_the_backfill_makes_it_worse(tmp_path: Path) -> None:
    """As good as the finished upgrade from the first day, and worse at the end than at the start."""
    fct = ("FCT", (0.764, 0.74, 0.712), 0.74, 0.74, 2.2, NO, 0.052, YES, YES, 0.0)
    more = {"largest_fall_low": 0.04, "largest_fall_high": 0.064, "fall_end": 1.0, "passes_new_at": 0.0}
    found = results_of(tmp_path, fct=fct, **more)
    told = " ".join((verdict(found), *warnings(found), *answer(found).which, *answer(found).risk))
    assert "as good as the finished upgrade or better" not in told
    assert "The backfill makes it worse: mAP goes from 76.4 % to 71.2 % (old service 30.0 %" in verdict(found)
    assert warnings(found)[0].startswith("With FCT, mAP falls by up to 5.2 points between 0 and 100 % of the backfill")


def test_every_cross_of_the_advised_row_is_a_sentence(tmp_path: Path) -> None:
    for number in range(8):
        marks = [(NO, YES)[number >> bit & 1] for bit in range(3)]
        names = dict(zip(("starts_at_old", "ends_at_new", "never_falls"), marks, strict=True))
        found = results_of(tmp_path / str(number), **{"CMC@1": names})
        said = [each for each in warnings(found) if each.startswith(("FCT", "With FCT"))]
        assert len(said) == marks.count(NO)


@pytest.mark.parametrize(
    ("changed", "lead", "words"),
    [
        (
            {"gain": 0.21, "gain_low": -0.16, "gain_high": 0.42},
            (0.02, 0.01, 0.03),
            "gains 21 % of the upgrade’s improvement (95 % interval −16 to 42).",
        ),
        ({}, (0.02, -0.001, 0.041), "gains 2.0 points of mAP (95 % interval −0.1 to 4.1)."),
    ],
)
def test_what_may_gain_nothing_is_undecided(
    tmp_path: Path, changed: dict[str, float], lead: tuple[float, float, float], words: str
) -> None:
    found = results_of(tmp_path, **changed)
    assert decide(found) is Decision.GO if not changed else True
    variant = found.variants[0]
    found = replace(found, at_once=found.at_once | {(("fct", variant), ("old", variant), "mAP"): Difference(*lead)})
    assert find_situation(found) is Situation.NOT_SHOWN
    assert verdict(found).startswith(
        "Undecided: build the new index beside the old one and switch when it is complete, because these queries do "
    )
    assert verdict(found).endswith(words)
    assert decide(found) is Decision.OPEN
    assert decide(found).code == 10


def test_a_fall_that_is_not_decided_says_what_was_measured(tmp_path: Path) -> None:
    own = {"never_falls": UNDECIDED, "largest_fall": 0.003, "largest_fall_high": 0.011}
    found = results_of(tmp_path, **own)
    best = found.best()
    assert best is not None
    assert fall_cell(found, best, UNDECIDED) == ("0.3, at most 1.1", "")
    other = results_of(tmp_path, **{"CMC@1": own | {"largest_fall_high": 0.062}})
    row = other.best()
    assert row is not None
    assert fall_cell(other, row, conditions(other, row)[2]) == ("0.0, CMC@1 ≤ 6.2", "")
    assert fall_cell(other, row, YES) == ("0.0", YES)
    assert "0.3, at most 1.1" in render(found)


def test_milestones_have_intervals_on_the_page_and_in_the_answers(tmp_path: Path) -> None:
    steps = {"passes_old_at": 0.46, "passes_old_at_low": 0.31, "passes_old_at_high": 0.69, "half_gain_at": 0.5}
    found = results_of(tmp_path, **steps, half_gain_at_low=0.2, half_gain_at_high=float("inf"))
    assert (
        "mAP: as good as the old service from 46 % of the backfill on (95 % interval 31 % to 69 %), half the "
        "improvement from 50 % of the backfill on (95 % interval 20 % to never), as good as the new model only at the "
        "end."
    ) in answer(found).when
    page = render(found).replace("\u00a0", " ")
    assert "46 % (31 % to 69 %)" in page
    assert "50 % (20 % to never)" in page


def test_a_verdict_is_one_sentence_and_two_facts(tmp_path: Path) -> None:
    loss = {"starts_at_old": NO, "start_vs_old": -0.05, "start_vs_old_low": -0.06, "start_vs_old_high": -0.04}
    for name, found in {
        "good": results_of(tmp_path / "good"),
        "loses": losing(results_of(tmp_path / "loses"), 0.095, 0.097, 0.026),
        "below": losing(results_of(tmp_path / "below", **{"CMC@1": loss}), 0.27, 0.27, 0.026),
    }.items():
        first, others = in_two(verdict(found))
        words = [len(each.replace(" %", "%").split()) for each in (first, others)]
        assert words[0] <= (43 if name == "below" else 40), name
        assert sum(words) <= 70, name
        assert len(basis(found).replace(" %", "%").split()) <= 22
        assert others.count(". ") <= 1
