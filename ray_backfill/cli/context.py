"""Steps between reading the options and the work: make the context, download, plan."""

import sys
from typing import Any

from ray_backfill.cli.options import RecipeJob
from ray_backfill.cli.shell import checked_out, command_line
from ray_backfill.datasets import download
from ray_backfill.runs.context import Context


def context_of(job: Any) -> Context:
    """The context of a run, from the options of the job. Raises InputError for an ``out`` that cannot be created."""
    given = {name: getattr(job, name) for name in ("workers", "actors", "place") if hasattr(job, name)}
    return Context(checked_out(job.out), command=command_line(), recipe=getattr(job, "recipe", ""), **given)


def prepared(job: RecipeJob[Any], last_stage: str = "maps", model: str | None = None) -> RecipeJob[Any]:
    """Handle --download and --dry-run; returns the job.

    --download fetches the images. --dry-run prints the plan up to ``last_stage`` (of ``planning.plan.STAGES``) and
    exits. model: plan only the training of this backbone.

    Raises:
        SystemExit: After a dry run, with code 0.
        InputError: The plan cannot be made, or the images cannot be fetched.
    """
    if job.download:
        download(job.settings.images)
    if job.dry_run:
        from ray_backfill.runs.planning.dry_run import dry_run  # loads torch

        print(dry_run(job.settings, job.workers, job.actors, job.planning, last_stage, model))
        sys.exit(0)
    return job
