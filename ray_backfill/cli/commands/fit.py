"""``ray-backfill fit``: fit the maps and heads that methods need on stored embeddings."""

from collections.abc import Sequence

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import Options
from ray_backfill.cli.runs import FolderJob, RecipeJob, check_names, prepared, run_options, running


def options(arguments: Sequence[str]) -> Options:
    """The options for a folder of embeddings or for a recipe."""
    return run_options(arguments, FolderJob, RecipeJob)


def run(job: FolderJob | RecipeJob) -> None:
    """Fit, and print the paths of the networks and what was left out."""
    check_names(job)
    from ray_backfill.compare.fits import fit_folder
    from ray_backfill.recipes.run.checks import check_evaluation
    from ray_backfill.recipes.run.pipeline import embed_recipe

    if isinstance(job, FolderJob):
        data = absolute("--data", job.data)
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
