"""``ray-backfill drill``: backfill a gallery for real, under traffic."""

from collections.abc import Sequence
from typing import Any

from ray_backfill.cli.options import DrillFolderJob, DrillJob
from ray_backfill.cli.parse import check_names, names_folder, read_folder_options, read_recipe_options
from ray_backfill.cli.shell import given_folder, shown


def read(arguments: Sequence[str]) -> Any:
    """The options for a folder of embeddings or for a recipe."""
    if names_folder(arguments):
        return read_folder_options(DrillFolderJob, arguments)
    return read_recipe_options(DrillJob, arguments)


def run(arguments: Sequence[str]) -> None:
    """Run the drill, print its table and the path of the report."""
    job = read(arguments)
    check_names(job)
    from ray_backfill.cli.context import prepared, running
    from ray_backfill.drill.report import print_live_table
    from ray_backfill.drill.run import drill_folder
    from ray_backfill.recipes.run.pipeline import drill_recipe

    if isinstance(job, DrillFolderJob):
        data = given_folder(job.data)
        with running(job) as context:
            results = drill_folder(data, job.evaluation, job.fits, job.live, context)
    else:
        settings = prepared(job).settings
        with running(job) as context:
            results = drill_recipe(settings, job.live, context)
    print_live_table(results)
    print(f"\nreport: {shown(results / 'report.html')}")
