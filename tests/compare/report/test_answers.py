"""Verdicts and answers against hand-made cases."""

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.compare.report import Results, read_results
from ray_backfill.compare.report.answers import answer, fall_in_words, runner_up, warnings
from ray_backfill.compare.report.html import render
from ray_backfill.compare.report.terminal import draw_table
from ray_backfill.compare.report.verdict import Situation, conditions, decide, find_situation, verdict
from ray_backfill.compare.results import Line, Row
from ray_backfill.compare.selection import crossings, find_row
from ray_backfill.compare.tables import NEGATIVE_FLIPS_VS_OLD, POSITIVE_FLIPS_VS_OLD
from ray_backfill.core.outcome import Decision
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.learn.methods import CONTROLS
from ray_backfill.page import Difference
from tests.compare.report.folder import METHODS, T, manifest_of, printed, write_costs, write_results

NAN = math.nan
# A method that is worse than the old service.
BAD = ("bad", (0.1, 0.2, 0.5), 0.25, 0.27, -0.25, YES, 0.0, NO, YES, 0.1)


def results_of(folder: Path, *names: str, **changed: tuple[Any, ...]) -> Results:
    """The hand-made results with only some methods, or with replaced ones."""
    chosen = {n: v for n, v in (METHODS | changed).items() if not names or n in names or n in changed}
    return read_results(write_results(folder, methods=chosen))


def row_of(results: Results, method: str, **changed: Any) -> Row:
    """The method's row in the primary metric, with other numbers."""
    return replace(next(r for r in results.rows if r.method == method and r.metric == results.primary), **changed)


def flat(title: str, value: float) -> tuple[Any, ...]:
    """A method with the same quality at all moments."""
    return (title, (value,) * 3, value, value, NAN, YES, 0.0, YES, YES, 0.0)


def test_verdict_names_the_best_method(tmp_path: Path) -> None:
    results = results_of(tmp_path)
    assert find_situation(results) is Situation.UPGRADE
    assert verdict(results).startswith("Merge online with full RM: users get 23.0 points more mAP than the old service")
    assert "interval 21.0 to 25.0; the finished upgrade: 20.0). mAP goes from 40.0 % to 62.0 % (" in verdict(results)
    bct = ("BCT", (0.25, 0.45, 0.5), 0.40, 0.4, 0.5, YES, 0.0, YES, YES, 0.0)
    share = verdict(results_of(tmp_path / "share", "old", "new", bct=bct))
    assert share.startswith("Merge online with BCT: users get 50 % of the upgrade’s improvement")
    assert share.endswith("40 to 60). mAP goes from 25.0 % to 50.0 % (old service 30.0 %, new model alone 50.0 %).")


def with_rho(folder: Path, head_alone: float, **of_rm: Any) -> Results:
    """Full RM, trained with labels, beside the new model with its head alone."""
    results_of(folder, "old", "new", "bct", "rm", rho_alone=flat("{rho, rho}, rho alone", head_alone))
    with manifest_of(folder) as facts:
        facts["traits"]["methods"]["rm"] |= {"learns_new": True, "needs_labels": True}
        facts["traits"]["methods"]["rho_alone"] |= {"is_reference": True, "family": CONTROLS}
    results = read_results(folder)
    return replace(results, rows=tuple(replace(row, **of_rm) if row.method == "rm" else row for row in results.rows))


def test_what_a_head_adds_is_not_told_as_the_upgrade(tmp_path: Path) -> None:
    found = with_rho(tmp_path / "above", 0.604, passes_new_at=0.0)
    said = verdict(found)
    assert "115 %" not in " ".join((said, runner_up(found), *answer(found).which))
    assert said.startswith("Merge online with full RM: users get 23.0 points more mAP than the old service")
    named = "Its head alone (rho_alone, a comparison: no way to backfill) gives the finished upgrade 60.4 %."
    assert said.endswith(named)
    assert "before the end: 76 % of the way from the old service to it" in answer(found).which[1]
    below = {"gain": 0.8, "auc": 0.46}  # the upgrade is worth 20 points, the head 21
    assert "0 % of the upgrade’s" not in verdict(with_rho(tmp_path / "small", 0.71, **below))
    share = verdict(with_rho(tmp_path / "large", 0.604, **below))
    assert share.startswith("Merge online with full RM: users get 80 % of the upgrade’s improvement")
    assert share.endswith(named)


