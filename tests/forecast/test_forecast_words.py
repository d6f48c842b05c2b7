"""The sentences of a forecast, from hand-made rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core.outcome import Decision
from ray_backfill.forecast.report import (
    ForecastResults,
    cells,
    charts_of,
    decide,
    findings,
    heading,
    next_command,
    render,
    warnings,
)
from ray_backfill.forecast.tables import CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow

NAN = float("nan")


def row(method: str, auc: float, **changes: Any) -> ForecastRow:
    made = ForecastRow(
        method, "random", method.upper(), "raw", "mAP", 0.2, 0.5, 0.48, 0.52, auc, auc - 0.02, auc + 0.01, 0.4, 0.3,
        0.5, 0.0, -0.001, 0.001, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.3, 0.2, 1234.0,
    )  # fmt: skip
    return replace(made, **changes)


def results(*rows: ForecastRow, **facts: Any) -> ForecastResults:
    """Method "a" differs from "b", and not from "c"."""
    manifest = {
        "evaluation": {"metrics": ["mAP"], "margin": 0.005}, "items": 1000, "known": 100, "queries": 80, "chosen": 70,
        "lists": 60, "old": {"mAP": 0.2}, "new": {"mAP": [0.5, 0.48, 0.52]}, "command": "",
    } | facts  # fmt: skip
    differences = [
        ForecastDifference("b", "a", "random", "mAP", -0.1, -0.15, -0.05),
        ForecastDifference("a", "c", "random", "mAP", 0.02, -0.01, 0.05),
        ForecastDifference("b", "c", "random", "mAP", -0.08, -0.1, -0.06),
    ]
    points = [
        ForecastPoint(each.method, "random", "mAP", t, value, value - 0.02 * t, value + 0.02 * t)
        for each in rows for t, value in ((0.0, each.start), (1.0, each.end))
    ]  # fmt: skip
    known = {each.method for each in rows}
    kept = [each for each in differences if {each.method, each.other_method} <= known]
    return ForecastResults(manifest, points, rows, kept, [])


A, B, C = row("a", 0.4), row("b", 0.3), row("c", 0.38)
GO = "Go ahead: by mAP the new model is better."
ENDS = "mAP: the old service has 20.0 %, the new model alone 50.0 % (from 48.0 to 52.0)."


@pytest.mark.parametrize(
    ("rows", "lead"),
    [
        ((A,), []),
        ((B, A), ["A has the highest mAP on average; the sample shows that it is better than every other method."]),
        ((B, A, C), ["A has the highest mAP on average; the sample does not show that it is better than C."]),
    ],
)
def test_the_best_method_is_named_with_what_it_is_not_told_from(rows: tuple[ForecastRow, ...], lead: list[str]) -> None:
    assert findings(results(*rows)) == [GO, *lead, ENDS]


def test_the_old_service_is_named_where_no_method_is_better() -> None:
    said = findings(results(A, B, with_csls={"old": {"mAP": 0.45}, "new": {"mAP": [0.55, 0.5, 0.6]}}))
    assert said[1] == (
        "A has the highest mAP on average among the methods (40.0 %), but the old service with CSLS has more (45.0 %): "
        "switch all at once at the end."
    )
    assert said[-1] == f"{ENDS[:-1]}; with CSLS, 45.0 % and 55.0 %."
    _, alone, _ = findings(results(A, old={"mAP": 0.42}))
    assert alone.endswith("but the old service has more (42.0 %): switch all at once at the end."), "also of one method"
    for old in (0.39, 0.4):
        _, undecided, _ = findings(results(A, old={"mAP": old}))
        assert undecided.endswith(f"does not show that it is better than the old service ({100 * old:.1f} %).")


@pytest.mark.parametrize(
    ("new", "with_csls"),
    [([0.5, 0.48, 0.52], None), ([0.7, 0.68, 0.72], {"old": {"mAP": 0.65}, "new": {"mAP": [0.64, 0.62, 0.66]}})],
)
def test_nobody_switches_to_a_model_that_is_not_better(new: list[float], with_csls: dict[str, Any] | None) -> None:
    said = findings(results(A, B, old={"mAP": 0.6}, new={"mAP": new}, with_csls=with_csls))
    assert "has more" in said[1]
    assert "switch" not in " ".join(said)


def test_a_chart_has_old_and_new_with_csls_where_a_method_has_it() -> None:
    (plain,) = charts_of(results(A))
    (chart,) = charts_of(results(A, with_csls={"old": {"mAP": 0.45}, "new": {"mAP": [0.55, 0.5, 0.6]}}))
    assert [each.title for each in plain.curves] == ["new model alone", "old service", "A"]
    lines = {each.title: each.y[0] for each in chart.curves}
    alone = [lines[name] for name in ("old service", "old service + csls", "new model alone + csls")]
    assert alone == pytest.approx([20, 45, 55])
    assert len({each.style for each in chart.curves}) == len(chart.curves)


def test_metrics_that_disagree_come_first() -> None:
    both: dict[str, Any] = {"evaluation": {"metrics": ["mAP", "nDCG@100"], "margin": 0.005}}
    old = {"mAP": 0.2, "nDCG@100": 0.4}
    worse = results(A, **both, old=old, new={"mAP": [0.5, 0.48, 0.52], "nDCG@100": [0.3, 0.28, 0.32]})
    assert findings(worse)[0] == "Undecided: by mAP the new model is better, but by nDCG@100 it is worse."
    assert decide(worse) is Decision.OPEN
    for end in ([0.39, 0.37, 0.41], [0.5, 0.48, 0.52]):  # not decided, and better as well
        assert findings(results(A, **both, old=old, new={"mAP": [0.5, 0.48, 0.52], "nDCG@100": end}))[0] == GO


def test_first_results_of_the_sample_can_contradict() -> None:
    """mAP@100 once said "do not upgrade" where nDCG@10 said "merge online"."""
    first = {"metric": "nDCG@10", "items": 90, "queries": 40, "old": 0.6, "new": 0.7, "more": [0.1, 0.05, 0.15]}
    worse = results(A, new={"mAP": [0.15, 0.1, 0.19]}, first_results=first)
    said = findings(worse)
    assert said[0] == "Undecided: by mAP the new model is worse, but by the sample's nDCG@10 it is better."
    assert decide(worse) is Decision.OPEN
    assert "Among the 90 items drawn at random, nDCG@10 of 40 queries is 60.0 % by the old model and 70.0 %" in said[-1]
    assert decide(results(A, new={"mAP": [0.15, 0.1, 0.19]})) is Decision.STOP
    unclear = first | {"more": [0.1, -0.05, 0.15]}
    assert decide(results(A, new={"mAP": [0.15, 0.1, 0.19]}, first_results=unclear)) is Decision.STOP
    assert findings(results(A, first_results=first))[0] == GO, "both agree"


@pytest.mark.parametrize(
    ("command", "following"),
    [
        ("ray-backfill forecast mine --new new.parquet", "ray-backfill sample mine --add 1234"),
        ("ray-backfill forecast --data mine --sample s.parquet", "ray-backfill sample mine --add 1234 --out s.parquet"),
        (
            "ray-backfill forecast --old hf:a --new hf:b --texts t.csv --budget 2% --out run",
            "ray-backfill forecast --old hf:a --new hf:b --texts t.csv --out run --budget 1334",
        ),
        ("rb.forecast('mine', ...)", "rb.sample('mine', add=1234)"),
    ],
)
def test_the_command_that_halves_the_interval_can_be_typed(command: str, following: str) -> None:
    assert next_command(results(A, command=command)) == following
    assert next_command(results(row("a", 0.4, to_halve=NAN), command=command)) == ""


def test_a_plan_is_the_next_step_unless_the_new_model_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    results(A).show(Path("shop/forecast"))
    assert "plan shop --fleet fleet.yaml" in capsys.readouterr().out
    results(A, new={"mAP": [0.15, 0.1, 0.19]}).show(Path("shop/forecast"))
    assert "--fleet" not in capsys.readouterr().out


def test_what_is_exact_needs_no_sample() -> None:
    found = results(A, B, known=1000, new={"mAP": [0.5, 0.5, 0.5]})
    assert heading(found) == "Exact, from all 1,000 new embeddings, judged by 80 queries"
    assert findings(found)[1] == "A has the highest mAP on average."
    assert warnings(results(A, known=1000, lists=3)) == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([0.15, 0.1, 0.19], "Do not upgrade: by mAP the new model is worse."),
        ([0.25, 0.19, 0.3], "Undecided: by mAP the new model is not distinguishable from the old one."),
    ],
)
def test_an_upgrade_that_is_not_better_is_findings(limits: list[float], words: str) -> None:
    assert findings(results(A, new={"mAP": limits}))[0] == words


def doubts(found: ForecastResults) -> list[str]:
    """The warnings, without the one of every metric that has no cut."""
    return [sentence for sentence in warnings(found) if "counts all right answers" not in sentence]


def test_a_metric_without_a_cut_is_doubtful() -> None:
    assert "mAP counts all right answers" in warnings(results(A))[0]


def test_doubts_are_findings() -> None:
    assert doubts(results(A, B, C)) == []
    assert "only 50 different lists of right answers" in doubts(results(A, lists=50))[0]
    assert doubts(results(A, lists=51)) == []
    assert "recall@100 is above 90 %" in doubts(results(row("a", 0.9, metric="recall@100", end=0.91)))[0]
    low = row("b", 0.3, start=0.19, end_vs_new=-0.02, end_vs_new_low=-0.03, end_vs_new_high=-0.01)
    assert doubts(results(A, low)) == [
        "Start below the old service (20.0 %): B (19.0 %).",
        "End below the new model alone, with the same merge: B (by 2.0 ± 1.0 points).",
    ]
    within = row("b", 0.3, start=0.196, end_vs_new=-0.02, end_vs_new_low=-0.04, end_vs_new_high=0.0)
    assert doubts(results(A, within)) == [], "inside the margin, and an interval that reaches 0"
    lines = [CalibrationRow("a", 0.1, 1.0, 50, 0.5, 0.7, ratio) for ratio in (1.24, 1.26)]
    assert [len(doubts(replace(results(A), calibration=[line]))) for line in lines] == [0, 1]


def test_a_row_in_words() -> None:
    assert heading(results(A)) == "Forecast from 100 of 1,000 new embeddings (10.0 %), judged by 70 of 80 queries"
    assert cells(A) == ["A", "random", "40.0 ± 2.0", "40.0 % ± 10.0", "20.0", "50.0 ± 2.0", "0.0", "1,234"]
    doubtful = row("a", 0.4, gain=NAN, largest_fall_high=0.011, to_halve=NAN)
    assert cells(doubtful)[3:] == ["–", "20.0", "50.0 ± 2.0", "at most 1.1", "–"]
    assert cells(row("a", 0.4, largest_fall_low=0.002, largest_fall_high=0.011))[6] == "0.2 to 1.1"


def test_the_page_shows_the_band_of_the_new_model_and_each_pair_once() -> None:
    (chart,) = charts_of(results(A, B, C))
    new = next(each for each in chart.curves if each.key == "new")
    assert new.interval is not None
    assert (float(new.interval.low[0]), float(new.interval.high[0])) == (48.0, 52.0)
    page = render(results(A, B, C))
    assert "5.0 to 15.0" in page
    assert "-1.0 to 5.0" in page.replace("−", "-")
    assert "Which differences are certain?" not in render(results(A))
    assert "the precision (share of right items) at the rank of every right" in page, "its metrics are explained"
