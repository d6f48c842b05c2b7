"""What cannot take part on a user's folder is left out with a reason before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.comparison.left_out import find_left_out
from ray_backfill.errors import InputError
from ray_backfill.images import Items
from ray_backfill.methods import all_methods
from ray_backfill.recipes import load_recipe
from ray_backfill.runs.checks import check_evaluation, check_recipe
from ray_backfill.store import EmbeddingFolder, read_folder, vector_column, write_parquet
from ray_backfill.training.settings import FitSettings
from tests.datasets._pictures import write_tree

MODELS = ("old", "new", "bct", "side")
HEADS = {m.name for m in all_methods().values() if m.fit and m.fit.option == "heads"}
LABELLED = {m.name for m in all_methods().values() if m.fit and m.fit.needs_labels}
OTHER_MODELS = {m.name for m in all_methods().values() if set(m.models) - {"old", "new"}}
FITTED = {m.name for m in all_methods().values() if m.fit}


def folder_of(path: Path, train: dict[str, Any] | None, **gallery: Any) -> EmbeddingFolder:
    for split, rows, more in (("gallery", 20, gallery), ("train", 40, train)):
        if more is not None:
            rng = np.random.default_rng(rows)
            columns = {"id": np.arange(rows), "label": np.arange(rows) % 4} | {
                model: vector_column(rng.normal(size=(rows, d)).astype(np.float32))
                for model, d in (("old", 4), ("new", 6))
            }
            kept = {name: column for name, column in (columns | more).items() if column is not None}
            write_parquet(path / f"{split}.parquet", pa.table(kept))
    return read_folder(path, MODELS)


def left_out(folder: EmbeddingFolder, distance: str = "cosine") -> dict[str, str]:
    found = find_left_out(folder, list(all_methods().values()), (), FitSettings(), distance)
    return {each.name: each.reason for each in found}


def merges_left_out(folder: EmbeddingFolder, *merges: str) -> list[str]:
    return [each.name for each in find_left_out(folder, (), merges, FitSettings(), "cosine")]


def test_a_whole_folder_leaves_out_only_what_needs_further_models(tmp_path: Path) -> None:
    found = left_out(folder_of(tmp_path, {}))
    assert found.keys() == OTHER_MODELS
    assert found["bct"] == "needs embeddings of a further model: a column 'bct' in gallery.parquet"
    assert merges_left_out(read_folder(tmp_path), "raw", "isotonic", "csls") == []


def test_further_models_must_be_in_every_split_that_is_needed(tmp_path: Path) -> None:
    extra = vector_column(np.ones((20, 6), np.float32))
    found = left_out(folder_of(tmp_path, {}, bct=extra, side=extra))
    assert "bct" not in found  # nothing is fitted for it
    assert found["bict"].endswith("a column 'bct' in train.parquet")
    assert found["fct_side"].endswith("a column 'side' in train.parquet")


def test_without_labels_or_without_a_train_split(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", {"label": None})
    assert left_out(folder).keys() == LABELLED | OTHER_MODELS
    assert merges_left_out(folder, "raw", "quantile", "isotonic") == ["isotonic"]
    folder = folder_of(tmp_path / "b", None)
    assert left_out(folder).keys() == FITTED | OTHER_MODELS
    assert merges_left_out(folder, "raw", "quantile", "rrf") == ["quantile"]


@pytest.mark.parametrize("distance", ["l2", "inner_product"])
def test_heads_take_part_under_the_distance_they_train_under(tmp_path: Path, distance: str) -> None:
    found = left_out(folder_of(tmp_path, {}), distance)
    assert found.keys() == HEADS | OTHER_MODELS
    wanted = "give --heads.loss.distance l2" if distance == "l2" else "cosine or the l2 distance"
    assert wanted in found["rm"]


def test_train_splits_of_one_class_or_without_a_pair(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", {"label": np.zeros(40, int)})
    assert "at least 2 classes" in left_out(folder)["rm"]
    assert merges_left_out(folder, "isotonic") == ["isotonic"]
    folder = folder_of(tmp_path / "b", {"label": np.arange(40)})
    assert "more than one item" in left_out(folder)["fastfill"]
    assert merges_left_out(folder, "logistic") == ["logistic"]


@pytest.mark.parametrize(
    ("label", "weight", "reason"),
    [
        ([0, 1], np.ones((2, 5)), "weights of classifier.parquet have 5 dimensions, the new embeddings 6"),
        (
            ["a", "b"],
            np.ones((2, 6)),
            "the labels are text in classifier.parquet but numbers in train.parquet; use one type",
        ),
        ([7, 8], np.ones((2, 6)), "knows none of the labels"),
    ],
)
def test_a_classifier_that_does_not_fit(tmp_path: Path, label: list[Any], weight: np.ndarray, reason: str) -> None:
    folder_of(tmp_path, {})
    columns = {"label": label, "weight": vector_column(weight.astype(np.float32)), "bias": [0.0, 0.0]}
    write_parquet(tmp_path / "classifier.parquet", pa.table(columns))
    found = left_out(read_folder(tmp_path))
    assert reason in found["fastfill"]
    assert "fct" not in found


class Source:
    """Two classes to train on, and what a test gives beside."""

    def __init__(self, **splits: Items) -> None:
        self._splits = {"train": Items(np.arange(8), np.arange(8) // 2)} | splits
        self.splits = tuple(self._splits)

    def items(self, split: str) -> Items:
        return self._splits[split]


def items(*labels: int, positives: list[list[int]] | None = None) -> Items:
    lists = None if positives is None else pa.array(positives, pa.list_(pa.int64()))
    return Items(np.arange(len(labels)), np.array(labels), positives_N=lists)


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        ({"gallery": items(1, 1)}, ""),
        ({"gallery": items(-1, 3, 3, -1)}, ""),
        ({"gallery": items(-1, -1, 1, 2)}, "no class has two images"),
        ({"gallery": items(1, 2), "queries": items(2, 1)}, ""),
        ({"gallery": items(1, 2), "queries": items(2, 3)}, ""),
        ({"gallery": items(1, -1), "queries": items(1, -1)}, ""),
        ({"gallery": items(1, -1), "queries": items(3, -1)}, "no query shows a class that the gallery has"),
        ({"gallery": items(-1, -1), "queries": items(-1, -1, positives=[[1], []])}, ""),
        ({"gallery": items(-1, -1), "queries": items(-1, -1, positives=[[], []])}, "nothing to measure"),
    ],
)
def test_queries_must_have_answers(
    splits: dict[str, Items], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("image_folder", tmp_path)
    recipe = replace(recipe, evaluation=replace(recipe.evaluation, methods=("rm_naive",), orders=("random",)))
    monkeypatch.setattr("ray_backfill.runs.checks.open_source", lambda settings: Source(**splits))
    if not complaint:
        check_evaluation(recipe, 1)
        return
    with pytest.raises(InputError, match=complaint):
        check_evaluation(recipe, 1)


def test_images_of_which_none_can_be_read_are_said_before_the_training(tmp_path: Path) -> None:
    write_tree(
        tmp_path, {f"{split}/{c}/{i:02d}.png": b"" for split in ("train", "val") for c in "abcd" for i in range(40)}
    )
    recipe = load_recipe("image_folder", tmp_path)
    with pytest.raises(InputError, match="none of 16 images tried in the split 'train' can be read"):
        check_recipe(recipe, 1)
    check_recipe(recipe, 1, [])  # nothing is left to train
