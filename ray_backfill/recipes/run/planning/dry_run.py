"""--dry-run: everything that a run checks before it starts, then its plan as text."""

from typing import Any

from ray_backfill.core.errors import unknown_name
from ray_backfill.learn.methods import all_backbones, models_of
from ray_backfill.recipes import Recipe
from ray_backfill.recipes.run.checks import check_choices, check_evaluation, check_recipe
from ray_backfill.recipes.run.planning.counts import count_images
from ray_backfill.recipes.run.planning.describe import describe_plan
from ray_backfill.recipes.run.planning.plan import STAGES, plan_upgrade
from ray_backfill.recipes.run.planning.settings import PlanningSettings
from ray_backfill.workers.settings import EmbedActors, Workers


def dry_run(
    recipe: Recipe[Any],
    workers: Workers,
    actors: EmbedActors,
    settings: PlanningSettings,
    last_stage: str = STAGES[-1],
    model: str | None = None,
) -> str:
    """The plan up to ``last_stage`` (of ``STAGES``), as text. model: plan the training of this backbone only.

    Raises:
        InputError: The run would be refused as well, as far as this can be checked with the available data.
    """
    check_choices(recipe)
    kinds = all_backbones()
    models = models_of(recipe.evaluation.find_methods())
    if model is not None:
        if model not in ("old", "new", *kinds):
            raise unknown_name("model", model, ("old", "new", *kinds))
        models = ("old", model) if model in kinds and kinds[model].needs_old else (model,)
    counts = count_images(recipe)
    if counts.is_exact:
        check_recipe(recipe, workers.number, models)
        if model is None:
            check_evaluation(recipe, workers.number)
    stages = STAGES[: STAGES.index(last_stage) + 1]
    return describe_plan(plan_upgrade(recipe, counts, workers, actors, settings, models, stages))
