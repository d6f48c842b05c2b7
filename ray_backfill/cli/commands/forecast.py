"""``ray-backfill forecast``: the curves of upgrade methods from the new embeddings of a sample."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import Options
from ray_backfill.cli.runs import Folder, Run, check_names, folder_options, names_folder, running
from ray_backfill.core.errors import InputError
from ray_backfill.forecast.settings import SAMPLE_FILE, ForecastSettings
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import ReplayPlace, Workers

# Settings that a forecast does not have.
HIDDEN = ("--device",)


@dataclass(frozen=True, kw_only=True)
class ForecastJob(Run, Folder):
    """A forecast from a sample of new embeddings."""

    out: Path
    """Folder of the run. An earlier forecast in it is replaced, and fitted maps are reused."""
    new: tuple[str, ...] = ()
    """The new embeddings of the sample: Parquet files, or any other sources that import reads, with the columns id and
    new. Default: the gallery's own, of which only those of the sample are used."""
    sample: Path | None = None
    """File that ray-backfill sample wrote (default: sample.parquet in the folder of embeddings)."""
    evaluation: ForecastSettings = field(default_factory=ForecastSettings)
    fits: FitSettings = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)
    place: ReplayPlace = field(default_factory=ReplayPlace)


def options(arguments: Sequence[str]) -> Options:
    """The options; a folder may come first, without --data."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--data", *arguments]
    elif not names_folder(arguments) and "--help" not in arguments:
        raise InputError("name the folder of embeddings first: ray-backfill forecast DIR --new SOURCE")
    return folder_options(ForecastJob, arguments, HIDDEN)


def run(job: ForecastJob) -> None:
    """Forecast, and print the table and the path of the report."""
    check_names(job)
    from ray_backfill.forecast.report import print_forecast
    from ray_backfill.forecast.run import forecast_folder

    data = absolute("--data", job.data)
    with running(job) as context:
        results = forecast_folder(data, job.sample or data / SAMPLE_FILE, job.new, job.evaluation, job.fits, context)
    print_forecast(results)
    print(f"\nreport: {shown(results / 'report.html')}")
