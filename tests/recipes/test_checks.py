"""The guard: a fitted method that did not learn is marked and not recommended; a good one is neither."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare.analyses.checks import check_fits, is_better_on_queries
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_maps, replay_on_validation
from ray_backfill.compare.report import Results
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.data.folder import EmbeddingTable, read_folder
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings, HeadTraining, TransformTraining
from ray_backfill.workers.settings import Context

# A rank that leaves little of the map.
FITS = FitSettings(adapters=AdapterSettings(drift_rank=1))
EVALUATION = Evaluation(("rm_naive", "drift_low_rank", "least_squares_gallery"), ("random",), ("raw",), points=3)


def split(seed: int, n: int = 120) -> dict[str, Any]:
    """New embeddings; old ones are a rotation of them with noise."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(np.random.default_rng(99).normal(size=(6, 6)))[0]
    label = np.arange(n) % 12
    new = np.random.default_rng(7).normal(size=(12, 6))[label] + 0.6 * rng.normal(size=(n, 6))
    return {"old": new @ rotation + 0.3 * rng.normal(size=(n, 6)), "new": new, "label": label}


def folder_of(path: Path, train: dict[str, Any]) -> Path:
    return rb.write_folder(path, split(0), split(1), train)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("data") / "mine", split(2, 1200))


def run(data: Path, out: Path, how: Evaluation = EVALUATION, fits: FitSettings = FITS) -> Results:
    return rb.read_results(evaluate_folder(data, how, fits, Context(out)))


def test_a_method_that_did_not_learn_is_marked_and_a_good_one_is_not(data: Path, tmp_path: Path) -> None:
    results = run(data, tmp_path)
    found = {check.method: check for check in results.checks}
    assert found.keys() == {"drift_low_rank", "least_squares_gallery"}
    assert found["drift_low_rank"].is_worse
    assert found["drift_low_rank"].high < 0
    assert not found["least_squares_gallery"].is_worse
    assert found["least_squares_gallery"].difference > 0
    assert found["drift_low_rank"].queries == 120
    assert results.unlearned == {"drift_low_rank"}
    for check in results.checks:
        assert check.auc - check.auc_rm_naive == pytest.approx(check.difference)
        assert check.low <= check.difference <= check.high
    page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert f"{results.titles['drift_low_rank']} \u2021" in page
    assert f"{results.titles['least_squares_gallery']} \u2021" not in page
    areas = {row.method: row.auc for row in results.rows if row.metric == "mAP"}
    assert areas["drift_low_rank"] < areas["rm_naive"] < areas["least_squares_gallery"], "the gallery agrees"


