"""A live drill of a recipe: from images to the state before the backfill, then the drill."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray_backfill.compare.resolve import resolve
from ray_backfill.core.stages import is_finished
from ray_backfill.data.folder import read_folder
from ray_backfill.drill.ray.embedding import FromImages
from ray_backfill.drill.run import check_drill, check_room, run_resolved
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.engine.index import check_index
from ray_backfill.images.datasets import open_images
from ray_backfill.learn.methods import models_of
from ray_backfill.learn.sides import old_models
from ray_backfill.recipes import Recipe
from ray_backfill.recipes.run.checks import check_evaluation, check_recipe
from ray_backfill.recipes.run.embed import embed_stage
from ray_backfill.recipes.run.images import recipe_classes, train_recipe_backbone
from ray_backfill.workers.context import Context
from ray_backfill.workers.session import session


def drill_recipe(recipe: Recipe[Any], live: LiveSettings, context: Context) -> Path:
    """Backfill a recipe's gallery for real, under traffic; returns the folder with the report.

    Raises:
        InputError: Settings, data or ``out`` are wrong; raised before any computation where possible.
    """
    method, evaluation = check_drill(recipe.evaluation, live)
    recipe, out, actors = replace(recipe, evaluation=evaluation), context.out, context.actors
    roles = models_of(evaluation.named_methods())
    check_recipe(recipe, 1, [role for role in roles if not is_finished(out / "backbones" / role)])
    check_evaluation(recipe, 1)
    for settings, model in ((live.old_index, recipe.old), (live.new_index, recipe.new)):
        check_index(settings, model.backbone.dim, evaluation.distance)
    with session():
        check_room(live, actors)
        backbones = {role: train_recipe_backbone(recipe, role, context) for role in roles}
        # Without separate queries, gallery items serve as queries, so all models embed the gallery.
        gallery_models = old_models(method) if "queries" in open_images(recipe.images).splits else None
        _, classes = recipe_classes(recipe)
        before = embed_stage(
            out / "before", recipe.source, backbones, classes, recipe.new.training, recipe.embed, actors,
            gallery_models, context.overwrite,
        )  # fmt: skip
        folder = read_folder(before, roles, gallery_needs=("old",))
        number, on_gpu = check_room(live, actors)
        source = FromImages(
            recipe.images, backbones, folder.gallery.stored, recipe.embed.batch, max(1, int(actors.cpus)), on_gpu,
            zero_is_broken=evaluation.distance == "cosine",
        )  # fmt: skip
        comparison = resolve(folder, evaluation, recipe.fits, from_images=True, to_come=roles)
        context = replace(context, actors=replace(actors, number=number))
        return run_resolved(comparison, method, source, recipe.fits, live, context, asdict(recipe))
