"""``ray-backfill forecast``: the curves of upgrade methods from the new embeddings of a sample."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Suppress

from ray_backfill.cli.options import FolderJob
from ray_backfill.cli.parse import check_names, names_folder, read_folder_options
from ray_backfill.cli.shell import given_folder, shown
from ray_backfill.compare.evaluation import RECOMMENDED, Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.forecast.stored_sample import NAME
from ray_backfill.workers.settings import ReplayPlace


@dataclass(frozen=True)
class ForecastEvaluation(Evaluation):
    """Without the options that a forecast takes from its sample, and those that it does not have."""

    metrics: tuple[str, ...] = (RECOMMENDED,)
    """Metrics of retrieval: mAP, nDCG, mAP@k, nDCG@k, recall@k for any k from 100 on; "recommended" stands for
    mAP@100 and recall@100, because nDCG@10 and CMC@1 cannot be forecast. The first one leads the report."""
    merges: Suppress[tuple[str, ...]] = ("raw",)
    distance: Suppress[str] = "cosine"
    truth: Suppress[tuple[str, ...]] = ()
    filter: Suppress[str] = ""
    slices: Suppress[tuple[str, ...]] = ()
    permutations: Suppress[int] = 1
    cutoffs: Suppress[tuple[float, ...]] = ()


@dataclass(frozen=True)
class ForecastPlace(ReplayPlace):
    """Without GPUs."""

    device: Suppress[str] = "cpu"


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
    evaluation: Annotated[ForecastEvaluation, tyro.conf.arg(name="")] = field(
        default_factory=ForecastEvaluation.of_folder
    )
    place: Annotated[ForecastPlace, tyro.conf.arg(name="")] = field(default_factory=ForecastPlace)


def read(arguments: Sequence[str]) -> Any:
    """The options; a folder may come first, without --data."""
    named = list(arguments)
    if arguments and not arguments[0].startswith("-"):
        named = ["--data", *arguments]
    elif not names_folder(arguments) and not {"-h", "--help"} & set(arguments):
        raise InputError("name the folder of embeddings first: ray-backfill forecast DIR --new SOURCE")
    return read_folder_options(ForecastJob, named)


def run(arguments: Sequence[str]) -> None:
    """Forecast, and print the table and the path of the report."""
    job = read(arguments)
    check_names(job)
    from ray_backfill.cli.context import running
    from ray_backfill.forecast.report import print_forecast
    from ray_backfill.forecast.run import forecast_folder

    data = given_folder(job.data)
    with running(job) as context:
        results = forecast_folder(data, job.sample or data / NAME, job.new, job.evaluation, job.fits, context)
    print_forecast(results)
    print(f"\nreport: {shown(results / 'report.html')}")
