"""``ray-backfill train``: train one backbone of a recipe."""

from collections.abc import Sequence
from typing import Any

import tyro

from ray_backfill.cli.options import TrainJob
from ray_backfill.cli.parse import check_names, read_recipe_options
from ray_backfill.cli.shell import shown


def read(arguments: Sequence[str]) -> Any:
    """The options of a recipe, and which backbone to train."""
    return read_recipe_options(TrainJob, arguments, model=tyro.MISSING)


def run(arguments: Sequence[str]) -> None:
    """Train, and print the path of the backbone."""
    job = read(arguments)
    check_names(job)
    from ray_backfill.cli.context import prepared, running
    from ray_backfill.recipes.run.pipeline import train_recipe_backbone

    prepared(job, last_stage="backbones", model=job.model)
    with running(job) as context:
        folder = train_recipe_backbone(job.settings, job.model, context)
    print(f"backbone: {shown(folder)}")
