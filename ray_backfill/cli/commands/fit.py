"""``ray-backfill fit``: fit the maps and heads that methods need on stored embeddings."""

from collections.abc import Sequence
from typing import Any

from ray_backfill.cli.options import FolderJob, RecipeJob
from ray_backfill.cli.parse import check_names, names_folder, read_folder_options, read_recipe_options
from ray_backfill.cli.shell import given_folder, shown


def read(arguments: Sequence[str]) -> Any:
    """The options for a folder of embeddings or for a recipe."""
    if names_folder(arguments):
        return read_folder_options(FolderJob, arguments)
    return read_recipe_options(RecipeJob, arguments)


def run(arguments: Sequence[str]) -> None:
    """Fit, and print the paths of the networks and what was left out."""
    job = read(arguments)
    check_names(job)
    from ray_backfill.cli.context import prepared, running
    from ray_backfill.compare.run import fit_folder
    from ray_backfill.recipes.run.checks import check_evaluation
    from ray_backfill.recipes.run.pipeline import embed_recipe

    if isinstance(job, FolderJob):
        data = given_folder(job.data)
        with running(job) as context:
            networks, left_out = fit_folder(data, job.evaluation, job.fits, context)
    else:
        settings = prepared(job).settings
        check_evaluation(settings, 1)
        with running(job) as context:
            networks, left_out = fit_folder(
                embed_recipe(settings, context), settings.evaluation, settings.fits, context
            )
    for each in left_out:
        print(f"left out: {each.words} ({each.reason})")
    for name, path in networks.items():
        print(f"{name}: {shown(path)}")
