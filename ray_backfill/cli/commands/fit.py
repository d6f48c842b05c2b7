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
    from ray_backfill.cli.context import context_of, prepared
    from ray_backfill.runs.checks import check_evaluation
    from ray_backfill.runs.folder import fit_folder
    from ray_backfill.runs.images import embed_recipe

    if isinstance(job, FolderJob):
        folder, evaluation, fits = given_folder(job.data), job.evaluation, job.fits
    else:
        settings = prepared(job).settings
        evaluation, fits = settings.evaluation, settings.fits
        check_evaluation(settings, 1)
        folder = embed_recipe(settings, context_of(job))
    networks, left_out = fit_folder(folder, evaluation, fits, context_of(job))
    for each in left_out:
        print(f"left out: {each.words} ({each.reason})")
    for name, path in networks.items():
        print(f"{name}: {shown(path)}")
