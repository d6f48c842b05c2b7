"""What all jobs share: arguments that start from a recipe, and errors as one line with exit code 2."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from ray_backfill.cluster.embed import EmbedActors
from ray_backfill.cluster.replay import ReplayPlace
from ray_backfill.cluster.train import Workers
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.datasets import download, published
from ray_backfill.errors import InputError, input_error_in
from ray_backfill.live.settings import LiveSettings
from ray_backfill.methods import all_methods
from ray_backfill.recipes import NO_ROOT, Recipe, load_recipe, recipe_names
from ray_backfill.report import print_table
from ray_backfill.report.live import print_live_table
from ray_backfill.runs.checks import check_evaluation
from ray_backfill.runs.context import Context
from ray_backfill.runs.drill import drill_folder, drill_recipe
from ray_backfill.runs.images import embed_recipe
from ray_backfill.runs.pipeline import evaluate_folder, evaluate_synthetic, fit_folder, run_recipe
from ray_backfill.runs.planning import STAGES, PlanningSettings, dry_run
from ray_backfill.runs.synthetic import SyntheticGallery
from ray_backfill.training.fits import FitSettings, is_closed_form

ImagesT = TypeVar("ImagesT")


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Generic[ImagesT]):
    """A run of a recipe. Everything of the recipe can be changed; what is shown as default is the recipe's."""

    # The settings to start from.
    recipe: str
    # Where the images are, for recipes that need files.
    data_root: Path | None
    # Of everything random: it sets the seeds of the recipe.
    seed: int
    # Folder of the run. The same folder again continues or reuses what is there.
    out: Path
    settings: Annotated[Recipe[ImagesT], tyro.conf.arg(name="")]
    workers: Workers
    actors: EmbedActors
    # Only say what the run would need: images, steps, GPU hours, storage. Needs no data of published data sets.
    dry_run: bool = False
    # Fetch the images into --data-root first, where anybody may.
    download: bool = False
    planning: PlanningSettings = field(default_factory=PlanningSettings)


@dataclass(frozen=True, kw_only=True)
class BackboneJob(RecipeJob[ImagesT]):
    """A run that trains one backbone of a recipe."""

    # Which one: old, new, or a kind that some method needs beside them (bct, ract, ract_hard, side).
    model: str


@dataclass(frozen=True, kw_only=True)
class SimulateJob(RecipeJob[ImagesT]):
    """A run of a whole recipe, from images to the report."""

    # replay: how good the service would be at every moment, exactly. live: the backfill is done, under traffic.
    mode: Literal["replay", "live"] = "replay"
    # Of mode live.
    live: LiveSettings = field(default_factory=LiveSettings)
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class LandmarkJob(SimulateJob[ImagesT]):
    """A run of a whole recipe, from images to the report; or, at full scale, of embeddings that are drawn."""

    # demo: this. full: invented embeddings at the size of Google Landmarks v2; --scale full --help has its settings.
    scale: Literal["demo", "full"] = "demo"


def _training_free() -> tuple[str, ...]:
    """Methods of the old and the new model alone that are fitted by a formula, if at all."""
    methods = all_methods().values()
    return tuple(m.name for m in methods if m.models == ("old", "new") and (m.fit is None or is_closed_form(m)))


@dataclass(frozen=True, kw_only=True)
class ScaleJob:
    """A run on invented embeddings at the size of Google Landmarks v2: proves scale, not which method is better."""

    scale: Literal["full"] = "full"
    gallery: SyntheticGallery = field(default_factory=SyntheticGallery)
    # Folder of the run. The same folder again continues or reuses what is there.
    out: Path = Path("runs/full")
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(
        default_factory=lambda: Evaluation(
            methods=_training_free(),
            orders=("random", "classifier_score", "class_mean_distance"),
            metrics=("mAP@100", "CMC@1"),
        )
    )
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")] = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class DataJob:
    """A run on a folder of embeddings.

    All methods by default: those that lack something are left out. The default order is random: the old classifier's
    scores are seldom at hand.
    """

    # Folder with gallery.parquet and perhaps queries.parquet and train.parquet.
    data: Path
    # Folder of the run. The same folder again continues or reuses what is there.
    out: Path
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(
        default_factory=lambda: Evaluation(methods=("all",), orders=("random",))
    )
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)
    # Where the backfill of mode live runs.
    actors: EmbedActors = field(default_factory=EmbedActors)
    # replay: how good the service would be at every moment, exactly. live: the backfill is done, under traffic.
    mode: Literal["replay", "live"] = "replay"
    # Of mode live.
    live: LiveSettings = field(default_factory=LiveSettings)
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")] = field(default_factory=ReplayPlace)


