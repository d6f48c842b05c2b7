"""The metrics of a folder of embeddings if none are named: what users of a service see, in every product."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.compare.evaluation import RECOMMENDED, Evaluation
from ray_backfill.compare.report import read_results
from ray_backfill.compare.resolve import resolve
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.compare.selection import glossary
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder
from ray_backfill.drill.results import depth
from ray_backfill.drill.run import check_drill
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from tests.compare.folder import CLASSES, resolved, write_split

DEFAULT = replace(Evaluation.of_folder(), methods=("rm_naive",), points=3)
SERVED, FEW = ("nDCG@10", "CMC@1"), "recall@10"


def write_folder(path: Path, answers: int) -> Path:
    """36 queries, each with so many right answers."""
    path.mkdir()
    write_split(path / "gallery.parquet", CLASSES * answers, 0)
    write_split(path / "queries.parquet", 36, 1000)
    return path


@pytest.mark.parametrize(("answers", "expected"), [(10, (*SERVED, FEW)), (11, SERVED)])
def test_the_default_is_what_users_see(tmp_path: Path, answers: int, expected: tuple[str, ...]) -> None:
    data = write_folder(tmp_path / "data", answers)
    results = read_results(evaluate_folder(data, DEFAULT, FitSettings(), Context(tmp_path / "out")))
    assert results.metrics == expected
    assert results.primary == "nDCG@10"
    # Of a drill, the same; its answers are the first items only.
    comparison = resolve(read_folder(data), DEFAULT.named, FitSettings(), to_come=())
    assert comparison.evaluation.metrics == expected
    assert depth(expected, comparison.truth) == 10


@pytest.mark.parametrize(("k", "expected"), [(1, FEW), (10, FEW), (11, "recall@11")])
def test_what_the_new_model_finds_is_read_by_the_closest_metric(tmp_path: Path, k: int, expected: str) -> None:
    data, how = write_folder(tmp_path / "data", 30), replace(DEFAULT, truth=(f"new-top{k}",))
    results = read_results(evaluate_folder(data, how, FitSettings(), Context(tmp_path / "out")))
    assert results.metrics == (expected,)
    assert results.rows[-1].end == 1.0


def test_half_of_the_queries_decide_and_those_without_an_answer_do_not_count(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_split(data / "gallery.parquet", 60, 0, label=np.repeat([0, 1], [50, 10]))
    for name, few, many, none in (("more", 20, 19, 30), ("less", 19, 20, 30)):
        labels = np.repeat([1, 0, 7], [few, many, none])
        write_split(data / "queries.parquet", len(labels), 1000, label=labels)
        metrics = resolved(data, DEFAULT).evaluation.metrics
        assert (FEW in metrics) == (name == "more")


def test_named_metrics_stay_and_the_word_may_stand_among_them(tmp_path: Path) -> None:
    folder = read_folder(write_folder(tmp_path / "data", 30))
    for given, expected in ((("mAP",), ("mAP",)), (("mAP", RECOMMENDED, "CMC@1"), ("mAP", *SERVED))):
        assert resolve(folder, replace(DEFAULT, metrics=given).named, FitSettings()).evaluation.metrics == expected
    assert Evaluation().metrics == ("mAP", "CMC@1"), "recipes have the papers' metrics"


def test_reports_keep_the_users_word_for_a_metric(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", 10)
    asked = replace(DEFAULT, metrics=("ndcg_cut_10", "hit_rate@1", RECOMMENDED))
    results = read_results(evaluate_folder(data, asked, FitSettings(), Context(tmp_path / "out")))
    assert results.metrics == ("ndcg_cut_10", "hit_rate@1", FEW), "nDCG@10 and CMC@1 are there already"
    assert {"ndcg_cut_10, nDCG, nDCG@k", "hit_rate@1, CMC@k"} < set(glossary(results))


def test_one_metric_has_one_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nDCG@10 and ndcg@10 are the same metric; give one of them"):
        replace(DEFAULT, metrics=("nDCG@10", "ndcg@10")).check()


@pytest.mark.parametrize(
    ("metric", "instead"), [("R@2", r"recall@3"), ("AP@2", r"AP@3"), ("P@4", r"P@3"), ("recall@1", "recall@3")]
)
def test_a_metric_that_cannot_reach_100_percent_is_refused(metric: str, instead: str) -> None:
    with pytest.raises(InputError, match=f"{metric} cannot reach 100 %.*use {instead} or another number"):
        replace(DEFAULT, metrics=(metric,), truth=("new-top3",)).check()


def test_a_drill_measures_the_whole_rankings_metric_on_its_lists() -> None:
    for name in ("mAP", "AP", "map"):
        _, evaluation = check_drill(replace(DEFAULT, metrics=(name, "P@5"), merges=("raw",)), LiveSettings())
        assert evaluation.metrics == ("mAP@100", "P@5")
