"""``ray-backfill drill``: backfill a gallery for real, under traffic."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import Options
from ray_backfill.cli.runs import FolderJob, RecipeJob, check_names, prepared, run_options, running
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.workers.settings import EmbedActors


@dataclass(frozen=True, kw_only=True)
class DrillJob(RecipeJob):
    """A live backfill of a recipe's gallery, under traffic."""

    live: LiveSettings = field(default_factory=LiveSettings)


@dataclass(frozen=True, kw_only=True)
class DrillFolderJob(FolderJob):
    """A live backfill on a folder of embeddings; the new embeddings come from the folder."""

    actors: EmbedActors = field(default_factory=EmbedActors)
    live: LiveSettings = field(default_factory=LiveSettings)


def options(arguments: Sequence[str]) -> Options:
    """The options for a folder of embeddings or for a recipe."""
    return run_options(arguments, DrillFolderJob, DrillJob)


def run(job: DrillFolderJob | DrillJob) -> None:
    """Run the drill, print its table and the path of the report."""
    check_names(job)
    from ray_backfill.drill.report import print_live_table
    from ray_backfill.drill.run import drill_folder
    from ray_backfill.recipes.run.pipeline import drill_recipe

    if isinstance(job, DrillFolderJob):
        data = absolute("--data", job.data)
        with running(job) as context:
            results = drill_folder(data, job.evaluation, job.fits, job.live, context)
    else:
        settings = prepared(job).settings
        with running(job) as context:
            results = drill_recipe(settings, job.live, context)
    print_live_table(results)
    print(f"\nreport: {shown(results / 'report.html')}")