def test_verdict_names_the_order_where_there_are_several(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, orders=("random", "score")))
    assert verdict(results).startswith("Merge online with full RM (random order): users get 23.0 points more mAP")


def test_verdict_when_nothing_beats_the_old_service(tmp_path: Path) -> None:
    results = results_of(tmp_path, "old", "new", bad=BAD)
    assert verdict(results).startswith("Switch when the new index is complete: no method serves better than the old")
    assert verdict(results).endswith("The best, bad, has 25.0 % mAP on average against 30.0 %.")
    assert answer(results).when == ()


def with_cascade(folder: Path, name: str, *others: str, **changed: tuple[Any, ...]) -> Results:
    """The hand-made results of some methods, one of which embeds 20 items for every query."""
    results_of(folder, *others, **changed)
    with manifest_of(folder) as facts:
        facts["traits"]["methods"][name]["recalls"] = 20
    return read_results(folder)


def test_cascades_are_not_recommended_but_told_of(tmp_path: Path) -> None:
    two = {"bad": BAD, "c": flat("cascade of 20", 0.45)}
    found = with_cascade(tmp_path / "both", "c", "old", "new", **two)
    assert verdict(found).startswith("Switch when the new index is complete: no method but cascades serves better")
    assert "The best of the others, bad, has 25.0 % mAP on average against 30.0 %. Cascade of 20 has" in verdict(found)
    priced = (
        "Cascade of 20 has 45.0 %, 15.0 points more than the old service; the upgrade is worth 20.0 points. Its price: "
    )
    assert priced in verdict(found)
    alone = with_cascade(tmp_path / "alone", "c", "old", "new", c=two["c"])
    assert find_situation(alone) is Situation.ONLY_CASCADES
    assert verdict(alone).startswith("Only cascades were compared")
    assert verdict(alone).endswith("cascade of 20, has 45.0 % mAP on average; the old service has 30.0 %.")
    weak = with_cascade(tmp_path / "weak", "c", "old", "new", bad=BAD, c=flat("cascade of 20", 0.29))
    assert "cascade" not in verdict(weak)
    harmful = with_cascade(tmp_path / "harmful", "c", "old", "rm_naive", new=flat("new", 0.2), c=two["c"])
    assert "switch before the end and embed no items for a query, RM naive loses least" in answer(harmful).which[1]
    assert "Bold: the highest average (without cascades)." in render(found)
    assert "Bold: the highest average. " in render(results_of(tmp_path / "none"))


def test_a_cascade_is_named_where_the_best_method_is_not_shown_to_beat_the_old_service(tmp_path: Path) -> None:
    found = with_cascade(tmp_path, "c", "old", "new", "rm_naive", c=flat("cascade of 20", 0.45))
    assert "cascade" not in verdict(found), "rank merge is shown to be better"
    best, old = row_of(found, "rm_naive"), row_of(found, "old")
    pair = (("rm_naive", best.variant), ("old", old.variant), "mAP")
    assert pair in found.differences
    open_ = replace(found, at_once=found.at_once | {pair: Difference(0.04, -0.01, 0.09)})
    assert verdict(open_).startswith("Undecided: build the new index beside the old one and switch when it is complete")
    assert "The best, RM naive, gains 4.0 points of mAP (95 % interval −1.0 to 9.0). Cascade of 20" in verdict(open_)


def as_controls(folder: Path, *names: str) -> Results:
    """These results, with some of their methods marked as controls."""
    with manifest_of(folder) as facts:
        for name in names:
            facts["traits"]["methods"][name]["family"] = CONTROLS
    return read_results(folder)


