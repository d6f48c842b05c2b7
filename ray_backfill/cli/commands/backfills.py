"""``ray-backfill simulate`` and ``drill``: a backfill replayed, and one under traffic."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from ray_backfill.cli import absolute, runs, shown
from ray_backfill.cli.commands.samples import ForecastModelsJob, forecast_options, run_forecast
from ray_backfill.cli.models import ComparedModelsJob, embedded, models_options, names_models
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.outcome import as_typed
from ray_backfill.core.progress import say
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.learn.methods import all_methods
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes.run.synthetic import SyntheticGallery
from ray_backfill.workers.settings import Context, EmbedActors, ReplayPlace, Workers


@dataclass(frozen=True, kw_only=True)
class SimulateJob(runs.RecipeJob, runs.ForPrograms):
    """A run of a whole recipe, from images to the report."""

    scale: Literal["demo", "full"] = "demo"
    """demo: run the recipe. full: draw synthetic embeddings at the size of Google Landmarks v2 instead."""
    place: ReplayPlace = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a person judges."""

    judge: Path | None = None
    """Write queries and items for a person to judge into this file (CSV), and stop. Without labels, 50 judged queries
    say which model is better: --truth judged FILE reads them. Default: None."""


@dataclass(frozen=True, kw_only=True)
class SimulateFolderJob(runs.FolderJob, runs.ForPrograms, Judged):
    """A comparison on a folder of embeddings. Methods and merges that lack data are left out, with the reason."""

    drop_broken: bool = False
    """Leave rows out that have no id or a duplicate one, or a vector that is missing, zero or not finite, instead of
    refusing the folder. OUT/cleaned then holds a copy without them, and lists them."""
    place: ReplayPlace = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class SimulateArraysJob(runs.Run, runs.ForPrograms, Judged):
    """A comparison on arrays: files of numpy (.npy). Maps are fitted on a random sample of the gallery."""

    old_gallery: Path
    """The old model's embeddings of the gallery, (N, d)."""
    new_gallery: Path
    """The new model's embeddings of the same items, (N, d); its d may differ."""
    old_queries: Path | None = None
    """The old model's embeddings of the queries; None: the items of the gallery query the others."""
    new_queries: Path | None = None
    """The new model's embeddings of the same queries."""
    gallery_labels: Path | None = None
    """Labels of the gallery, (N,). Without labels and --truth, right answers are what the new model finds first."""
    query_labels: Path | None = None
    """Labels of the queries."""
    evaluation: Evaluation = field(default_factory=Evaluation.of_folder)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)
    place: ReplayPlace = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class SimulateModelsJob(ComparedModelsJob, runs.ForPrograms, Judged):
    """A comparison of two models on texts or images, which both embed first."""

    forecast: str = ""
    """Only a forecast, as ray-backfill forecast: the new model embeds so many gallery items, or such a share (2%)."""
    place: ReplayPlace = field(default_factory=ReplayPlace)


def _at_scale() -> Evaluation:
    """Methods that use only the old and the new model and train nothing; a formula may be fitted."""
    plain = (m for m in all_methods().values() if m.models == ("old", "new") and (m.is_merged or m.is_reference))
    methods = tuple(method.name for method in plain if not method.is_trained)
    orders = ("random", "classifier_score", "class_mean_distance")
    return Evaluation(methods=methods, orders=orders, metrics=("mAP@100", "CMC@1"))


@dataclass(frozen=True, kw_only=True)
class ScaleJob(runs.Run, runs.ForPrograms):
    """A run on synthetic embeddings at the size of Google Landmarks v2. It shows scale, not which method is better."""

    scale: Literal["full"] = "full"
    """full: draw a synthetic gallery instead of running a recipe."""
    gallery: SyntheticGallery = field(default_factory=SyntheticGallery)
    """Synthetic gallery, by default as large as Google Landmarks v2; see docs/results/scale.md for its defaults."""
    evaluation: Evaluation = field(default_factory=_at_scale)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)
    place: ReplayPlace = field(default_factory=ReplayPlace)


