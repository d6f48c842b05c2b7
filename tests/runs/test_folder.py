"""Runs on a folder of embeddings: the table before the training, and what comes after it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.cluster.settings import Workers
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.files import begin_stage, finish_stage
from ray_backfill.methods import Method
from ray_backfill.models.checkpoints import save_network
from ray_backfill.report import Results
from ray_backfill.runs import folder as runs
from ray_backfill.runs.context import Context
from ray_backfill.store import EmbeddingFolder
from ray_backfill.training.fit import TrainSet
from ray_backfill.training.settings import FitSettings, HeadTraining, TransformTraining

FITS = FitSettings(heads=HeadTraining(epochs=1, classes=4), transforms=TransformTraining(epochs=1, hidden=8))


def fit_here(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: FitSettings,
    distance: str,
    workers: Workers,
    overwrite: bool = False,
) -> dict[str, Path]:
    """As the stage does, in this process instead of on Ray's workers."""
    assert folder.train is not None
    data = TrainSet(folder.train.vectors, folder.train.label, folder.classifier)
    for method in methods:
        if method.fit and not begin_stage(out / method.name, "map", method.fit.recorded(settings, distance), overwrite):
            fitted = method.fit.fit(data, settings, distance)
            save_network(out / method.name, fitted.network)
            finish_stage(out / method.name, {"training_flops": fitted.flops})
    return {method.name: out / method.name for method in methods if method.fit}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    label = np.arange(80) % 8
    splits = [
        {
            "old": rng.normal(size=(80, 4)) + label[:, None],
            "new": rng.normal(size=(80, 6)) + label[:, None],
            "label": label,
        }
        for _ in range(3)
    ]
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", *splits)


def tables(results: Path) -> dict[str, pd.DataFrame]:
    return {path.stem: pd.read_parquet(path) for path in results.glob("*.parquet")}


@pytest.mark.slow
def test_what_needs_no_training_is_shown_first_and_changes_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "fit_stage", fit_here)
    evaluation = Evaluation(methods=("rm", "rm_naive", "least_squares_gallery"), orders=("random",), points=3)
    shown: list[tuple[Results, list[str]]] = []

    def show(results: Results, to_come: list[str]) -> None:
        assert not (tmp_path / "out" / "maps" / "rm").exists(), "it is shown before the training"
        shown.append((results, to_come))

    at_once = runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "at_once"))
    in_two = runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "out"), show_first=show)
    for name, table in tables(at_once).items():
        pd.testing.assert_frame_equal(tables(in_two)[name], table)
    ((first, to_come),) = shown
    assert to_come == ["full RM"]
    assert first.methods == ("old", "new", "rm_naive", "least_squares_gallery")
    whole = rb.read_results(in_two)
    assert whole.methods == ("old", "new", "rm", "rm_naive", "least_squares_gallery")
    assert {row.method: row.auc for row in first.rows} == {
        row.method: row.auc for row in whole.rows if row.method in first.methods
    }
    runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "out"), show_first=show)
    assert len(shown) == 1, "nothing is left to train"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "order"),
    [
        (("rm",), "random"),  # nothing to show
        (("rm_naive",), "random"),  # nothing to train
        (("rm_naive", "fastfill"), "sigma"),  # the order needs what is trained
    ],
)
def test_no_first_table(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...], order: str
) -> None:
    monkeypatch.setattr(runs, "fit_stage", fit_here)
    evaluation = Evaluation(points=2, methods=methods, orders=(order,))
    shown: list[Results] = []
    results = runs.evaluate_folder(
        data, evaluation, FITS, Context(tmp_path), show_first=lambda results, to_come: shown.append(results)
    )
    assert not shown
    assert rb.read_results(results).methods == ("old", "new", *methods)
