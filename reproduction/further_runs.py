"""Runs beside those of each seed: with the papers' settings, and with a new model that was trained longer."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray_backfill.compare.fits import chosen
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.stages import is_finished
from ray_backfill.learn.methods import CONTROLS, all_backbones
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes import Recipe, load_recipe
from ray_backfill.recipes.run.pipeline import run_recipe
from ray_backfill.recipes.table import fits_of_papers
from ray_backfill.workers.settings import Context
from reproduction.runs import SeedRun
from reproduction.settings import Experiment


def published_fits(recipe: Recipe[Any]) -> FitSettings:
    """The papers' settings of all fits, for a recipe that is not the papers'.

    The recipe keeps its classification loss, its distance, the blocks of psi and rho, and its seed.
    """
    heads, classification = recipe.fits.heads, recipe.fits.transforms.loss.classification
    return fits_of_papers(heads.blocks, classification, recipe.evaluation.distance, heads.seed)


def run_published(experiment: Experiment, run: SeedRun, context: Context, order: str) -> SeedRun:
    """Fit methods with the papers' settings on the embeddings of a seed's run: ``seed-<n>/published``.

    Methods whose settings are the papers' anyway are not fitted again, nor are controls, which no paper has. context:
    with the settings that were chosen for the run.
    """
    recipe = _in_one_order(experiment, run.seed, order)
    fits, distance = published_fits(recipe), recipe.evaluation.distance
    used = chosen(context.chosen, recipe.fits)
    names = tuple(
        method.name
        for method in recipe.evaluation.named.methods
        if method.fit is not None
        and method.family != CONTROLS
        and method.fit.recorded(fits, distance) != method.fit.recorded(used.get(method.name, recipe.fits), distance)
    )
    seed = run.folder.parent
    recipe = replace(recipe, fits=fits, evaluation=replace(recipe.evaluation, methods=names))
    where = replace(context, out=seed / "published", recipe=experiment.recipe, chosen=())
    return SeedRun(run.seed, evaluate_folder(seed / "embeddings", recipe.evaluation, fits, where, asdict(recipe)))


def long_of(experiment: Experiment, runs: tuple[SeedRun, ...]) -> tuple[SeedRun, ...]:
    """The runs whose new model is also trained longer."""
    if not experiment.long_epochs:
        return ()
    return runs if experiment.long_seeds == "all" else runs[:1]


def run_long(experiment: Experiment, run: SeedRun, context: Context, order: str) -> SeedRun:
    """Run all methods with a new model that is trained longer, and so are models like it: ``seed-<n>-long``."""
    recipe, seed = _in_one_order(experiment, run.seed, order), run.folder.parent
    training = replace(recipe.new.training, epochs=experiment.long_epochs)
    out = seed.with_name(f"{seed.name}-long")
    for model in ("old", *(kind.name for kind in all_backbones().values() if kind.like == "old")):
        _copy_finished(seed / "backbones" / model, out / "backbones" / model)
    where = replace(context, out=out, recipe=experiment.recipe)
    return SeedRun(run.seed, run_recipe(replace(recipe, new=replace(recipe.new, training=training)), where))


def _in_one_order(experiment: Experiment, seed: int, order: str) -> Recipe[Any]:
    """The recipe with all methods, in one order by its primary metric."""
    recipe = load_recipe(experiment.recipe, experiment.data_root, seed)
    how = recipe.evaluation
    one = replace(how, methods=experiment.methods, orders=(order,), merges=("raw",), metrics=how.metrics[:1])
    return replace(recipe, evaluation=one)


def _copy_finished(stage: Path, copy: Path) -> None:
    """Copy a finished stage, unless the copy is there; a copy that was interrupted is made again."""
    if is_finished(stage) and not copy.exists():
        part = copy.with_name(f"{copy.name}.part")
        shutil.copytree(stage, part, dirs_exist_ok=True)
        part.rename(copy)
