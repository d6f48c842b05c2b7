"""Steps between reading the options and the work: make the context, download, plan."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray_backfill.cli.options import RecipeJob
from ray_backfill.cli.shell import checked_out, command_line
from ray_backfill.cli.stopping import interruptible
from ray_backfill.core.run_lock import locked
from ray_backfill.images.datasets import download
from ray_backfill.workers.context import Context


@contextmanager
def running(job: Any) -> Iterator[Context]:
    """The context of a run, from the options of the job. Within the block, its folder belongs to this process.

    Raises:
        InputError: ``out`` cannot be made or written, or another process uses it.
        Stopped: The run was interrupted.
    """
    given = {name: getattr(job, name) for name in ("workers", "actors", "place", "overwrite") if hasattr(job, name)}
    out, command = checked_out(job.out), command_line()
    with interruptible(), locked(out, "--out", command):
        yield Context(out, command=command, recipe=getattr(job, "recipe", ""), **given)


def prepared(job: RecipeJob[Any], last_stage: str = "maps", model: str | None = None) -> RecipeJob[Any]:
    """Handle --download and --dry-run; returns the job.

    --download fetches the images. --dry-run prints the plan up to ``last_stage`` (of ``recipes.run.plan.STAGES``) and
    exits. model: plan only the training of this backbone.

    Raises:
        SystemExit: After a dry run, with code 0.
        InputError: The plan cannot be made, or the images cannot be fetched.
    """
    if job.download:
        with interruptible():
            download(job.settings.images)
    if job.dry_run:
        from ray_backfill.recipes.run.plan import dry_run

        print(dry_run(job.settings, job.workers, job.actors, job.planning, last_stage, model))
        sys.exit(0)
    return job
