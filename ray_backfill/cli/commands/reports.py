"""``ray-backfill doctor`` and ``report``: what a folder of embeddings, or a run, holds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ray_backfill.cli import shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import ForPrograms
from ray_backfill.core.errors import InputError
from ray_backfill.core.outcome import Decision
from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import NotWritableError


@dataclass(frozen=True)
class StoreSettings:
    """What is looked at in a store, and by which model."""

    id: str = "id"
    """Column of ids, of a store."""
    column: tuple[str, ...] = ()
    """Columns of vectors, of a store; by default every column of lists of numbers."""
    model: str = ""
    """Model that should have made the vectors of a store's column, as docs/models.md writes it; its texts are embedded
    again."""
    text_column: str = "text"
    """Column of the texts that --model embeds."""
    sample: int = 200
    """Texts that --model embeds, drawn at random, at most 8,192."""


@dataclass(frozen=True)
class DoctorJob(ForPrograms):
    """An examination of a folder of embeddings, or of a store."""

    data: str
    """Folder with gallery.parquet and, optionally, queries.parquet, train.parquet and validation.parquet; or a store or
    file of vectors, written as for import."""
    settings: StoreSettings = field(default_factory=StoreSettings)


def doctor_options(arguments: Sequence[str]) -> Options:
    """The folder or the store."""
    return Options(DoctorJob(REQUIRED), arguments, positional="data")


def run_doctor(job: DoctorJob) -> None:
    """Print what the folder or the store holds and what is wrong."""
    from ray_backfill.compare.diagnose import diagnose, diagnose_store, print_diagnosis

    path = path_of(job.data, or_source=True)
    # gallery.parquet and items.lance may be folders, too.
    is_folder = path.is_dir() and path.suffix not in (".parquet", ".lance")
    if is_folder and job.settings != StoreSettings():
        raise InputError(
            f"{job.data} is a folder of embeddings; for columns of its items, name {job.data}/gallery.parquet"
        )
    diagnosis = diagnose(path.absolute()) if is_folder else diagnose_store(job.data, **asdict(job.settings))
    decision = Decision.GO if diagnosis.is_sound else Decision.OPEN
    job.tell(diagnosis.as_json, lambda: decision, lambda: print_diagnosis(diagnosis, str(shown(path.absolute()))))


@dataclass(frozen=True)
class ReportJob:
    """The report of a finished run, or ranked lists of a finished simulation in TREC's format."""

    folder: Path
    """Folder of the run, or its results folder."""
    run: Path | None = None
    """Write the lists of --method into this file, and the right answers into FILE.qrels, instead of the report."""
    method: str = ""
    """Whose lists: old, new or any method of the run."""
    order: str = ""
    """Backfill order; by default the first of the run."""
    merge: str = ""
    """Merge; by default the first of the run."""
    at: str = "0%"
    """Share of the gallery that is backfilled."""
    depth: int = 0
    """Items of a list; 0 stands for 1,000, or the largest cut-off of the run's metrics."""


def report_options(arguments: Sequence[str]) -> Options:
    """The folder."""
    return Options(ReportJob(REQUIRED), arguments, positional="folder")


def run_report(job: ReportJob) -> None:
    """Print the table, and rewrite curves.png and report.html from the tables; or write lists."""
    folder = job.folder.absolute()
    if (job.run is None) != (not job.method) or job.depth < 0:
        raise InputError("lists need --run FILE and --method NAME, and a --depth above 0, if any")
    forecasts = [path for path in (folder, folder / "forecast") if (path / "calibration.parquet").exists()]
    live = [path for path in (folder, folder / "live") if (path / "checkpoints.parquet").exists()]
    simulations = [path for path in (folder, folder / "results", folder / "live") if (path / "curves.parquet").exists()]
    simulations = [path for path in simulations if path not in forecasts]
    plans = [path for path in (folder, folder / "plan") if (path / "what_if.parquet").exists()]
    if not simulations and not live and not forecasts and not plans:
        raise InputError(
            f"{shown(folder)} holds no results: give the folder that simulate, forecast or drill wrote with --out, or "
            "that of a plan"
        )
    if job.run is not None:
        from ray_backfill.compare.trec import write_lists

        results = next((path for path in simulations if path.name != "live"), folder)
        write_lists(results, job.run.absolute(), job.method, job.order, job.merge, job.at, job.depth)
        return print(f"lists: {job.run}\nright answers: {job.run}.qrels")
    from ray_backfill.compare.report import print_table, write_report
    from ray_backfill.drill.report import print_live_table, write_live_report
    from ray_backfill.forecast.report import print_forecast, write_forecast_report
    from ray_backfill.plan.report import read_plan, write_plan_report

    products: tuple[tuple[Callable[[Path], None], Callable[[Path], None], list[Path]], ...] = (
        (write_report, print_table, simulations),
        (write_live_report, print_live_table, live),
        (write_forecast_report, print_forecast, forecasts),
        (write_plan_report, lambda path: read_plan(path).show(), plans),
    )
    for write, show, paths in products:
        for path in paths:
            last = f"report: {shown(path / 'report.html')}"
            try:
                write(path)
            except NotWritableError as error:
                last = f"the report was not written again: {error}"
            show(path)
            print(f"\n{last}")
