"""The body of jobs/reproduce.py: its arguments, and the page it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ray_backfill.cli.shell import checked_out, command_line, refuse_relative, shown
from ray_backfill.cluster.settings import EmbedActors, Workers
from ray_backfill.papers.experiment import Experiment, Place, reproduce


@dataclass(frozen=True, kw_only=True)
class ReproduceJob:
    """A page about a recipe, from several runs of it."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    out: Path = Path("runs/reproduce")
    """Folder of the runs. The same folder again continues or reuses what is there."""
    page: Path | None = None
    """The page to write, with its figure beside it; default: page.md in the folder of the runs."""
    findings: Path | None = None
    """Markdown written by hand that the page includes."""
    workers: Workers = field(default_factory=Workers)
    """Where training runs."""
    actors: EmbedActors = field(default_factory=EmbedActors)
    """Where embedding runs."""


def reproduce_job(description: str, arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, write the page and say where it is."""
    job = tyro.cli(ReproduceJob, description=description, args=arguments)
    out, root = checked_out(job.out), job.experiment.data_root
    if root is not None:
        refuse_relative("--data-root", root)
    place = Place(job.workers, job.actors)
    page = reproduce(job.experiment, place, out, job.page or out / "page.md", job.findings, command_line())
    print(f"page: {shown(page.absolute())}")
