"""``ray-backfill sample`` and ``forecast``: choose items to embed, and forecast the curves from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, interruptible, shown
from ray_backfill.cli.models import ModelsJob, check_places, models_options, names_models
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import Folder, ForPrograms, Run, check_names, folder_options, names_folder, running
from ray_backfill.core.errors import InputError
from ray_backfill.forecast.settings import SAMPLE_FILE, ForecastSettings, SampleSettings
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import ReplayPlace, Workers


@dataclass(frozen=True)
class SampleJob:
    """A choice of gallery items that the new model should embed."""

    data: Path
    """Folder with gallery.parquet (old embeddings) and queries.parquet (embeddings by both models)."""
    budget: int = 0
    """Number of items to choose. 1 to 2 % of a large gallery are a good start."""
    add: int = 0
    """Extend the sample by this many items; what it has stays in it."""
    out: Path | None = None
    """File to write (default: sample.parquet in the folder of embeddings)."""
    settings: SampleSettings = field(default_factory=SampleSettings)


@dataclass(frozen=True, kw_only=True)
class SampleModelsJob(ModelsJob):
    """A choice of texts or images that the new model should embed. The old one embeds the gallery, both the queries."""

    budget: str = "2%"
    """How many gallery items to choose: a number, or a share of the gallery. An earlier, smaller choice is extended."""


def sample_options(arguments: Sequence[str]) -> Options:
    """The options of two models, or the folder and the budget."""
    if names_models(arguments):
        return models_options(SampleModelsJob, arguments)
    return Options(SampleJob(REQUIRED), arguments, positional="data")


def run_sample(job: SampleJob | SampleModelsJob) -> None:
    """Write the list of items, and print what to do with it."""
    if isinstance(job, SampleJob) and ((job.budget > 0) == (job.add > 0) or min(job.budget, job.add) < 0):
        raise InputError("give --budget N for a first sample, or --add N to extend one")
    from ray_backfill.forecast.report import FEW_LISTS
    from ray_backfill.forecast.sample import counts_in_words, take_sample

    if isinstance(job, SampleModelsJob):
        from ray_backfill.forecast.run import sample_models

        specs, sources = job.checked()
        with running(job) as context:
            _, file, stored = sample_models(specs, sources, job.items, job.budget, context)
        print(f"{shown(file)}: {counts_in_words(stored)}")
        print("The new model embeds these items, and only them, by ray-backfill forecast with the same options.")
        return
    data = job.data.absolute()
    out = absolute("--out", job.out or data / SAMPLE_FILE)
    with interruptible():
        stored = take_sample(data, out, job.budget, job.settings, job.add)
    print(f"{shown(out)}: {counts_in_words(stored)}")
    rounds = f" of round {stored.round_n.max()}" if job.add else ""
    earlier = "FILES_OF_EARLIER_ROUNDS " if job.add else ""
    elsewhere = f" --sample {shown(out)}" if job.out else ""
    print(f"Embed these items{rounds} by the new model, write id and new to a Parquet file, then run:")
    print(f"  ray-backfill forecast {shown(data)} --new {earlier}FILE{elsewhere}")
    if (data / "manifest.json").exists():  # what embed wrote
        print(f"or embed the images of the recipe by ray-backfill embed, its options, and --only {shown(out)}")
    if stored.lists <= FEW_LISTS:
        print(f"note: {FEW_LISTS} lists of right answers or fewer make wide intervals; extend the sample by --add N")


# Settings that a forecast does not have.
HIDDEN = ("--device",)


@dataclass(frozen=True, kw_only=True)
class ForecastJob(Run, Folder, ForPrograms):
    """A forecast from a sample of new embeddings."""

    out: Path
    """Folder of the run. An earlier forecast in it is replaced, and fitted maps are reused."""
    new: tuple[str, ...] = ()
    """The new embeddings of the sample: Parquet files, or any other sources that import reads, with the columns id and
    new. Default: the gallery's own, of which only those of the sample are used."""
    sample: Path | None = None
    """File that ray-backfill sample wrote (default: sample.parquet in the folder of embeddings)."""
    evaluation: ForecastSettings = field(default_factory=ForecastSettings)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)
    place: ReplayPlace = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class ForecastModelsJob(ModelsJob, ForPrograms):
    """A forecast of two models on texts or images; the new one embeds a sample of the gallery only."""

    budget: str = "2%"
    """How many gallery items the new model embeds: a number, or a share of the gallery."""
    evaluation: ForecastSettings = field(default_factory=ForecastSettings)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)
    place: ReplayPlace = field(default_factory=ReplayPlace)


def forecast_options(arguments: Sequence[str]) -> Options:
    """The options of two models, or of a folder, which may come first, without --data."""
    if names_models(arguments):
        return models_options(ForecastModelsJob, arguments, HIDDEN)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--data", *arguments]
    elif not names_folder(arguments) and "--help" not in arguments:
        raise InputError("name the folder of embeddings first: ray-backfill forecast DIR --new SOURCE")
    return folder_options(ForecastJob, arguments, HIDDEN)


def run_forecast(job: ForecastJob | ForecastModelsJob) -> None:
    """Forecast, and print the table and the path of the report."""
    check_names(job)
    from ray_backfill.forecast.report import as_json, decide, print_forecast, read_forecast
    from ray_backfill.forecast.run import forecast_folder, forecast_models

    if isinstance(job, ForecastModelsJob):
        specs, sources = job.checked()
        with running(job) as context:
            check_places(context)
            results = forecast_models(specs, sources, job.items, job.budget, job.evaluation, job.fits, context)
    else:
        data = absolute("--data", job.data)
        sample = job.sample or data / SAMPLE_FILE
        with running(job) as context:
            results = forecast_folder(data, sample, job.new, job.evaluation, job.fits, context)

    def table() -> None:
        print_forecast(results)
        print(f"\nreport: {shown(results / 'report.html')}")

    job.tell(lambda: as_json(results), lambda: decide(read_forecast(results)), table)
