"""What a folder of embeddings lacks is left out, with the reason, and the rest runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.files import read_json
from ray_backfill.runs.context import Context
from ray_backfill.runs.folder import evaluate_folder
from ray_backfill.store import vector_column
from ray_backfill.tables.results import Manifest
from ray_backfill.training.settings import FitSettings, HeadTraining, TransformTraining
from tests.comparison.folder import CLASSES, vectors, write_split

pytestmark = pytest.mark.slow


def evaluate(folder: Path, out: Path, **change: Any) -> Manifest:
    """The manifest of a run on a user's folder, from preflight to report."""
    basic: dict[str, Any] = {"methods": ("rm_naive", "offline"), "orders": ("random",), "points": 5}
    evaluation = Evaluation(**(basic | change))
    small = FitSettings(heads=HeadTraining(epochs=1), transforms=TransformTraining(epochs=1, hidden=8))
    results = evaluate_folder(folder, evaluation, small, Context(out))
    return Manifest.from_json(read_json(results / "manifest.json"))


def reasons(found: Manifest) -> dict[str, str]:
    return {each.words: each.reason for each in found.left_out}


def test_what_cannot_be_fitted_is_left_out_and_the_rest_runs(folder: Path, tmp_path: Path) -> None:
    methods = ("rm_naive", "procrustes_query", "rm", "fastfill")
    found = evaluate(folder, tmp_path / "a", methods=methods, merges=("raw", "quantile", "isotonic", "rrf"))
    assert set(reasons(found)) == {"procrustes_query", "rm", "fastfill", "quantile merge", "isotonic merge"}
    write_split(folder / "train.parquet", 60, 3000, label=None)
    found = evaluate(folder, tmp_path / "b", methods=methods, merges=("raw", "quantile", "isotonic"))
    assert set(reasons(found)) == {"rm", "fastfill", "isotonic merge"}
    summary = pd.read_parquet(tmp_path / "b" / "results" / "summary.parquet")
    assert set(summary[summary.method == "procrustes_query"]["merge"]) == {"raw", "quantile"}


def test_a_model_that_the_train_split_lacks_goes_without_fitted_merges(folder: Path, tmp_path: Path) -> None:
    write_split(folder / "train.parquet", 60, 3000)
    for split, rows, first in (("gallery", 60, 0), ("queries", 12, 1000)):
        bct = vector_column(vectors(np.arange(rows) % CLASSES, 4, 0.8, first))
        write_split(folder / f"{split}.parquet", rows, first, bct=bct, side=["left"] * rows)
    found = evaluate(folder, tmp_path / "out", methods=("bct", "fct_side"), merges=("raw", "quantile", "rrf"))
    assert reasons(found) == {
        "fct_side": "needs embeddings of a further model: a column 'side' in gallery.parquet",
        "bct with fitted merges": "needs a column 'bct' in train.parquet",
    }
    summary = pd.read_parquet(tmp_path / "out" / "results" / "summary.parquet")
    assert set(summary[summary.method == "bct"]["merge"]) == {"raw", "rrf"}


def test_all_means_the_methods_that_there_are(folder: Path, tmp_path: Path) -> None:
    found = evaluate(folder, tmp_path / "out", methods=("all",))
    assert found.settings["evaluation"]["methods"] == ["old", "new", "offline", "rm_naive"]
    assert {"rm", "fct", "bct"} < set(reasons(found))
