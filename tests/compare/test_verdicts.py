"""Verdicts of whole runs, from embeddings to sentences: a good upgrade, a harmful one, none, too few queries."""

from pathlib import Path

import numpy as np
import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.report import Results, read_results
from ray_backfill.compare.report.answers import answer, warnings
from ray_backfill.compare.report.verdict import in_two
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.compare.tabulate import no_loss as verdict_on_loss
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.data.write import vector_column
from ray_backfill.engine.statistics import ROUNDING
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from tests.compare.folder import CLASSES, vectors, write_split


def run(folder: Path, queries: int, old: float, new: float) -> Results:
    """Compare RM naive on 120 items; old and new: noise of the two models' embeddings."""
    for split, rows, first in (("gallery", 120, 0), ("queries", queries, 1000)):
        labels = np.arange(rows) % CLASSES
        columns = {
            "old": vector_column(vectors(labels, 8, old, first)),
            "new": vector_column(vectors(labels, 8, new, first + 1)),
        }
        write_split(folder / "data" / f"{split}.parquet", rows, first, **columns)
    evaluation = Evaluation(methods=("rm_naive", "offline"), orders=("random",), points=5)
    return read_results(evaluate_folder(folder / "data", evaluation, FitSettings(), Context(folder / "out")))


@pytest.mark.parametrize(
    ("low", "high", "no_loss"),
    [(-0.004, 0.02, YES), (-0.01, 0.02, UNDECIDED), (-0.01, 0.0, UNDECIDED), (-0.03, -0.001, NO), (0.0, 0.0, YES)],
)
def test_an_interval_decides_whether_there_is_a_loss(low: float, high: float, no_loss: str) -> None:
    """Margin: half a point. ``low`` and ``high`` of a difference; a fall has them with the other sign."""
    assert verdict_on_loss(low, high, 0.005) == no_loss
    assert verdict_on_loss(min(0.0, low), min(0.0, high), 0.005, ROUNDING) == no_loss


def test_a_good_upgrade(tmp_path: Path) -> None:
    results = run(tmp_path, 90, 1.6, 0.5)
    assert results.verdict.startswith("Merge online with RM naive: users get ")
    assert " of the upgrade’s improvement while the backfill runs (95 % interval " in results.verdict
    assert warnings(results) == ()
    offline = next(row for row in results.table("mAP") if row.method == "offline")
    assert offline.gain == 0  # a step: nothing is gained until the end
    assert offline.half_gain_at == offline.passes_new_at == 1
    naive = next(row for row in results.table("mAP") if row.method == "rm_naive")
    # Between the five reported points a query flips that is right at all of them.
    assert naive.negative_flips_vs_old_max == pytest.approx(1 / 90)
    assert results.lines["rm_naive", naive.variant, "negative_flips_vs_old"].value.max() == 0
    page = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    for part in in_two(results.verdict):
        assert part.replace(" %", "\u00a0%") in page
    assert results.manifest.verdict == results.verdict
    for question in ("Which method", "When to switch", "What does it cost", "What is at risk"):
        assert question in page


def test_a_harmful_upgrade(tmp_path: Path) -> None:
    results = run(tmp_path, 90, 0.5, 1.6)
    assert results.verdict.startswith("Do not upgrade: the new model is worse than the old one, with ")
    assert np.isnan(results.summary.gain).all()
    assert "of the methods that switch before the end, RM naive loses least" in answer(results).which[1]
    page = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    assert "of the gain" not in page
    assert "When to switch" not in page


def test_models_that_are_alike(tmp_path: Path) -> None:
    results = run(tmp_path, 60, 1.0, 1.0)
    assert results.verdict.startswith("Do not upgrade on this evidence: these queries cannot distinguish the new ")
    assert results.summary[["gain", "gain_low", "gain_high"]].isna().all(axis=None)


def test_one_query(tmp_path: Path) -> None:
    results = run(tmp_path, 1, 1.6, 0.5)
    assert results.verdict == (
        "These results have no intervals, so nothing is recommended: compare on at least 30 queries."
    )
    assert warnings(results)[0].startswith("Only one query was scored: too few")
    assert results.summary[["auc_low", "auc_high", "gain_low", "gain"]].isna().all(axis=None)
    assert set(results.summary.starts_at_old) == {"undecided"}
    page = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    assert "better</td>" not in page
    assert "Only one query was scored" in page