def recipe_job(
    description: str,
    default_recipe: str = "landmarks",
    kind: type = RecipeJob,
    last_stage: str = STAGES[-1],
    **more: Any,
) -> Any:
    """Read the command line (see ``parse_recipe_job``) and do what it asks for before the work.

    --download fetches the images; --dry-run prints the plan up to ``last_stage`` (of ``planning.STAGES``).

    Raises:
        SystemExit: after a dry run, with code 0.
        InputError: the plan cannot be made, or the images cannot be fetched.
    """
    job = parse_recipe_job(description, default_recipe, kind=kind, **more)
    if job.download:
        download(job.settings.images)
    if job.dry_run:
        model = job.model if isinstance(job, BackboneJob) else None
        print(dry_run(job.settings, job.workers, job.actors, job.planning, last_stage, model))
        sys.exit(0)
    return job


def parse_recipe_job(
    description: str,
    default_recipe: str = "landmarks",
    arguments: Sequence[str] | None = None,
    kind: type = RecipeJob,
    **more: Any,
) -> Any:
    """Read the command line over the defaults of the recipe that it names.

    kind: RecipeJob or a subclass; more: defaults of the subclass's own fields.
    Returns: an instance of ``kind``.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", default=default_recipe)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    first, _ = parser.parse_known_args(arguments)
    if first.seed < 0:
        raise InputError(f"--seed must not be negative, got {first.seed}")
    if first.data_root is not None:
        refuse_relative("--data-root", first.data_root)
    # --help of a recipe should not ask for its data first, nor should a plan that can do without.
    asked = set(arguments)
    can_do_without = {"-h", "--help"} & asked or ("--dry-run" in asked and "--download" not in asked)
    recipe = load_recipe(first.recipe, first.data_root or (NO_ROOT if can_do_without else None), first.seed)
    size = published(recipe.images)
    if "--dry-run" in arguments and size is None:
        recipe = load_recipe(first.recipe, first.data_root, first.seed)
    decoded_per_s = size.decoded_per_s if size else PlanningSettings().decode_images_per_s_per_cpu
    default = kind(
        recipe=first.recipe,
        data_root=first.data_root,
        seed=first.seed,
        out=Path("runs") / first.recipe,
        settings=recipe,
        workers=Workers(),
        actors=EmbedActors(),
        planning=PlanningSettings(decode_images_per_s_per_cpu=decoded_per_s),
        **more,
    )
    return tyro.cli(
        kind[type(recipe.images)],  # type: ignore[index]
        default=default,
        description=f"{description}\n\nRecipes: {', '.join(recipe_names())}.",
        args=list(arguments),
    )


def parse_data_job(description: str, arguments: Sequence[str] | None = None) -> DataJob:
    """Read the command line of a run on a folder of embeddings."""
    return tyro.cli(DataJob, description=description, args=arguments)


def is_data_job() -> bool:
    """Whether the command line names a folder of embeddings instead of a recipe."""
    return any(argument.split("=")[0] == "--data" for argument in sys.argv)


def simulate_job(description: str, default_recipe: str = "landmarks") -> None:
    """The body of jobs/simulate*.py: run, print the table, say where the report is."""
    _say(*(_run_data(description) if is_data_job() else _run_recipe(description, default_recipe, SimulateJob)))


def simulate_landmarks_job(description: str) -> None:
    """The body of jobs/simulate_gldv2.py: as ``simulate_job``, or with ``--scale full`` on an invented gallery."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--scale", default="demo")
    if parser.parse_known_args()[0].scale == "full":
        _say(_run_full_scale(description))
    else:
        _say(*(_run_data(description) if is_data_job() else _run_recipe(description, "landmarks", LandmarkJob)))


