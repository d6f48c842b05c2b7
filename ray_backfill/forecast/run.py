"""Forecasts: from a sample's new embeddings to a folder of tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ray_backfill import __version__
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_maps
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.compare.tables import HEAD_ALONE
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step, task
from ray_backfill.core.schema import write_table
from ray_backfill.core.stages import replaced_whole, write_json
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.orders import find_order
from ray_backfill.forecast import Forecast, why_not_forecast
from ray_backfill.forecast.known_items import find_known, with_pilot, with_stand_ins
from ray_backfill.forecast.methods import Gallery, KnownItems, can_be_forecast, forecast_method, gallery_here
from ray_backfill.forecast.report import write_forecast_report
from ray_backfill.forecast.stored_sample import read_before_backfill, read_sample
from ray_backfill.forecast.tables import TABLES
from ray_backfill.forecast.tabulate import forecast_tables
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.context import Context

FORMAT = 1
_MOST_POINTS = 1001
# What stands for nDCG@10 and CMC@1, which depend on too few right answers. The intervals of nDCG@100 held 90 % of the
# time on an invented gallery, those of these two 95 % and more (docs/results/forecast.md).
_RECOMMENDED = ("mAP@100", "recall@100")
# Files beside the tables.
_OTHERS = ("manifest.json", "curves.png", "report.html")


def forecast_folder(
    data: Path, sample: Path, new: Sequence[str], evaluation: Evaluation, fits: FitSettings, context: Context
) -> Path:
    """Forecast the curves of methods into ``out/forecast``; returns that folder.

    sample: the list that ``sample`` wrote. new: sources of vectors with id and new (see ``sources``), by default the
    gallery's own new embeddings, of which only those of the sample are read. evaluation: its truth and its distance are
    replaced by those of the sample.

    Raises:
        InputError: A file is missing or does not fit, or something that was asked for cannot be forecast.
    """
    evaluation = evaluation.named.with_recommended(_RECOMMENDED).evaluation
    _check_evaluation(evaluation)
    out = context.out / "forecast"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out")
    with step("read embeddings"):
        folder = read_before_backfill(data)
        stored = read_sample(sample, folder)
        chosen = stored.settings
        evaluation = replace(evaluation, truth=chosen.truth, distance=chosen.distance, merges=(RAW.name,))
        items = find_known(folder, stored, new)
    of_fits = context
    if folder.train is None:  # maps that are fitted on the pilot change with every sample
        of_fits = replace(context, out=context.out / "pilot", overwrite=True)
        folder = with_pilot(folder, items, of_fits.out)
    comparison = resolve(with_stand_ins(folder, items), evaluation.named, fits)
    _check_methods(comparison)
    # A forecast has no reference beside {new, new}.
    comparison = comparison.only([method for method in comparison.methods if method.name != HEAD_ALONE])
    comparison, _ = fit_maps(comparison, comparison.methods, fits, of_fits)
    with _gallery_of(comparison, items, context) as gallery:
        found = forecast_methods(comparison, items, gallery)
    tables = forecast_tables(comparison, items, found)
    with replaced_whole(out, (*(f"{name}.parquet" for name in TABLES), *_OTHERS)) as half:
        for name in TABLES:
            write_table(half / f"{name}.parquet", getattr(tables, name))
        facts = {"stage": "forecast", "format": FORMAT, "version": __version__, "command": context.command}
        write_json(half / "manifest.json", facts | tables.facts)
    write_forecast_report(out)  # after the results: a page that cannot be made must not take them with it
    return out


def _check_evaluation(evaluation: Evaluation) -> None:
    """Raises InputError for a metric, an order or a number of points that no forecast has."""
    for metric in evaluation.metrics:
        if why := why_not_forecast(metric):
            raise InputError(f"{metric} cannot be forecast: {why}; use mAP, mAP@100 or recall@100")
    for name in evaluation.orders:
        if find_order(name).is_oracle:
            raise InputError(f"the order {name} uses what is known only after the upgrade; it cannot be forecast")
    if evaluation.points > _MOST_POINTS:
        raise InputError(f"--points {evaluation.points} is too many for a forecast; give at most {_MOST_POINTS:,}")


def _check_methods(comparison: Comparison) -> None:
    """Raises InputError if none of the methods can be forecast."""
    if not any(can_be_forecast(method) and not method.is_reference for method in comparison.methods):
        why = "; ".join(f"{each.name}: {each.reason}" for each in comparison.left_out) or "old and new are references"
        raise InputError(f"none of the methods can be forecast ({why}); choose others with --methods")


def forecast_methods(comparison: Comparison, items: KnownItems, gallery: Gallery) -> dict[Method, Forecast]:
    """Forecast every method that can be forecast, in every order."""
    methods = [method for method in comparison.methods if can_be_forecast(method)]
    with step("measure the start"):
        starts = gallery.starts(methods)
    with task("forecast", len(methods) * len(items.known.queries), "method-query pairs") as bar:
        return {m: forecast_method(comparison, m, items, gallery, starts[m.name], bar) for m in methods}


@contextmanager
def _gallery_of(comparison: Comparison, items: KnownItems, context: Context) -> Iterator[Gallery]:
    """The gallery in this process, or in shards, for which Ray is started."""
    size = sum(vectors.nbytes for vectors in comparison.folder.gallery.vectors.values())
    shards = context.place.shards_for(size)
    if not shards:
        yield gallery_here(comparison)
        return
    from ray_backfill.forecast.ray import gallery_in_shards

    with gallery_in_shards(comparison, items, shards) as gallery:
        yield gallery