def simulate_options(arguments: Sequence[str]) -> Options:
    """The options for a folder of embeddings, for the synthetic gallery, or for a recipe."""
    names = {argument.split("=")[0] for argument in arguments}
    if arrays := sorted(names & {"--old-gallery", "--new-gallery", "--old-queries", "--new-queries"}):
        if "--data" in names:
            raise InputError(f"give --data or {arrays[0]}, not both")
        return Options(
            SimulateArraysJob(out=Path("runs/arrays"), old_gallery=REQUIRED, new_gallery=REQUIRED), arguments
        )
    if names_models(arguments):
        if "--forecast" in names:
            return forecast_options([re.sub("^--forecast(?=$|=)", "--budget", word) for word in arguments])
        return models_options(SimulateModelsJob, arguments)
    is_full = "--scale=full" in arguments or ("--scale", "full") in pairwise(arguments)
    if is_full and not runs.names_folder(arguments):
        return Options(ScaleJob(out=Path("runs/full")), arguments)
    return runs.run_options(arguments, SimulateFolderJob, SimulateJob)


# What ``simulate`` can run.
Simulate = ForecastModelsJob | SimulateFolderJob | SimulateArraysJob | SimulateModelsJob | ScaleJob | SimulateJob


def run_simulate(job: Simulate) -> None:
    """Run, and print the table and the path of the report."""
    if isinstance(job, ForecastModelsJob):
        return run_forecast(job)
    runs.check_names(job)
    if isinstance(job, Judged) and job.judge is not None:
        return _write_sheet(job, absolute("--judge", job.judge))
    from ray_backfill.compare.report import print_table, read_data
    from ray_backfill.compare.report.as_json import as_json
    from ray_backfill.compare.report.verdict import decide

    results = _simulated(job)

    def table() -> None:
        print_table(results)
        print(f"\nreport: {shown(results / 'report.html')}")

    job.tell(lambda: as_json(read_data(results), results), lambda: decide(read_data(results)), table)


def _simulated(job: SimulateFolderJob | SimulateArraysJob | SimulateModelsJob | ScaleJob | SimulateJob) -> Path:
    """The folder of the results."""
    if isinstance(job, ScaleJob):
        from ray_backfill.recipes.run.synthetic import evaluate_synthetic

        tell = say if job.json else print
        tell("These embeddings are synthetic: they show scale and arithmetic, not which method is better.")
        with runs.running(job) as context:
            return evaluate_synthetic(job.gallery, job.evaluation, job.fits, context)
    if isinstance(job, SimulateJob):
        if lacking := why_not_installed("ray", "torch"):
            less = "without it, ray-backfill simulate --data DIR compares methods that train nothing"
            raise InputError(f"a recipe trains two models and {lacking}; {less}")
        from ray_backfill.recipes.run.pipeline import run_recipe

        settings = runs.prepared(job).settings
        with runs.running(job) as context:
            return run_recipe(settings, context)
    from ray_backfill.compare.report import print_first_table
    from ray_backfill.compare.run import evaluate_folder

    show_first = None if job.json else print_first_table
    with _opened(job) as (data, context):
        return evaluate_folder(data, job.evaluation, job.fits, context, show_first=show_first)


@contextmanager
def _opened(job: SimulateFolderJob | SimulateArraysJob | SimulateModelsJob) -> Iterator[tuple[Path, Context]]:
    """The folder of embeddings that a job names or makes, and the context of its run."""
    from ray_backfill.data.cleaning import cleaned
    from ray_backfill.data.words import ARRAYS
    from ray_backfill.data.write import load_array, write_arrays

    if isinstance(job, SimulateArraysJob):
        files = {
            "old": (job.old_queries, job.old_gallery),
            "new": (job.new_queries, job.new_gallery),
            "label": (job.query_labels, job.gallery_labels),
        }
        arrays = {name: (load_array(q), load_array(g)) for name, (q, g) in files.items() if q or g}
        names = {f"queries/{name}": str(file) for name, (file, _) in files.items()}
        names |= {f"gallery/{name}": str(file) for name, (_, file) in files.items()}
        words = {**ARRAYS, **names, "train": "the train.parquet of a folder (--data)"}
        with runs.running(job) as context:
            yield write_arrays(context.out / "arrays", arrays, words), context
    elif isinstance(job, SimulateModelsJob):
        request = job.checked()
        with runs.running(job) as context:
            yield embedded(request, job, context), context
    else:
        data = absolute("--data", job.data)
        with runs.running(job) as context:
            yield cleaned(data, context.out / "cleaned", context.overwrite) if job.drop_broken else data, context


