"""Settings are chosen on the validation split alone, kept with the run, and used by the fits."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import Trial, chosen, tune_stage
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import finish_stage, read_json
from ray_backfill.data.folder import read_folder
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.fit import Tuned
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings
from ray_backfill.recipes import load_recipe
from ray_backfill.recipes.run.checks import check_evaluation
from ray_backfill.workers.settings import Context, Workers

EVALUATION = Evaluation(("ridge_query", "procrustes_query"), ("random",), points=3)
# Far too strong a penalty, which a validation split shows.
FITS = FitSettings(adapters=AdapterSettings(ridge=300.0), tune=10)
run = Trial.run


def split(seed: int, n: int = 120) -> dict[str, Any]:
    """New embeddings; old ones are a rotation of them with noise."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(np.random.default_rng(99).normal(size=(6, 6)))[0] * np.array([4, 4, 1, 1, 0.3, 0.3])
    label = np.arange(n) % 12
    new = np.random.default_rng(7).normal(size=(12, 6))[label] + 0.6 * rng.normal(size=(n, 6))
    return {"old": new @ rotation + 0.05 * rng.normal(size=(n, 6)), "new": new, "label": label}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = rb.write_folder(tmp_path / "data", split(0), split(1), split(2))
    other = rb.write_folder(tmp_path / "other", split(3), split(1), split(2))
    shutil.copy(other / "gallery.parquet", folder / "validation.parquet")
    return folder


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of formulas take milliseconds and need no Ray. ``tests/cluster`` has tasks."""
    monkeypatch.setattr("ray.init", None)


def test_the_best_on_the_validation_split_is_chosen_and_kept(data: Path, tmp_path: Path) -> None:
    (tuned,) = tune_stage(
        tmp_path / "t", read_folder(data), find_methods(EVALUATION.methods), FITS, EVALUATION, Workers()
    )
    assert (tuned.method, tuned.metric, tuned.trials) == ("ridge_query", "mAP", 10)
    scores = [read_json(tmp_path / "t" / "ridge_query" / str(i) / "manifest.json")["score"] for i in range(10)]
    assert tuned.given == scores[0]
    assert tuned.score == max(scores) > scores[0]
    settings = chosen([tuned], FITS)["ridge_query"]
    assert settings.adapters.ridge == tuned.values["adapters.ridge"] < 300


def test_the_evaluation_split_is_not_read(data: Path, tmp_path: Path) -> None:
    methods = find_methods(EVALUATION.methods)
    folder = read_folder(data)
    (before,) = tune_stage(tmp_path / "before", folder, methods, FITS, EVALUATION, Workers())
    for name in ("gallery", "queries"):
        (data / f"{name}.parquet").unlink()
    assert tune_stage(tmp_path / "after", folder, methods, FITS, EVALUATION, Workers()) == (before,)


def test_results_use_and_tell_what_was_chosen(data: Path, tmp_path: Path) -> None:
    plain = rb.read_results(evaluate_folder(data, EVALUATION, replace(FITS, tune=0), Context(tmp_path / "plain")))
    out = evaluate_folder(data, EVALUATION, FITS, Context(tmp_path / "tuned"))
    results = rb.read_results(out)
    (tuned,) = results.manifest.tuned
    map_settings = read_json(tmp_path / "tuned" / "maps" / "ridge_query" / "manifest.json")["settings"]
    assert map_settings["adapters"]["ridge"] == tuned.values["adapters.ridge"]
    first, second = ({row.method: row.auc for row in each.rows if row.metric == "mAP"} for each in (plain, results))
    assert second["ridge_query"] > first["ridge_query"]
    assert second["procrustes_query"] == first["procrustes_query"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Settings chosen on the validation split" in page
    assert f"adapters.ridge {tuned.values['adapters.ridge']:g}" in page
    assert "Settings chosen" not in (tmp_path / "plain" / "results" / "report.html").read_text(encoding="utf-8")


def test_what_another_run_chose_is_used(data: Path, tmp_path: Path) -> None:
    """Instead of the given settings, without a trial; another choice is another run."""
    (data / "validation.parquet").unlink()
    given = Tuned("ridge_query", "mAP", 10, {"adapters.ridge": 0.03}, 0.5, 0.4)
    context = Context(tmp_path / "out", chosen=(given,))
    out = evaluate_folder(data, EVALUATION, replace(FITS, tune=0), context)
    assert rb.read_results(out).manifest.tuned == (given,)
    found = read_json(tmp_path / "out" / "maps" / "ridge_query" / "manifest.json")["settings"]
    assert found["adapters"]["ridge"] == 0.03
    assert not (tmp_path / "out" / "tuning").exists()
    other = replace(context, chosen=(replace(given, values={"adapters.ridge": 0.3}),))
    with pytest.raises(InputError, match="other settings"):
        evaluate_folder(data, EVALUATION, replace(FITS, tune=0), other)
    with pytest.raises(InputError, match="other settings"):
        evaluate_folder(data, EVALUATION, replace(FITS, tune=0), replace(context, chosen=()))


def test_finished_trials_are_kept(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = find_methods(EVALUATION.methods)
    few = tune_stage(tmp_path, read_folder(data), methods, replace(FITS, tune=3), EVALUATION, Workers())
    done: list[str] = []

    def record(trial: Trial) -> None:
        done.append(trial.out.name)
        run(trial)

    monkeypatch.setattr(Trial, "run", record)
    tune_stage(tmp_path, read_folder(data), methods, replace(FITS, tune=5), EVALUATION, Workers())
    assert done == ["3", "4"]
    assert tune_stage(tmp_path, read_folder(data), methods, replace(FITS, tune=3), EVALUATION, Workers()) == few
    with pytest.raises(InputError, match="belongs to a run with other settings"):
        tune_stage(tmp_path, read_folder(data), methods, FITS, replace(EVALUATION, metrics=("CMC@1",)), Workers())


def test_trials_that_diverged_are_not_chosen(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(trial: Trial) -> None:
        if trial.out.name == "2":
            run(trial)
        else:
            finish_stage(trial.out, {"score": None})

    monkeypatch.setattr(Trial, "run", diverge)
    (tuned,) = tune_stage(tmp_path, read_folder(data), find_methods(EVALUATION.methods), FITS, EVALUATION, Workers())
    assert tuned.given is None
    assert tuned.score == read_json(tmp_path / "ridge_query" / "2" / "manifest.json")["score"]


def test_a_folder_without_a_validation_split_holds_a_part_of_its_train_split_out(tmp_path: Path) -> None:
    folder = rb.write_folder(tmp_path / "data", split(0), split(1), split(2, 720))
    results = rb.read_results(evaluate_folder(folder, EVALUATION, FITS, Context(tmp_path / "out")))
    (tuned,) = results.manifest.tuned
    assert tuned.trials == 10
    assert tuned.values["adapters.ridge"] < 300
    assert results.manifest.data["validation_items"] == 72
    assert results.manifest.data["validation_from"] == "train.parquet, held out from every fit"


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (split(2), "the train split is too small to hold out 50 items"),
        ({name: values for name, values in split(2, 720).items() if name != "label"}, "train.parquet has no column"),
    ],
)
def test_where_nothing_can_be_judged_nothing_is_tuned(train: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = rb.write_folder(tmp_path / "data", split(0), split(1), train)
    with pytest.raises(InputError, match=rf"--tune cannot judge settings: {reason}.*; leave it out, or put"):
        evaluate_folder(folder, EVALUATION, FITS, Context(tmp_path / "out"))


def test_a_recipe_without_a_validation_split_is_refused_before_anything_runs() -> None:
    recipe = load_recipe("landmarks")
    check_evaluation(replace(recipe, fits=FITS), 1)
    whole = replace(recipe, protocol=replace(recipe.protocol, validation=0.0), fits=FITS)
    with pytest.raises(InputError, match=r"--tune needs a validation split.*--protocol\.validation 0\.1"):
        check_evaluation(whole, 1)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(InputError, match="--tune must not be negative"):
        FitSettings(tune=-1)