def test_a_control_is_never_recommended(tmp_path: Path) -> None:
    rho, towards = flat("{rho, rho}, rho alone", 0.6), flat("FCT towards rho alone", 0.59)
    results_of(tmp_path / "both", rho_alone=rho, fct_rho=towards)
    found = as_controls(tmp_path / "both", "rho_alone", "fct_rho")
    for said in (verdict(found), runner_up(found), *chain(*vars(answer(found)).values())):
        assert "rho alone" not in said
    assert verdict(found).startswith("Merge online with full RM: ")
    assert find_row(found, "", "mAP").method == "rm"
    results_of(tmp_path / "alone", "old", "new", rho_alone=rho)
    alone = as_controls(tmp_path / "alone", "rho_alone")
    assert verdict(alone) == "Only old, new and controls were compared, so nothing is recommended."
    assert answer(alone).which == (verdict(alone),)
    assert verdict(alone) in render(alone)


def retention_of(folder: Path, *names: str, **changed: tuple[Any, ...]) -> Results:
    """The hand-made results, as if what the new model finds were right."""
    results_of(folder, *names, **changed)
    with manifest_of(folder) as facts:
        facts["data"]["truth"] = {"name": "new-top1", "is_retention": True, "k": 1}
    return read_results(folder)


ASKED = (
    "Judge 50 queries first (simulate --judge FILE, an hour’s work): nothing here says whether the new model is better "
    "than the old one. "
)


def test_retention_asks_for_judgements_first(tmp_path: Path) -> None:
    alike = verdict(retention_of(tmp_path / "alike", "old", "rm_naive", new=flat("new", 0.30001)))
    assert alike == (
        f"{ASKED}The old service finds the new model’s first result as well as the new model, as far as these queries "
        "tell: 30.0 % mAP."
    )
    assert verdict(retention_of(tmp_path / "bad", "old", "new", bad=BAD)).startswith(
        f"{ASKED}If you upgrade, switch when the new index is complete: while the backfill runs, no method keeps more "
        "of the new model’s first result than the old service, 30.0 % mAP. The best, bad, keeps 25.0 % on average"
    )
    good = retention_of(tmp_path / "good")
    assert verdict(good).startswith(
        f"{ASKED}If you upgrade, merge online with full RM: while the backfill runs, no method keeps more of the new "
        "model’s first result, "
    )
    assert decide(good) is Decision.OPEN


@pytest.mark.parametrize(
    ("limits", "begins", "then", "decision"),
    [
        ((0.02, 0.2), "The new model is better by 60 judged queries: ", "Merge online with full RM: ", Decision.GO),
        (
            (-0.2, -0.02),
            "Do not upgrade: the new model is worse by 60 judged queries: ",
            "If you upgrade anyway, merge online with full RM: ",
            Decision.STOP,
        ),
        (
            (-0.01, 0.2),
            "Do not upgrade on this evidence: 60 judged queries do not tell which model is better; ",
            "j.csv has 40 more to judge. If you upgrade, merge online with full RM: ",
            Decision.OPEN,
        ),
    ],
)
def test_judgements_say_which_model_is_better(
    limits: tuple[float, float], begins: str, then: str, decision: Decision, tmp_path: Path
) -> None:
    middle = sum(limits) / 2
    facts = {"path": "j.csv", "queries": 60, "to_judge": 100, "depth": 3, "share": 0.8, "difference": middle}
    retention_of(tmp_path)
    with manifest_of(tmp_path) as manifest:
        manifest["data"]["truth"]["judged"] = facts | {"low": limits[0], "high": limits[1]}
    results = read_results(tmp_path)
    assert verdict(results).startswith(f"{begins}the difference of precision@3 is ")
    assert f" {then}" in verdict(results)
    assert decide(results) is decision


