"""``ray-backfill forecast``: the curves of upgrade methods from the new embeddings of a sample."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.options import Options
from ray_backfill.cli.runs import FolderJob, check_names, folder_options, names_folder, running
from ray_backfill.compare.evaluation import RECOMMENDED, Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.forecast.stored_sample import NAME
from ray_backfill.workers.settings import ReplayPlace

# Settings that a forecast takes from its sample, or does not have.
HIDDEN = ("--merges", "--distance", "--truth", "--filter", "--slices", "--permutations", "--cutoffs", "--device")


@dataclass(frozen=True)
class ForecastEvaluation(Evaluation):
    """Methods, orders and metrics of a forecast."""

    metrics: tuple[str, ...] = (RECOMMENDED,)
    """Metrics of retrieval: mAP, nDCG, mAP@k, nDCG@k, recall@k for any k from 100 on; "recommended" stands for
    mAP@100 and recall@100, because nDCG@10 and CMC@1 cannot be forecast. The first one leads the report."""


@dataclass(frozen=True, kw_only=True)
class ForecastJob(FolderJob):
    """A forecast from a sample of new embeddings."""

    out: Path
    """Folder of the run. An earlier forecast in it is replaced, and fitted maps are reused."""
    new: tuple[str, ...] = ()
    """The new embeddings of the sample: Parquet files, or any other sources that import reads, with the columns id and
    new. Default: the gallery's own, of which only those of the sample are used."""
    sample: Path | None = None
    """File that ray-backfill sample wrote (default: sample.parquet in the folder of embeddings)."""
    evaluation: ForecastEvaluation = field(default_factory=ForecastEvaluation.of_folder)
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
        results = forecast_folder(data, job.sample or data / NAME, job.new, job.evaluation, job.fits, context)
    print_forecast(results)
    print(f"\nreport: {shown(results / 'report.html')}")