def _say(results: Path, is_live: bool = False) -> None:
    (print_live_table if is_live else print_table)(results)
    print(f"\nreport: {shown(results / 'report.html')}")


def _run_full_scale(description: str) -> Path:
    job = tyro.cli(ScaleJob, description=description)
    print("These embeddings are invented: they prove scale and arithmetic, not which method is better on landmarks.")
    return evaluate_synthetic(job.gallery, job.evaluation, job.fits, context_of(job))


def _run_data(description: str) -> tuple[Path, bool]:
    job = parse_data_job(description)
    data, context = given_folder(job.data), context_of(job)
    if job.mode == "live":
        return drill_folder(data, job.evaluation, job.fits, job.live, context), True
    return evaluate_folder(data, job.evaluation, job.fits, context), False


def _run_recipe(description: str, default_recipe: str, kind: type) -> tuple[Path, bool]:
    job = recipe_job(description, default_recipe, kind=kind, place=ReplayPlace())
    context = context_of(job)
    if job.mode == "live":
        return drill_recipe(job.settings, job.live, context), True
    return run_recipe(job.settings, context), False


def fit_job(description: str) -> None:
    """The body of jobs/train_mcl.py: fit, say where the networks are and what was left out."""
    if is_data_job():
        of_data = parse_data_job(description)
        folder, context = given_folder(of_data.data), context_of(of_data)
        evaluation, fits = of_data.evaluation, of_data.fits
    else:
        job = recipe_job(description)
        context, evaluation, fits = context_of(job), job.settings.evaluation, job.settings.fits
        check_evaluation(job.settings, 1)
        folder = embed_recipe(job.settings, context)
    networks, left_out = fit_folder(folder, evaluation, fits, context)
    for each in left_out:
        print(f"left out: {each.words} ({each.reason})")
    for name, path in networks.items():
        print(f"{name}: {shown(path)}")


def context_of(job: Any) -> Context:
    """The context of a run, from the options that the job has. Raises InputError for an ``out`` that cannot be made."""
    given = {name: getattr(job, name) for name in ("workers", "actors", "place") if hasattr(job, name)}
    return Context(checked_out(job.out), command=command_line(), **given)


def run_job(main: Callable[[], None]) -> None:
    """Run a job's main: an InputError, also an actor's or a worker's, is one line and exit code 2, Ctrl-C code 130."""
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped; the same command continues where it was", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        found = input_error_in(error)
        if found is None:
            raise
        print(f"error: {found}", file=sys.stderr)
        sys.exit(2)


def checked_out(out: Path) -> Path:
    """The run's folder as an absolute path.

    Raises:
        InputError: a relative path inside a submitted job, whose working directory is a copy that Ray deletes; or a
            path that is a file.
    """
    refuse_relative("--out", out)
    out = out.absolute()
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {out} cannot be made: {there} is a file; give a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"--out {out} cannot be made: {there} is not writable; give another folder")
    return out


def given_folder(data: Path) -> Path:
    """The folder of embeddings as an absolute path. Raises InputError for a relative path inside a submitted job."""
    refuse_relative("--data", data)
    return data.absolute()


def refuse_relative(option: str, path: Path) -> None:
    """Raise InputError for a relative path inside a submitted job, whose working directory is a copy."""
    if not path.is_absolute() and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise InputError(
            f"{option} {path} is relative; a submitted job needs an absolute path on storage that all nodes share"
        )


def command_line() -> str:
    """The command as it was typed, for the manifest."""
    return " ".join(["python", *sys.argv])


def shown(path: Path) -> Path:
    """Relative to here where that is shorter to read."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