def test_a_harmful_upgrade_is_not_recommended(tmp_path: Path) -> None:
    results = results_of(tmp_path, "old", "rm_naive", new=flat("new", 0.2))
    assert verdict(results).startswith("Do not upgrade: the new model is worse than the old one, with 20.0 % mAP")
    assert verdict(results).endswith("a difference of −10.0 points (95 % interval −12.0 to −8.0).")
    which, *others = vars(answer(results)).values()
    assert which[1].endswith("RM naive loses least, with 34.0 % mAP on average.")
    assert others == [(), (), ()]


def disagreeing(folder: Path, new: float, cmc: float, low: float = 0.001) -> Results:
    """The new model by mAP and by CMC@1, with the same width of both intervals; it wins 5.3 and loses 3.8 queries."""
    found = results_of(folder, "old", "new", "rm_naive", new=flat("new", new))
    old_row, new_row = (found.reference(name, "CMC@1") for name in ("old", "new"))
    assert old_row is not None
    assert new_row is not None
    step = Difference(cmc - old_row.auc, cmc - old_row.auc - low, cmc - old_row.auc + low)
    key = ("new", new_row.variant), ("old", old_row.variant), "CMC@1"
    flips = {POSITIVE_FLIPS_VS_OLD: 0.053, NEGATIVE_FLIPS_VS_OLD: 0.038}
    lines = {
        ("new", new_row.variant, name): Line(np.array(T), np.full(3, share), np.full(3, NAN), np.full(3, NAN))
        for name, share in flips.items()
    }
    return replace(
        found,
        rows=tuple(replace(row, auc=cmc) if row == new_row else row for row in found.rows),
        differences=found.differences | {key: step},
        lines=found.lines | lines,
    )


def test_metrics_that_disagree_are_told_in_the_first_line(tmp_path: Path) -> None:
    harmful = disagreeing(tmp_path / "harmful", 0.2, 0.515)  # old: 30 % mAP, 50 % CMC@1
    assert find_situation(harmful) is Situation.WORSE
    said = verdict(harmful)
    assert said.startswith("The new model is worse by mAP (30.0 → 20.0) but better by CMC@1 (50.0 → 51.5: 5.3 % of")
    assert " result, 3.8 % lose one). Do not upgrade if mAP is what your users notice. If CMC@1 is, compare" in said
    assert said.endswith(": --metrics CMC@1 mAP.")
    assert answer(harmful).which[0] == said
    assert "The new model is worse by mAP (30.0 → 20.0) but better by CMC@1 (50.0 → 51.5: 5.3" in render(harmful)
    assert said in " ".join(printed(lambda console: draw_table(harmful, console), 400).split())

    useful = verdict(disagreeing(tmp_path / "useful", 0.5, 0.45))
    assert useful.startswith("The new model is better by mAP (30.0 → 50.0) but worse by CMC@1 (50.0 → 45.0: ")
    assert "lose one). Merge online with RM naive: users get 20 % of the upgrade’s improvement" in useful
    alike = verdict(disagreeing(tmp_path / "alike", 0.31, 0.515))
    assert alike.startswith(
        "The new model is not distinguishable from the old one by these queries by mAP (30.0 → 31.0) but better by "
        "CMC@1 ("
    )
    worse = verdict(disagreeing(tmp_path / "worse", 0.31, 0.45))
    assert worse.endswith(" lose one). Do not upgrade on this evidence.")


def test_metrics_that_may_agree_are_not_said_to_disagree(tmp_path: Path) -> None:
    within = disagreeing(tmp_path / "within", 0.2, 0.515, low=0.016)  # the interval of CMC@1 holds 0
    assert verdict(within).startswith("Do not upgrade: the new model is worse than the old one, with 20.0 % mAP")
    both = disagreeing(tmp_path / "both", 0.5, 0.6)
    assert verdict(both).startswith("Merge online with RM naive: users get")