@pytest.mark.full
def test_a_training_that_learned_nothing_is_marked(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    how = replace(EVALUATION, methods=("rm_naive", "fct"))
    good = FitSettings(transforms=TransformTraining(epochs=20, batch=128, lr=3e-3, hidden=32))
    bad = replace(good, transforms=replace(good.transforms, lr=1e5))
    assert run(data, tmp_path / "good", how, good).unlearned == set()
    assert run(data, tmp_path / "bad", how, bad).unlearned == {"fct"}


@pytest.mark.full
def test_a_fitted_reference_is_judged_by_raw_distances(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no other merge; the others are served by the one that suits them best."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", None)
    how = replace(EVALUATION, methods=("rm_naive", "rho_alone", "least_squares_gallery"), merges=("best",))
    results = run(data, tmp_path, how, FitSettings(heads=HeadTraining(epochs=1)))
    assert {check.method for check in results.checks} == {"rho_alone", "least_squares_gallery"}


def fitted(data: Path, out: Path) -> Comparison:
    comparison = resolve(read_folder(data), EVALUATION.named, FITS)
    return fit_maps(comparison, FITS, Context(out))[0]


def garbled(table: EmbeddingTable | None) -> EmbeddingTable:
    assert table is not None
    return replace(table, vectors={name: np.full_like(v, np.nan) for name, v in table.vectors.items()}, label=None)


def test_the_guard_reads_neither_gallery_nor_queries_nor_what_was_fitted_on(data: Path, tmp_path: Path) -> None:
    comparison = fitted(data, tmp_path)
    rows = check_fits(comparison, {})
    folder = comparison.folder
    gallery, queries, train = (garbled(each) for each in (folder.gallery, folder.queries, folder.train))
    blinded = replace(folder, gallery=gallery, queries=queries, train=train)
    assert check_fits(replace(comparison, folder=blinded), {}) == rows
    blind = replace(comparison, folder=replace(folder, validation=garbled(folder.validation)))
    assert check_fits(blind, {}) is None, "without labels nothing can be judged"


def test_maps_are_fitted_without_the_validation_part(data: Path, tmp_path: Path) -> None:
    """The least-squares map, recomputed from the items that are left."""
    comparison = fitted(data, tmp_path)
    train, part = comparison.folder.train, comparison.folder.validation
    assert train is not None
    assert part is not None
    assert len(train) + len(part) == 1200
    (method,) = [method for method in comparison.methods if method.name == "least_squares_gallery"]
    found = comparison.pair(method).backward.gallery
    gallery = comparison.folder.gallery.old

    def unit(v: np.ndarray) -> np.ndarray:
        return np.asarray(v / np.linalg.norm(v, axis=1, keepdims=True), np.float64)

    def mapped(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        x = np.column_stack([unit(old), np.ones(len(old))])
        weights = np.linalg.lstsq(x, unit(new), rcond=None)[0]
        return np.column_stack([unit(gallery), np.ones(len(gallery))]) @ weights

    np.testing.assert_allclose(unit(found), unit(mapped(train.old, train.new)), atol=1e-5)
    whole = mapped(np.vstack([train.old, part.old]), np.vstack([train.new, part.new]))
    assert np.abs(unit(found) - unit(whole)).max() > 1e-4


def test_finished_results_are_not_checked_again_but_a_lost_table_is(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(data, tmp_path)
    asked: list[int] = []

    def counted(*arguments: Any, **more: Any) -> Any:
        asked.append(1)
        return replay_on_validation(*arguments, **more)

    monkeypatch.setattr("ray_backfill.compare.fits.replay_on_validation", counted)
    assert run(data, tmp_path).checks == before.checks
    assert not asked
    (tmp_path / "results" / "checks.parquet").unlink()
    assert run(data, tmp_path).checks == before.checks
    assert len(asked) == 1


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_method_that_is_better_on_the_queries_is_not_marked(
    is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the validation items fall; unless the queries are train items."""

    def replayed(*arguments: Any, **more: Any) -> Any:
        curves = dict(replay_on_validation(*arguments, **more))
        return curves | {("least_squares_gallery", "raw"): curves["drift_low_rank", "raw"]}

    monkeypatch.setattr("ray_backfill.compare.fits.replay_on_validation", replayed)
    train = {name: np.concatenate([split(2, 1200)[name], split(1)[name]]) for name in ("old", "new", "label")}
    folder = rb.write_folder(tmp_path / "mine", split(0), split(1), train if is_seen else split(2, 1200))
    results = run(folder, tmp_path / "out")
    (check,) = (row for row in results.checks if row.method == "least_squares_gallery")
    assert check.high < 0
    assert check.is_worse == is_seen
    areas = {row.method: row.auc for row in results.rows if row.metric == "mAP"}
    assert areas["least_squares_gallery"] > areas["rm_naive"]


def test_better_on_the_queries_means_better_than_the_best_merge_without_training() -> None:
    """Raw distances that do not compare make every other method look good."""

    def curve(auc: float) -> Any:
        def difference(other: Any, _: str) -> Any:
            return SimpleNamespace(low=auc - other.area - 0.01)

        return SimpleNamespace(curve=SimpleNamespace(area=auc, auc=lambda _: auc, difference=difference))

    curves = {("rm_naive", "random", "raw"): curve(0.1), ("rm_naive", "random", "csls"): curve(0.5)}
    for auc, is_better in ((0.4, False), (0.505, False), (0.52, True)):
        of_method = {("ridge", "random", "raw"): curve(0.3), ("ridge", "random", "csls"): curve(auc)}
        assert is_better_on_queries(curves | of_method, "ridge", "mAP") == is_better
    assert not is_better_on_queries({("ridge", "random", "raw"): curve(0.3)}, "ridge", "mAP")


@pytest.mark.parametrize("learned_in", ["raw", "quantile", None])
def test_a_method_is_marked_only_if_it_is_worse_in_each_merge(
    learned_in: str | None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed(*arguments: Any, **more: Any) -> Any:
        curves = dict(replay_on_validation(*arguments, **more))
        if learned_in:
            curves["drift_low_rank", learned_in] = curves["least_squares_gallery", learned_in]
        return curves

    monkeypatch.setattr("ray_backfill.compare.fits.replay_on_validation", replayed)
    results = run(data, tmp_path, replace(EVALUATION, merges=("raw", "quantile")))
    (check,) = (row for row in results.checks if row.method == "drift_low_rank")
    assert check.is_worse == (learned_in is None)
    assert (check.difference > 0) == (learned_in is not None)


@pytest.mark.parametrize(
    ("train", "reason", "items"),
    [
        ({"label": None}, "train.parquet has no column 'label', so no answer is known to be right", 120),
        ({"label": np.arange(1200)}, "the train split is too small to hold out 50 items that have right answers", None),
    ],
)
def test_what_cannot_be_judged_is_called_not_checked(
    train: dict[str, Any], reason: str, items: int | None, tmp_path: Path
) -> None:
    columns = {name: values for name, values in (split(2, 1200) | train).items() if values is not None}
    results = run(folder_of(tmp_path / "data", columns), tmp_path / "out")
    assert results.checks == ()
    assert results.manifest.data["not_checked"].startswith(reason)
    assert results.manifest.data.get("validation_items") == items
    assert not (tmp_path / "out" / "results" / "checks.parquet").exists()
    page = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    assert "Fitted methods were not checked" in page


def test_a_run_that_fits_nothing_says_nothing(data: Path, tmp_path: Path) -> None:
    results = run(data, tmp_path, replace(EVALUATION, methods=("rm_naive",)))
    assert results.checks == ()
    assert not {"validation_items", "not_checked"} & results.manifest.data.keys()


def test_the_first_table_is_checked_too(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[ResultsData] = []

    class StopHereError(Exception):
        pass

    def show(results: ResultsData, to_come: list[str]) -> None:
        shown.append(results)
        raise StopHereError

    how = replace(EVALUATION, methods=(*EVALUATION.methods, "fct"))
    with pytest.raises(StopHereError):
        evaluate_folder(data, how, FITS, Context(tmp_path), show_first=show)
    assert shown[0].unlearned == {"drift_low_rank"}
