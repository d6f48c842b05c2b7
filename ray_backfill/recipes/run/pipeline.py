"""The whole pipeline: backbones, embeddings, maps, replay, report. Finished stages are kept and reused.

Folders of a run: backbones/old, backbones/new, backbones/<kind> for methods that need another one, embeddings (the data
contract), maps/<method>, results.
"""

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.ray import check_shards, for_maps
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.compare.size import check_memory
from ray_backfill.core.stages import is_finished
from ray_backfill.images.datasets import open_images
from ray_backfill.learn.methods import models_of
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes import Recipe
from ray_backfill.recipes.run.checks import check_evaluation, check_recipe
from ray_backfill.recipes.run.images import embed_recipe, timed
from ray_backfill.recipes.run.synthetic import SyntheticGallery, draw_gallery
from ray_backfill.workers.context import Context
from ray_backfill.workers.session import placed, session


def run_recipe(recipe: Recipe[Any], context: Context) -> Path:
    """Run everything from images to the report; returns the results folder.

    Raises:
        InputError: Settings, data or ``out`` are wrong; raised before any computation where possible.
    """
    methods, out = recipe.evaluation.find_methods(), context.out
    models = models_of(methods)
    # What is finished may have other settings, so --overwrite takes nothing for granted.
    to_train = [model for model in models if context.overwrite or not is_finished(out / "backbones" / model)]
    check_recipe(recipe, 1, to_train)
    check_evaluation(recipe, 1)
    source = open_images(recipe.source)
    n_queries = len(source.items("queries" if "queries" in source.splits else "gallery"))
    check_memory(recipe.evaluation, len(methods), n_queries)
    context.place.check_local()
    stages = [out / "backbones" / model for model in models] + [out / "embeddings"]
    stages += [out / "maps" / method.name for method in methods if method.fit]
    # One Ray for all stages, because starting it takes seconds; none if everything is already finished.
    is_complete = not context.overwrite and all(is_finished(stage) for stage in stages)
    with nullcontext() if is_complete else session():
        if not is_complete:
            workers, actors = context.workers, context.actors
            number, _ = placed(workers.number, workers.cpus, "--workers")
            placed(actors.number, actors.cpus, "--actors", spare_cpus=1)
            check_recipe(recipe, number, to_train)
            check_evaluation(recipe, for_maps(workers).number)
            check_shards(context.place.shards, context.place.device)
        embeddings = embed_recipe(recipe, context)
        return evaluate_folder(embeddings, recipe.evaluation, recipe.fits, context, asdict(recipe))


def evaluate_synthetic(gallery: SyntheticGallery, evaluation: Evaluation, fits: FitSettings, context: Context) -> Path:
    """Draw a synthetic gallery into ``out/embeddings``, then ``evaluate_folder``."""
    evaluation.check()
    check_memory(evaluation, len(evaluation.find_methods()), gallery.queries)
    context.place.check_local()
    data = context.out / "embeddings"
    timed(data, lambda: draw_gallery(gallery, data, context.overwrite))
    return evaluate_folder(data, evaluation, fits, context)