def test_few_queries_and_losses_are_told(tmp_path: Path) -> None:
    data = {"queries": 31, "queries_skipped": 2, "broken_images": 4, "notes": ["old was stored as float16"]}
    few, skipped, broken, note = warnings(read_results(write_results(tmp_path, data=data)))
    assert few.startswith("Only 29 queries were scored: ")
    assert "left out: 2; skipped_queries.parquet" in skipped
    assert "left out: 4; broken.parquet" in broken
    assert note == "old was stored as float16"


def test_verdict_without_methods(tmp_path: Path) -> None:
    assert verdict(results_of(tmp_path, "old", "new")).startswith("Only old and new were compared")
    only = read_results(write_results(tmp_path / "oracle", orders=("oracle_loss",)))
    assert verdict(only).startswith("Only oracle orders were compared")
    offline = ("offline", (0.3, 0.3, 0.5), 0.6, 0.4, 1.5, YES, 0.0, YES, YES, 0.0)
    best = read_results(write_results(tmp_path / "offline", METHODS | {"offline": offline}, ("oracle_loss", "a")))
    assert verdict(best).startswith("Switch when the new index is complete: users get 30.0 points more mAP")


def test_runner_up(tmp_path: Path) -> None:
    lead = "; 18.0 points behind (95 % interval 16.0 to 20.0)"
    assert runner_up(results_of(tmp_path)) == f"Next best: BCT, 35.0 % on average, 25 % of the improvement{lead}."
    assert runner_up(results_of(tmp_path, "old", "new", "rm")) == ""
    close = dict(METHODS) | {"bct": (METHODS["bct"][0], METHODS["bct"][1], 0.52, *METHODS["bct"][3:])}
    assert runner_up(read_results(write_results(tmp_path, close))).endswith(
        "; 1.0 points behind (95 % interval −1.0 to 3.0), so these queries do not distinguish the two."
    )


def test_a_verdict_on_a_condition_is_that_of_all_metrics(tmp_path: Path) -> None:
    results = results_of(tmp_path)
    row = row_of(results, "rm")
    assert conditions(results, row) == (YES, YES, YES)
    for verdict_on_cmc, expected in ((UNDECIDED, UNDECIDED), (NO, NO)):
        rows = tuple(
            replace(r, never_falls=verdict_on_cmc) if (r.method, r.metric) == ("rm", "CMC@1") else r
            for r in results.rows
        )
        changed = replace(results, rows=rows)
        assert conditions(changed, row) == (YES, YES, expected)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0.0, 0.0, 0.001, YES), "never falls at 101 moments"),
        ((0.0012, 0.0, 0.003, YES), "falls by at most 0.12 points at 101 moments"),
        (
            (0.006, 0.0, 0.052, UNDECIDED),
            "falls by 0.6 points at 101 moments, at most by 5.2 (95 % interval)",
        ),
        (
            (0.23, 0.2, 0.26, NO),
            "falls by up to 23.0 points between 10 and 45 % of the backfill (95 % interval 20.0 to 26.0, at 101 "
            "moments)",
        ),
        ((0.23, NAN, NAN, UNDECIDED), "falls by at most 23.0 points at 101 moments"),
    ],
)
def test_falls_in_words(tmp_path: Path, numbers: tuple[float, float, float, str], words: str) -> None:
    size, low, high, never = numbers
    row = row_of(
        results_of(tmp_path), "rm", moments=101, largest_fall=size, largest_fall_low=low, largest_fall_high=high,
        fall_start=0.1, fall_end=0.45, never_falls=never,
    )  # fmt: skip
    assert fall_in_words(row) == words


