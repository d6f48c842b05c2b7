"""``ray-backfill simulate``: compare upgrade methods over an online backfill."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ray_backfill.cli.options import ScaleJob, SimulateFolderJob, SimulateJob
from ray_backfill.cli.parse import check_names, names_folder, read_folder_options, read_options, read_recipe_options
from ray_backfill.cli.shell import given_folder, shown
from ray_backfill.workers.settings import ReplayPlace


def read(arguments: Sequence[str]) -> Any:
    """The options for a folder of embeddings, for the synthetic gallery, or for a recipe."""
    if names_folder(arguments):
        return read_folder_options(SimulateFolderJob, arguments)
    if {"--scale=full"} & set(arguments) or ("--scale", "full") in pairwise(arguments):
        return read_options(ScaleJob, arguments)
    return read_recipe_options(SimulateJob, arguments, place=ReplayPlace())


def run(arguments: Sequence[str]) -> None:
    """Run, and print the table and the path of the report."""
    job = read(arguments)
    if isinstance(job, ScaleJob):
        job.evaluation.check()
    else:
        check_names(job)
    from ray_backfill.cli.context import prepared, running
    from ray_backfill.compare.report import print_first_table, print_table

    if isinstance(job, SimulateFolderJob):
        from ray_backfill.compare.run import evaluate_folder
        from ray_backfill.data.cleaning import cleaned

        data = given_folder(job.data)
        with running(job) as context:
            if job.drop_broken:
                data = cleaned(data, context.out / "cleaned", context.overwrite)
            results = evaluate_folder(data, job.evaluation, job.fits, context, show_first=print_first_table)
    elif isinstance(job, ScaleJob):
        from ray_backfill.recipes.run.pipeline import evaluate_synthetic

        print("These embeddings are synthetic: they show scale and arithmetic, not which method is better.")
        with running(job) as context:
            results = evaluate_synthetic(job.gallery, job.evaluation, job.fits, context)
    else:
        from ray_backfill.recipes.run.pipeline import run_recipe

        settings = prepared(job).settings
        with running(job) as context:
            results = run_recipe(settings, context)
    print_table(results)
    print(f"\nreport: {shown(results / 'report.html')}")
