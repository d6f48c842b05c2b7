"""``ray-backfill train``: train one backbone of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from ray_backfill.cli import shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import RecipeJob, check_names, prepared, recipe_options, running


@dataclass(frozen=True, kw_only=True)
class TrainJob(RecipeJob):
    """Training of one backbone of a recipe."""

    model: str
    """Backbone to train: old, new, or another one that some methods need (advbct, bct, dsimplex, ...)."""


def options(arguments: Sequence[str]) -> Options:
    """The options of a recipe, and which backbone to train."""
    return recipe_options(TrainJob, arguments, model=REQUIRED)


def run(job: TrainJob) -> None:
    """Train, and print the path of the backbone."""
    check_names(job)
    from ray_backfill.recipes.run.pipeline import train_recipe_backbone

    prepared(job, last_stage="backbones", model=job.model)
    with running(job) as context:
        folder = train_recipe_backbone(job.settings, job.model, context)
    print(f"backbone: {shown(folder)}")
