"""The command: run a recipe with several seeds and all methods, and write a page about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import running
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.recipes import load_recipe
from ray_backfill.workers.settings import EmbedActors, Workers
from reproduction.settings import Experiment


@dataclass(frozen=True, kw_only=True)
class ReproduceJob:
    """A page about several runs of a recipe."""

    experiment: Experiment
    """Recipe, seeds, methods, ablation and subgroups of the experiment."""
    out: Path = Path("runs/reproduce")
    """Folder of the runs. The same command continues stopped runs and reuses finished ones."""
    page: Path | None = None
    """File of the page; its figure is written next to it. None: page.md in the folder of the runs."""
    findings: Path | None = None
    """Markdown file to include in the page; None: no findings."""
    workers: Workers = field(default_factory=Workers)
    actors: EmbedActors = field(default_factory=EmbedActors)
    overwrite: bool = False
    """Delete what other settings have left in --out, and make it again."""


def reproduce_options(arguments: Sequence[str]) -> Options:
    """The experiment and where it runs."""
    return Options(ReproduceJob(experiment=Experiment(REQUIRED)), arguments)


def run_reproduce(job: ReproduceJob) -> None:
    """Run what is missing, write the page and print its path."""
    experiment = job.experiment
    if experiment.data_root is not None:
        absolute("--data-root", experiment.data_root)
    # Wrong names are errors before anything is loaded or started.
    Evaluation(methods=experiment.methods).check()
    for name in filter(None, (experiment.recipe, experiment.subgroups)):
        load_recipe(name, experiment.data_root)
    from reproduction.experiment import reproduce

    with running(job) as context:
        page = reproduce(experiment, context, job.page or context.out / "page.md", job.findings)
    print(f"page: {shown(page.absolute())}")
