"""Which backbones a run trains, like which of the two models each one is, and what takes part in its training."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core import stages
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, read_json, timed
from ray_backfill.images.datasets import open_images
from ray_backfill.learn.expressions import side
from ray_backfill.learn.methods import Method, find_methods, models_of
from ray_backfill.recipes import load_recipe
from ray_backfill.recipes.run import pipeline
from ray_backfill.recipes.run.checks import check_recipe, recipe_classes
from ray_backfill.recipes.run.pipeline import train_recipe_backbone
from ray_backfill.workers.settings import Context

RECIPE = load_recipe("landmarks")


def needing(*models: str) -> Method:
    return replace(find_methods(("rm_naive",))[0], backward=side(*models))


def test_methods_say_which_backbones_are_trained() -> None:
    assert models_of(find_methods(("old", "rm_naive"))) == ("old", "new")
    methods = [needing("old", "side"), needing("old", "bct"), needing("bct", "new")]
    assert models_of(methods) == models_of(methods[::-1]) == ("old", "new", "bct", "side")


def test_unknown_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown model 'teacher'; known: old, new, .*bct, .*side"):
        train_recipe_backbone(RECIPE, "teacher", Context(tmp_path))


@pytest.mark.parametrize(
    ("role", "like", "needs"), [("bct", "new", ["old"]), ("ract_hard", "new", ["old"]), ("side", "old", [])]
)
def test_each_kind_is_like_old_or_new(
    role: str, like: str, needs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Any, ...]] = []

    def record(*arguments: Any) -> Path:
        trained.append(arguments)
        return tmp_path

    monkeypatch.setattr(pipeline, "train_backbone_stage", record)
    monkeypatch.setattr(stages, "note_facts", lambda *_: None)
    train_recipe_backbone(RECIPE, role, Context(tmp_path))
    folders = [arguments[0] for arguments in trained]
    assert folders == [tmp_path / "backbones" / name for name in (*needs, role)]
    job, model = trained[-1][1], getattr(RECIPE, like)
    assert (job.backbone, job.training, job.kind) == (model.backbone, model.training, role)
    assert job.classes == recipe_classes(RECIPE)[like == "new"]
    assert job.old == (tmp_path / "backbones" / "old" if needs else None)


def test_no_backbone_learns_what_is_held_out_for_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(pipeline, "train_backbone_stage", lambda folder, job, *_: jobs.append(job))
    monkeypatch.setattr(stages, "note_facts", lambda *_: None)
    for role in ("old", "new"):
        train_recipe_backbone(RECIPE, role, Context(tmp_path))
    held = set(open_images(RECIPE.source).items("validation").ids_N.tolist())
    whole = len(open_images(RECIPE.images).items("train").ids_N)
    assert len(held) == pytest.approx(0.1 * whole, rel=0.05)
    assert len(jobs) == 2
    for job in jobs:
        assert not held & set(open_images(job.data).items("train").ids_N.tolist())


def test_what_cannot_be_trained_is_said_for_kinds_like_it() -> None:
    broken = replace(RECIPE, new=replace(RECIPE.new, training=replace(RECIPE.new.training, batch=1)))
    for model in ("new", "bct"):
        with pytest.raises(InputError, match="too few"):
            check_recipe(broken, 1, [model])
    check_recipe(broken, 1, ["old", "side"])


def test_the_seconds_of_a_stage_are_those_of_its_computation(tmp_path: Path) -> None:
    def make(settings: int, overwrite: bool = False) -> Path:
        if not begin_stage(tmp_path, RunKey("map", {"lr": settings}), overwrite):
            time.sleep(0.1 * settings)
            finish_stage(tmp_path)
        return tmp_path

    def seconds() -> float:
        return float(read_json(tmp_path / "manifest.json")["seconds"])

    timed(tmp_path, lambda: make(1))
    first = seconds()
    timed(tmp_path, lambda: make(1))
    assert seconds() == first >= 0.1
    timed(tmp_path, lambda: make(3, overwrite=True))
    assert seconds() >= 0.3