def test_where_another_method_is_better(tmp_path: Path) -> None:
    early = ("early", (0.47, 0.45, 0.5), 0.4, 0.4, 0.5, YES, 0.0, YES, YES, 0.0)
    late = ("late, later", (0.1, 0.3, 0.64), 0.3, 0.3, 0.2, YES, 0.0, NO, YES, 0.0)
    hardly = ("hardly", (0.404, 0.3, 0.3), 0.3, 0.3, 0.2, YES, 0.0, NO, YES, 0.0)
    results = results_of(tmp_path, early=early, late=late, hardly=hardly)
    best = results.best()
    assert best is not None
    found = crossings(results, best)
    assert [(each.row.method, each.start, each.end, round(each.lead, 9)) for each in found] == (
        [("early", 0.0, 0.0, 0.07), ("late", 1.0, 1.0, 0.02)]
    )
    assert answer(results).which[2:] == (
        "At the start of the backfill early serves better, by up to 7.0 points.",
        "At the end of the backfill late, later serves better, by up to 2.0 points.",
    )


def test_the_four_answers(tmp_path: Path) -> None:
    results = read_results(write_costs(write_results(tmp_path), query_backbone_macs=1_000_000))
    found = answer(results)
    safe, *of_metrics, margin = found.when
    assert safe.startswith("On average it is as good as the old service by mAP and CMC@1 from the start. 0.0 % of")
    assert safe.endswith(" on the first day (finished upgrade: 10.0 %).")
    for metric, said in zip(("mAP", "CMC@1"), of_metrics, strict=True):
        assert said.startswith(f"{metric}: as good as the old service from the start, half the improvement from 50 %")
        assert said.endswith(" as good as the new model only at the end.")
    assert "at most 0.5 points" in margin
    query, fit, size, after = found.cost
    assert "by both models: +13 % query compute" in query
    assert fit == "Training its map takes 1.8 G FLOPs."
    assert "from 3.2 MB to 6.3 MB in float32 (+100 %)" in size
    assert "only the new model is needed" in after
    with manifest_of(tmp_path) as facts:
        facts["traits"]["methods"]["rm"]["is_trained"] = False  # a formula, whose operations are counted in part
    assert answer(read_results(tmp_path)).cost == (query, size, after)
    lost, *falls = found.risk
    assert lost.startswith("At worst, 6.2 % of the queries lose a right first result of the old service, 0.0 % on")
    assert lost.endswith("(finished upgrade: 10.0 %).")
    assert falls == ["mAP never falls at 3 moments.", "CMC@1 never falls at 3 moments."]


def test_a_start_that_is_not_decided_is_not_told_as_safe(tmp_path: Path) -> None:
    unsure = ("RM", (0.40, 0.55, 0.62), 0.53, 0.5233, 1.15, YES, 0.0, UNDECIDED, YES, 0.031)
    words = "from the start (not shown by mAP and CMC@1)."
    assert words in answer(results_of(tmp_path / "a", "old", "new", rm=unsure)).when[0]
    assert words not in answer(results_of(tmp_path / "b")).when[0]


def test_the_machine_time_of_a_run_that_trained(tmp_path: Path) -> None:
    timings = {"backbones/old": 41.2, "backbones/new": 90.7, "embeddings": 18.0, "maps": 0.0, "replay": 7.7}
    cost = answer(read_results(write_results(tmp_path, timings_s=timings))).cost
    words = "training the new model took 91 s and embedding everything by both models took 18 s"
    assert f"On the machine of this run, {words}." in cost


def test_a_drop_at_the_switch_is_a_risk(tmp_path: Path) -> None:
    bct = ("BCT", (0.25, 0.55, 0.60), 0.54, 0.5, 1.2, YES, 0.0, NO, YES, 0.1)
    found = results_of(tmp_path, "old", "new", bct=bct)
    assert warnings(found)[0] == (
        "BCT starts below the old service, by 5.0 points of mAP (95 % interval 4.0 to 6.0) and 5.0 points of CMC@1 "
        "(95 % interval 4.0 to 6.0)."
    )


def test_what_an_interval_says_about_the_better_one() -> None:
    steps = [Difference(0.02, 0.01, 0.03), Difference(-0.02, -0.03, -0.01), Difference(0.02, -0.01, 0.05)]
    assert [step.verdict for step in steps] == ["better", "worse", "not distinguishable"]
