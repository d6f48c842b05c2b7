"""Every recipe, found by itself: its settings are sound and can be written down."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ray_backfill.datasets import dataset_names
from ray_backfill.errors import InputError
from ray_backfill.models.backbones import check_arch
from ray_backfill.recipes import load_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_sound(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, tmp_path, seed=3)
    assert type(recipe.images).__module__.rsplit(".", 1)[-1] in dataset_names()
    for model in (recipe.old, recipe.new):
        check_arch(model.backbone, channels=3, image_size=64)
    assert recipe.old.training.seed != recipe.new.training.seed, "the same start would make the models alike"
    recipe.evaluation.check()
    assert json.loads(json.dumps(asdict(recipe)))["fits"]["heads"]["seed"] == 3
    assert recipe.evaluation.order_seed == 3


def test_recipes_say_what_they_need() -> None:
    complaints = []
    for name in recipe_names():
        try:
            load_recipe(name)
        except InputError as error:
            complaints.append(str(error))
    assert complaints
    assert all(text.startswith("this recipe needs --data-root: ") for text in complaints)