def _write_sheet(job: SimulateFolderJob | SimulateArraysJob | SimulateModelsJob, path: Path) -> None:
    """Write what to judge, and print how, what it will tell, and the command after it."""
    from ray_backfill.compare.report.verdict import after_judging
    from ray_backfill.data.folder import read_folder
    from ray_backfill.data.judging import DEPTH, FIRST, TELLS
    from ray_backfill.data.truth import ask_for_judgements, check_new_sheet

    check_new_sheet(path)  # models may embed for hours before it is written
    with _opened(job) as (data, context):
        drawn = ask_for_judgements(read_folder(data), path, job.evaluation.distance, job.evaluation.filter)
    number = len(set(drawn.query.tolist()))
    print(
        f"{shown(path)}: {number} queries in random order, with {len(drawn.item):,} items that only one of both models "
        f"finds among its first {DEPTH}. For {1 - drawn.share:.0%} of all queries both find the same.\n"
        f"Judge the first {min(FIRST, number)} queries, all items of each: 1 or a higher grade if right, "
        f"else 0, in the column \u201cright\u201d. Go on only if they leave it open.\n{TELLS}\n"
        f"then: {as_typed(after_judging(context.command, str(job.judge)))}"
    )


@dataclass(frozen=True, kw_only=True)
class DrillJob(runs.RecipeJob, runs.ExitCode):
    """A live backfill of a recipe's gallery, under traffic."""

    live: LiveSettings = field(default_factory=LiveSettings)


@dataclass(frozen=True, kw_only=True)
class DrillFolderJob(runs.FolderJob, runs.ExitCode):
    """A live backfill on a folder of embeddings; the new embeddings come from the folder."""

    actors: EmbedActors = field(default_factory=EmbedActors)
    live: LiveSettings = field(default_factory=LiveSettings)


@dataclass(frozen=True, kw_only=True)
class DrillModelsJob(ComparedModelsJob, runs.ExitCode):
    """A live backfill of texts or images: the new model embeds them while the old one serves."""

    live: LiveSettings = field(default_factory=LiveSettings)


def drill_options(arguments: Sequence[str]) -> Options:
    """The options for two models, for a folder of embeddings or for a recipe."""
    if names_models(arguments):
        return models_options(DrillModelsJob, arguments)
    return runs.run_options(arguments, DrillFolderJob, DrillJob)


def run_drill(job: DrillFolderJob | DrillModelsJob | DrillJob) -> None:
    """Run the drill, print its table and the path of the report."""
    runs.check_names(job)
    from ray_backfill.drill.report import print_live_table
    from ray_backfill.drill.report.drill_folder import read_drill
    from ray_backfill.drill.report.sentences import decide
    from ray_backfill.drill.run import drill_folder, drill_models
    from ray_backfill.recipes.run.pipeline import drill_recipe

    if isinstance(job, DrillFolderJob):
        data = absolute("--data", job.data)
        with runs.running(job) as context:
            results = drill_folder(data, job.evaluation, job.fits, job.live, context)
    elif isinstance(job, DrillModelsJob):
        specs, sources = job.checked()
        with runs.running(job) as context:
            results = drill_models(specs, sources, job.items, job.evaluation, job.fits, job.live, context)
    else:
        settings = runs.prepared(job).settings
        with runs.running(job) as context:
            results = drill_recipe(settings, job.live, context)
    print_live_table(results)
    print(f"\nreport: {shown(results / 'report.html')}")
    job.end(lambda: decide(read_drill(results)))
