"""``ray-backfill reproduce``: run a recipe with several seeds and all methods, and write a page about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ray_backfill.cli.parse import read_options
from ray_backfill.cli.shell import checked_out, command_line, refuse_relative, shown
from ray_backfill.cluster.settings import EmbedActors, Workers
from ray_backfill.papers.settings import Experiment
from ray_backfill.recipes import describe_recipe


@dataclass(frozen=True, kw_only=True)
class ReproduceJob:
    """A page about several runs of a recipe."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    """Recipe, seeds, methods, ablation and subgroups of the experiment."""
    out: Path = Path("runs/reproduce")
    """Folder of the runs. The same command continues stopped runs and reuses finished ones."""
    page: Path | None = None
    """File of the page; its figure is written next to it. None: page.md in the folder of the runs."""
    findings: Path | None = None
    """Markdown file to include in the page; None: no findings."""
    workers: Workers = field(default_factory=Workers)
    """Training workers. On a cluster with GPUs each worker gets one, and their number is the limit."""
    actors: EmbedActors = field(default_factory=EmbedActors)
    """Ray actors that embed images. On a cluster with GPUs each actor gets one, and their number is the limit."""


def read(arguments: Sequence[str]) -> ReproduceJob:
    """The experiment and where it runs."""
    return read_options(ReproduceJob, arguments)


def run(arguments: Sequence[str]) -> None:
    """Run what is missing, write the page and print its path."""
    job = read(arguments)
    describe_recipe(job.experiment.recipe)  # an unknown name is an error before anything is loaded
    out, root = checked_out(job.out), job.experiment.data_root
    if root is not None:
        refuse_relative("--data-root", root)
    from ray_backfill.papers.experiment import Place, reproduce

    place = Place(job.workers, job.actors)
    page = reproduce(job.experiment, place, out, job.page or out / "page.md", job.findings, command_line())
    print(f"page: {shown(page.absolute())}")
