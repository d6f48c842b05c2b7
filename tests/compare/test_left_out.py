"""What a folder of embeddings lacks is left out, with the reason, and the rest runs."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.report import print_table
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.compare.tables import Manifest
from ray_backfill.core.stages import read_json
from ray_backfill.data.write import vector_column
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining
from ray_backfill.workers.settings import Context
from tests.compare.folder import CLASSES, resolved, vectors, write_split


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
    models_alone = ["old", "new", "offline", "instant", "cascade@100", "common_prefix", "rm_naive"]
    assert found.settings["evaluation"]["methods"] == models_alone
    assert {"rm", "fct", "bct"} < set(reasons(found))


def comparison_on(folder: Path, items: int, label: Any) -> Comparison:
    write_split(folder / "train.parquet", items, 3000, label=label)
    evaluation = Evaluation(methods=("rqt", "cl_s", "rm", "fct", "fastfill", "procrustes_query"), orders=("random",))
    return resolved(folder, evaluation)


def test_nothing_is_fitted_on_three_items(folder: Path) -> None:
    found = comparison_on(folder, 3, [0, 0, 1])
    reason = "needs at least 10 items in the train split to be fitted on, not 3"
    methods = ("rqt", "cl_s", "rm", "fct", "fastfill", "procrustes_query")
    assert {each.name: each.reason for each in found.left_out} == dict.fromkeys(methods, reason)
    assert [method.name for method in found.methods] == ["old", "new"]
    assert found.notes == ()


def test_no_head_learns_from_classes_of_one_item(folder: Path) -> None:
    found = comparison_on(folder, 40, np.arange(40))
    reason = "needs classes of two or more items in the train split; each of its 40 items is alone in its class"
    reasons = {each.name: each.reason for each in found.left_out}
    assert {name: reasons[name] for name in ("cl_s", "rm")} == {"cl_s": reason, "rm": reason}
    assert "classes with more than one item" in reasons["fastfill"]
    assert {"rqt", "fct", "procrustes_query"} < {method.name for method in found.methods}


@pytest.mark.parametrize(("dims", "said"), [(2, ""), (3, "12 train items, 4 per dimension of the embeddings (3)")])
def test_few_items_per_dimension_are_mentioned(folder: Path, dims: int, said: str) -> None:
    random = np.random.default_rng(1)
    wide = {m: vector_column(random.normal(size=(12, dims)).astype(np.float32)) for m in ("old", "new")}
    for split, first in (("gallery", 0), ("train", 3000)):
        write_split(folder / f"{split}.parquet", 12, first, **wide, label=np.arange(12) // 2)
    (folder / "queries.parquet").unlink()
    evaluation = Evaluation(methods=("procrustes_query",), orders=("random",))
    notes = resolved(folder, evaluation).notes
    assert any(said in note and "fit noise there" in note for note in notes) == bool(said)
    none = Evaluation(methods=("rm_naive",), orders=("random",))
    assert resolved(folder, none).notes == ()


def test_what_needs_a_library_that_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an environment with what the wheel alone needs."""
    gone = ("torch", "ray", "faiss")
    monkeypatch.setattr("ray_backfill.core.errors.find_spec", lambda name: None if name in gone else find_spec(name))
    label = np.arange(600) % 20
    items = [
        {"old": c[:, :8] + rng.normal(size=(n, 8)), "new": c + 0.5 * rng.normal(size=(n, 16)), "label": label[:n]}
        for n, seed in ((600, 1), (100, 2), (600, 3))
        for rng, c in [(np.random.default_rng(seed), np.random.default_rng(0).normal(size=(20, 16))[label[:n]])]
    ]
    data = rb.write_folder(tmp_path / "data", *items)
    command = f"ray-backfill simulate --data {data} --methods rm_naive ridge_gallery fct"
    how = Evaluation(methods=("rm_naive", "ridge_gallery", "fct"), orders=("random",))
    out = evaluate_folder(data, how, FitSettings(), Context(tmp_path / "out", command=command))
    (missing,) = rb.read_results(out).manifest.left_out
    assert missing.name == "fct"
    assert missing.reason.startswith("needs torch, which is not installed; type: python -m pip install '")
    print_table(out)
    printed = " ".join(capsys.readouterr().out.split())
    assert "next: " in printed
    assert "drill" in printed
    assert "(needs ray, which is not installed; type: python -m pip install '" in printed
