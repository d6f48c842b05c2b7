"""What runs of several subcommands have in common: the options for a folder or a recipe, and the steps before work."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_backfill.cli import absolute, command_line, interruptible
from ray_backfill.cli.options import Options
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.core.job import AT_END, say_job
from ray_backfill.core.outcome import Decision
from ray_backfill.core.run_lock import locked
from ray_backfill.images.datasets import download, published
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes import NO_ROOT, Recipe, load_recipe
from ray_backfill.workers.settings import Context, EmbedActors, Workers


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The folder of embeddings that a command line names."""

    data: Path = Path("DIR")
    """Folder with gallery.parquet and, optionally, queries.parquet and train.parquet."""


@dataclass(frozen=True, kw_only=True)
class NamedImages:
    """The recipe that a command line names, and where its images are."""

    recipe: str = "landmarks"
    """Recipe to run; --help recipes lists them."""
    data_root: Path | None = None
    """Folder of the images, for recipes that need files; None for the others."""
    seed: int = 0
    """Random seed for the whole recipe."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in a folder of its own."""

    out: Path
    """Folder of the run. The same command continues a run that was stopped, and reuses finished stages. With further
    methods, orders, merges or cut-offs it extends the results."""
    overwrite: bool = False
    """Delete the stages in --out that were made with other settings or data, and make them again."""


@dataclass(frozen=True, kw_only=True)
class ExitCode:
    """How a finished command ends."""

    exit_code: bool = False
    """End with 0 to go ahead, 10 if the results leave it open or something was found, 11 to stop. Without this option
    a finished command ends with 0."""

    def end(self, decide: Callable[[], Decision]) -> None:
        """End the process with the code of the decision, if that is asked for."""
        if self.exit_code and (code := decide().code):
            sys.exit(code)


@dataclass(frozen=True, kw_only=True)
class ForPrograms(ExitCode):
    """What a command tells a program that calls it."""

    json: bool = False
    """Print JSON instead of tables; docs/json.md has its schema."""

    def tell(
        self, document: Callable[[], Mapping[str, Any]], decide: Callable[[], Decision], table: Callable[[], None]
    ) -> None:
        """Print the document or the table, and end with the decision if that is asked for."""
        if self.json:
            print(json.dumps(document(), indent=2, ensure_ascii=sys.stdout.encoding.lower() != "utf-8"))
        else:
            table()
        self.end(decide)


@dataclass(frozen=True, kw_only=True)
class FolderJob(Run, Folder):
    """Work on a folder of embeddings."""

    evaluation: Evaluation = field(default_factory=Evaluation.of_folder)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Run, NamedImages):
    """A run of a recipe. Every setting of the recipe can be changed; the defaults shown are the recipe's."""

    settings: Recipe[Any]
    workers: Workers = field(default_factory=Workers)
    actors: EmbedActors = field(default_factory=EmbedActors)
    dry_run: bool = False
    """Print what the run would need (images, steps, operations, storage) and stop. Needs no published data set."""
    download: bool = False
    """Download the images into --data-root first, where the owner of the data set permits it."""


def names_folder(arguments: Sequence[str]) -> bool:
    """Whether a command line names a folder of embeddings instead of a recipe."""
    return any(argument.split("=")[0] == "--data" for argument in arguments)


def run_options(arguments: Sequence[str], on_folder: type[FolderJob], of_recipe: type[RecipeJob]) -> Options:
    """The options for the folder of embeddings that a command line names, otherwise for a recipe."""
    return folder_options(on_folder, arguments) if names_folder(arguments) else recipe_options(of_recipe, arguments)


def folder_options(kind: type[Any], arguments: Sequence[str], hidden: Collection[str] = ()) -> Options:
    """The options for the folder that a command line names; the default of --out is a folder in ``runs``."""
    data = Options(Folder(), arguments).read(ignore_others=True).data
    return Options(kind(data=data, out=Path("runs") / (data.absolute().name or "data")), arguments, hidden=hidden)


def recipe_options(kind: type[RecipeJob], arguments: Sequence[str], **more: Any) -> Options:
    """The options for the recipe that a command line names. more: defaults of the kind's own settings."""
    source = Options(NamedImages(), arguments).read(ignore_others=True)
    if source.seed < 0:
        raise InputError(f"--seed must not be negative, got {source.seed}")
    if source.data_root is not None:
        absolute("--data-root", source.data_root)
    # The help of a recipe does not need its data, nor does the plan of a published data set.
    asked = set(arguments)
    can_do_without = "--help" in asked or ("--dry-run" in asked and "--download" not in asked)
    recipe = load_recipe(source.recipe, source.data_root or (NO_ROOT if can_do_without else None), source.seed)
    if "--dry-run" in asked and published(recipe.images) is None:
        recipe = load_recipe(source.recipe, source.data_root, source.seed)
    out = Path("runs") / source.recipe
    return Options(kind(**vars(source), out=out, settings=recipe, **more), arguments)


def check_names(job: Any) -> None:
    """Raises InputError for unknown methods, orders, merges and metrics of a run, before heavy imports."""
    (job.settings if isinstance(job, RecipeJob) else job).evaluation.check()


@contextmanager
def running(job: Any) -> Iterator[Context]:
    """The context of a run, from the options of the job. Within the block, its folder belongs to this process.

    Raises:
        InputError: ``out`` cannot be made or written, or another process uses it.
        Stopped: The run was interrupted.
    """
    given = {name: getattr(job, name) for name in ("workers", "actors", "place", "overwrite") if hasattr(job, name)}
    out, command = absolute("--out", job.out), command_line()
    recipe, data = getattr(job, "recipe", ""), str(getattr(job, "data", ""))
    say_job(command_line=command, out=str(out), recipe=recipe, data=data)
    with interruptible(), locked(out, "--out", command), AT_END:
        yield Context(out, command=command, recipe=recipe, **given)


def prepared(job: RecipeJob, last_stage: str = "maps", model: str | None = None) -> RecipeJob:
    """The job, after --download has fetched the images; --dry-run prints the plan and exits with code 0.

    last_stage: end of the plan, of ``recipes.run.plan.STAGES``. model: plan only the training of this backbone.

    Raises:
        InputError: The plan cannot be made, or the images cannot be fetched.
    """
    if job.download:
        with interruptible():
            download(job.settings.images)
    if job.dry_run:
        from ray_backfill.recipes.run.plan import dry_run

        print(dry_run(job.settings, job.workers, last_stage, model, job.recipe))
        sys.exit(0)
    return job
