"""Which items merges are fitted on: those that no map has seen, if there are enough of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.merges import FEWEST_ITEMS
from ray_backfill.comparison.resolve import Comparison, resolve
from ray_backfill.store import read_folder
from ray_backfill.training.settings import FitSettings

EVALUATION = Evaluation(("rm_naive", "procrustes_query"), ("random",), ("raw", "quantile", "logistic"))


def columns(n: int, seed: int, classes: int = 10) -> dict[str, np.ndarray]:
    rng, label = np.random.default_rng(seed), np.arange(n) % classes
    return {"old": rng.normal(size=(n, 4)) + label[:, None], "new": rng.normal(size=(n, 5)), "label": label}


def resolved(path: Path, train: int, how: Evaluation = EVALUATION, classes: int = 10) -> Comparison:
    rb.write_folder(path, columns(40, 0), train=columns(train, 1, classes))
    return resolve(read_folder(path), how, FitSettings())


def test_merges_are_fitted_on_items_that_no_map_has_seen(tmp_path: Path) -> None:
    comparison = resolved(tmp_path, 10 * FEWEST_ITEMS)
    items, part = comparison.merges.items, comparison.folder.validation
    assert items is not None
    assert part is not None
    assert (items.gallery["old"] == part.old).all()
    assert items.query is items.gallery
    np.testing.assert_array_equal(comparison.merges.label, part.label)
    assert not any("merges" in note for note in comparison.notes)


@pytest.mark.parametrize("train", [300, 10 * FEWEST_ITEMS - 100])
def test_too_few_of_them_leave_the_train_split_and_a_note(train: int, tmp_path: Path) -> None:
    comparison = resolved(tmp_path, train)
    items, fitted = comparison.merges.items, comparison.folder.train
    assert items is not None
    assert fitted is not None
    assert (items.gallery["old"] == fitted.old).all()
    assert comparison.notes[-1].startswith("The merges (quantile, logistic) were fitted on the same items as the maps")
    assert f"fewer than {FEWEST_ITEMS}" in comparison.notes[-1]


def test_without_maps_or_without_fitted_merges_there_is_nothing_to_note(tmp_path: Path) -> None:
    assert resolved(tmp_path / "a", 300, replace(EVALUATION, methods=("rm_naive",))).notes == ()
    assert resolved(tmp_path / "b", 300, replace(EVALUATION, merges=("raw", "rrf"))).notes == ()
