"""Which items merges are fitted on: those that no map has seen, if there are enough of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare import fitted
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import FEWEST_ITEMS, FittedMaps
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.data.folder import read_folder
from ray_backfill.engine.merges import BEST, fit_merge
from ray_backfill.engine.systems import UpgradePair
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings

EVALUATION = Evaluation(("rm_naive", "procrustes_query"), ("random",), ("raw", "quantile", "logistic"))


def columns(n: int, seed: int, classes: int = 10) -> dict[str, np.ndarray]:
    rng, label = np.random.default_rng(seed), np.arange(n) % classes
    return {"old": rng.normal(size=(n, 4)) + label[:, None], "new": rng.normal(size=(n, 5)), "label": label}


def resolved(path: Path, train: int, how: Evaluation = EVALUATION, classes: int = 10) -> Comparison:
    rb.write_folder(path, columns(40, 0), train=columns(train, 1, classes))
    return resolve(read_folder(path), how.named, FitSettings())


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


@pytest.mark.parametrize("others", [(), ("csls",)], ids=["alone", "beside another"])
@pytest.mark.parametrize(("train", "is_chosen"), [(600, True), (300, False)])
def test_the_best_merge_is_chosen_on_unseen_items_even_if_they_are_few(
    train: int, is_chosen: bool, others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that fits the distances of maps badly on the few items is fitted on the many, as every other one is."""
    comparison = resolved(tmp_path, train, replace(EVALUATION, merges=(BEST, *others)))
    (mapped,) = (method for method in comparison.methods if method.fit)
    assert mapped.fit is not None
    save_network(tmp_path / "map", mapped.fit.fit(train_set(comparison.folder), FitSettings(), "cosine").network)
    seen: list[int] = []

    def choose(pair: UpgradePair, label: object, distance: str, seed: int, names: tuple[str, ...]) -> str:
        seen.append(pair.n_gallery)
        return "csls"

    monkeypatch.setattr(fitted, "choose_merge", choose)
    merge = comparison.merges.of(mapped, FittedMaps({mapped.name: tmp_path / "map"}))[BEST]
    assert seen == ([60] if is_chosen else [])
    assert (merge.name == "csls") == is_chosen
    if merge.references:
        assert comparison.folder.train
        assert len(merge.references[0].gallery) == len(comparison.folder.train)


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
    comparison = resolve(read_folder(tmp_path), how.named, FitSettings())
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
    comparison = resolve(
        read_folder(tmp_path),
        Evaluation(("rm_naive", "least_squares_gallery"), ("random",), (BEST,)).named,
        FitSettings(),
    )
    naive, mapped = comparison.methods[-2:]
    assert mapped.fit is not None
    network = mapped.fit.fit(train_set(comparison.folder), FitSettings(), "cosine").network
    assert comparison.merges.items is not None
    pair = mapped.pair(comparison.merges.items, network)
    assert fit_merge(BEST, pair, comparison.merges.label, "cosine").name != "raw"
    folder = tmp_path / "map"
    save_network(folder, network)
    maps = FittedMaps({mapped.name: folder})
    assert comparison.merges.of(mapped, maps)[BEST].name == "raw"
    assert set(comparison.merges.of(naive, maps)) == {BEST}
