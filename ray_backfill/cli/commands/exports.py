"""``ray-backfill export``: what a service needs of a finished simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import REQUIRED, Options


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What a service needs of one method of a finished simulation."""

    run: Path
    """Folder of the run, or its results folder."""
    method: str
    """A method of the run that is served while the gallery is backfilled."""
    to: Path
    """Folder to write, which must not hold anything else."""
    merge: str = ""
    """Merge; by default that with which the method is best in this run."""
    order: str = ""
    """Backfill order; by default that with which the method is best in this run."""


def export_options(arguments: Sequence[str]) -> Options:
    """The run, and what to export."""
    return Options(ExportJob(run=REQUIRED, method=REQUIRED, to=REQUIRED), arguments, positional="run")


def run_export(job: ExportJob) -> None:
    """Write the folder, and print where to read on."""
    from ray_backfill.export.run import export_run

    to = export_run(absolute("RUN", job.run), absolute("--to", job.to), job.method, job.merge, job.order)
    print(f"read first: {shown(to / 'README.md')}")
