"""Which items merges are fitted on: those that no map has seen, if there are enough of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare import fitted
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import FittedMaps
from ray_backfill.compare.resolve import Comparison
from ray_backfill.engine.merges import BEST, Merge
from ray_backfill.engine.systems import UpgradePair
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings
from tests.compare.folder import resolved

EVALUATION = Evaluation(("rm_naive", "procrustes_query"), ("random",), ("raw", "quantile", "logistic"))


def columns(n: int, seed: int, classes: int = 10) -> dict[str, np.ndarray]:
    rng, label = np.random.default_rng(seed), np.arange(n) % classes
    return {"old": rng.normal(size=(n, 4)) + label[:, None], "new": rng.normal(size=(n, 5)), "label": label}


def with_train(path: Path, train: int, how: Evaluation = EVALUATION, classes: int = 10) -> Comparison:
    rb.write_folder(path, columns(40, 0), train=columns(train, 1, classes))
    return resolved(path, how)


@pytest.mark.parametrize("train", [300, 1980, 2020])
def test_merges_are_fitted_on_the_items_of_the_maps(train: int, tmp_path: Path) -> None:
    """Whatever their number: a few items more do not change what a merge is fitted on."""
    comparison = with_train(tmp_path, train)
    items, fitted = comparison.merges.items, comparison.folder.train
    assert items is not None
    assert fitted is not None
    assert (items.gallery["old"] == fitted.old).all()
    assert items.query is items.gallery
    np.testing.assert_array_equal(comparison.merges.label, fitted.label)


@pytest.mark.parametrize("others", [(), ("csls",)], ids=["alone", "beside another"])
@pytest.mark.parametrize(("train", "is_chosen"), [(600, True), (2400, True), (300, False)])
def test_what_is_judged_on_unseen_items_is_what_is_served(
    train: int, is_chosen: bool, others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = with_train(tmp_path, train, replace(EVALUATION, merges=(BEST, *others)))
    (mapped,) = (method for method in comparison.methods if method.fit)
    assert mapped.fit is not None
    save_network(tmp_path / "map", mapped.fit.fit(train_set(comparison.folder), FitSettings(), "cosine").network)
    judged: list[Merge] = []

    def choose(merges: dict[str, Merge], unseen: UpgradePair, label: object, distance: str, seed: int) -> str:
        assert unseen.n_gallery == train / 10
        judged.append(merges["csls"])
        return "csls"

    monkeypatch.setattr(fitted, "choose_fitted", choose)
    maps = FittedMaps({mapped.name: tmp_path / "map"})
    for _ in range(2):  # chosen once
        served = comparison.merges.of(mapped, maps)[BEST]
        assert (served.name == "csls") == is_chosen
        if is_chosen:
            (same,) = judged
            for ours, theirs in zip(served.references or (), same.references or (), strict=True):
                np.testing.assert_array_equal(ours.gallery, theirs.gallery)
                assert len(ours.gallery) == min(train * 9 // 10, 2048)
    assert len(judged) == is_chosen


@pytest.mark.parametrize(("asked", "are_references"), [(99, False), (100, True)])
def test_queries_are_the_references_of_items_without_labels(asked: int, are_references: bool, tmp_path: Path) -> None:
    gallery, train, queries = columns(40, 0), columns(600, 1), columns(asked, 2)
    del train["label"]
    rb.write_folder(tmp_path, gallery, queries, train=train)
    comparison = resolved(tmp_path, Evaluation(("rm_naive", "slerp"), ("random",), (BEST, "csls", "zscore")))
    rank_merge = next(method for method in comparison.methods if method.name == "rm_naive")
    merges = comparison.merges.of(rank_merge, FittedMaps())
    fitted_on = comparison.merges.items
    assert fitted_on is not None
    for references, model in zip(merges["csls"].references or (), ("old", "new"), strict=True):
        expected = queries[model] if are_references else fitted_on.gallery[model]
        np.testing.assert_array_equal(references.query, expected.astype(np.float32))
        np.testing.assert_array_equal(references.gallery, fitted_on.gallery[model].astype(np.float32))
    if are_references:  # a trial without labels cannot see that it helps
        assert merges[BEST].name == "csls"


@pytest.mark.parametrize("rows", [1, 160])
def test_what_is_chosen_on_a_validation_part_can_be_fitted(rows: int, tmp_path: Path) -> None:
    """The part has labels, the train split has none; one row is too little to choose by."""
    train, part = columns(400, 1), columns(rows, 2)
    del train["label"]
    rb.write_folder(tmp_path, columns(40, 0), train=part)
    (tmp_path / "train.parquet").rename(tmp_path / "validation.parquet")
    rb.write_folder(tmp_path / "other", columns(40, 0), train=train)
    (tmp_path / "other" / "train.parquet").rename(tmp_path / "train.parquet")
    how = replace(EVALUATION, methods=("procrustes_query",), merges=(BEST,))
    comparison = resolved(tmp_path, how)
    assert "isotonic" not in comparison.merges.names_to_choose
    mapped = comparison.methods[-1]
    assert mapped.fit is not None
    save_network(tmp_path / "map", mapped.fit.fit(train_set(comparison.folder), FitSettings(), "cosine").network)
    assert set(comparison.merges.of(mapped, FittedMaps({mapped.name: tmp_path / "map"}))) == {BEST}


def test_what_was_fitted_on_the_items_keeps_raw_distances(tmp_path: Path) -> None:
    """The distances of a map are too small there: a merge that stretches them is best on these items only."""
    rng, label = np.random.default_rng(0), np.arange(400) % 20
    centres = rng.normal(size=(20, 120))

    def items(y: np.ndarray) -> dict[str, np.ndarray]:
        return {m: (centres[y] + 1.5 * rng.normal(size=(len(y), 120))).astype(np.float32) for m in ("old", "new")}

    rb.write_folder(tmp_path, *(items(y) | {"label": y} for y in (label, label[:60], label)))
    comparison = resolved(tmp_path, Evaluation(("rm_naive", "least_squares_gallery"), ("random",), (BEST,)))
    naive, mapped = comparison.methods[-2:]
    assert mapped.fit is not None
    network = mapped.fit.fit(train_set(comparison.folder), FitSettings(), "cosine").network
    assert comparison.merges.unseen is None
    folder = tmp_path / "map"
    save_network(folder, network)
    maps = FittedMaps({mapped.name: folder})
    assert comparison.merges.of(mapped, maps)[BEST].name == "raw"
    assert set(comparison.merges.of(naive, maps)) == {BEST}
