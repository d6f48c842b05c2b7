"""A plugin by which the default recipe is small and has few methods, so that its command needs no option."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_backfill.images.datasets import landmarks
from ray_backfill.recipes import ModelRecipe, Recipe
from ray_backfill.recipes.table import SMALL

(_OURS,) = (row for row in SMALL if row.name == "landmarks")


def _small(root: Path | None, seed: int) -> Recipe[Any]:
    recipe = _OURS.build(root, seed)

    def quick(model: ModelRecipe) -> ModelRecipe:
        return replace(model, training=replace(model.training, epochs=1, batch=32))

    fits = replace(
        recipe.fits,
        heads=replace(recipe.fits.heads, epochs=2, items=4),
        transforms=replace(recipe.fits.transforms, epochs=2, hidden=16, batch=32),
    )
    images = landmarks.Settings(
        image_size=16, landmarks=8, train_images=200, gallery_images=60, queries=16, seed=recipe.images.seed
    )
    evaluation = replace(recipe.evaluation, methods=("rm_naive", "rm", "mcl"))
    old, new = quick(recipe.old), quick(recipe.new)
    return replace(recipe, images=images, old=old, new=new, fits=fits, evaluation=evaluation)


RECIPES = (replace(_OURS, build=_small),)
