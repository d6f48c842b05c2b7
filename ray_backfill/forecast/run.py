"""Forecasts a folder: from a sample's new embeddings to a folder of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations, pairwise
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.fits import fit_maps
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.compare.tables import HEAD_ALONE, NEW
from ray_backfill.core import __version__
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step, task
from ray_backfill.core.schema import frame, read_checked, write_table
from ray_backfill.core.stages import replaced_whole, write_json
from ray_backfill.data.alignment import check_alignment
from ray_backfill.data.columns import names_in, part_files
from ray_backfill.data.identity import short_names
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items, write_some
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.spec import Spec
from ray_backfill.encode.stage import embed_items, embed_two
from ray_backfill.forecast import estimate as numbers
from ray_backfill.forecast.engine import Forecast
from ray_backfill.forecast.estimate import Units
from ray_backfill.forecast.known_items import NewEmbeddings, find_new, with_known, with_pilot, with_stand_ins
from ray_backfill.forecast.methods import (
    Gallery,
    Merged,
    can_be_forecast,
    first_results,
    forecast_method,
    gallery_here,
    with_merges,
)
from ray_backfill.forecast.report import write_forecast_report
from ray_backfill.forecast.sample import (
    StoredSample,
    parts_with_few,
    read_before_backfill,
    read_sample,
    take_sample,
)
from ray_backfill.forecast.settings import SAMPLE_FILE, ForecastSettings, SampleSettings
from ray_backfill.forecast.tables import TABLES, CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context

FORMAT = 1


def forecast_models(
    specs: Mapping[str, Spec], sources: ItemSources, items: ItemSettings, budget: str, settings: ForecastSettings,
    fits: FitSettings, context: Context,
) -> Path:  # fmt: skip
    """Forecast the upgrade of two models on texts or images, of which the new one embeds a sample only.

    The sample is that of ``sample_models``; the new model embeds each of its rounds once (OUT/sampled).

    Raises:
        InputError: See ``forecast_folder``, ``sample_models`` and ``embed_items``.
    """
    settings.check()
    data, file, stored = sample_models(specs, sources, items, budget, context)
    ids, embedded = np.asarray(read_checked(file, ["id"])["id"].to_pylist()), []
    for number in range(1, int(stored.round_n.max()) + 1):
        of_round = ids[stored.round_n == number].tolist()
        some = write_some(context.out / "sampled_items" / f"round-{number}", context.out / "items", of_round, True)
        request = EncodeRequest(some, sources.modality, {"new": specs["new"]})
        folder = embed_items(context.out / "sampled" / f"round-{number}", request, context.actors, True)
        embedded.append(str(folder / "gallery.parquet"))
    return forecast_folder(data, file, embedded, settings, fits, context)


def sample_models(
    specs: Mapping[str, Spec], sources: ItemSources, items: ItemSettings, budget: str, context: Context
) -> tuple[Path, Path, StoredSample]:
    """Choose the items that the new model should embed; returns the folder of what is known, the file and the sample.

    The old model embeds the gallery, both embed queries and train items (OUT/before). The sample (OUT/sample.parquet)
    is extended if an earlier one is smaller. budget: a number of items, or a share as "2%".

    Raises:
        InputError: See ``take_sample`` and ``embed_items``.
    """
    _number_of(budget)
    written = write_items(context.out / "items", sources, items, context.overwrite)
    if not {"positives", "label"} & set(names_in(part_files(written / "queries.parquet")[0])):
        raise InputError("a forecast needs right answers: labels of the items, or a folder as BEIR or MTEB has it")
    data, file = embed_two(context, specs, sources, items, ("old",)), context.out / SAMPLE_FILE
    folder = read_before_backfill(data)
    number = _number_of(budget, len(folder.gallery))
    try:
        stored = read_sample(file, folder) if file.exists() else None
    except InputError as error:  # of other data; what fits is kept, because the new model has embedded it
        if not context.overwrite:
            raise InputError(f"{error}, with --overwrite") from error
        file.unlink()
        stored = None
    if stored is None:
        return data, file, take_sample(data, file, number, SampleSettings())
    if number > len(stored.sample):
        stored = take_sample(data, file, 0, SampleSettings(), number - len(stored.sample))
    elif number < len(stored.sample):
        say(f"{file} has {len(stored.sample):,} items already, more than asked; all of them are used")
    return data, file, stored


def _number_of(budget: str, size: float = inf) -> int:
    """Items of a budget. size: of the gallery; infinite while it is unknown."""
    try:
        number = round(float(budget[:-1]) / 100 * min(size, 1 << 62)) if budget.endswith("%") else int(budget)
    except (ValueError, OverflowError):
        raise InputError(f"--budget is a number of items or a share such as 2%, not {budget!r}") from None
    if not 0 < number <= min(size, 1 << 62):
        raise InputError(
            f"--budget {budget}: give more than 0, and no more than all{f' {size:,}' * (size < inf)} items"
        )
    return number


def forecast_folder(
    data: Path, sample: Path, new: Sequence[str], settings: ForecastSettings, fits: FitSettings, context: Context
) -> Path:
    """Forecast the curves of methods into ``out/forecast``; returns that folder.

    sample: the list that ``sample`` wrote. new: sources of vectors with id and new (see ``sources``), by default the
    gallery's own new embeddings, of which only those of the sample are read.

    Raises:
        InputError: A file is missing or does not fit, or something that was asked for cannot be forecast.
    """
    settings.check()
    out = context.out / "forecast"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out")
    with step("read embeddings"):
        folder = read_before_backfill(data)
        stored = read_sample(sample, folder)
        if stored.settings.filter and context.place.shards:
            raise InputError("a sample with --filter is counted in this process; leave --shards out")
        given = find_new(folder, stored, new)
        check_alignment(with_known(folder, given))
    of_fits = context
    if folder.train is None:  # maps that are fitted on the pilot change with every sample
        of_fits = replace(context, out=context.out / "pilot", overwrite=True)
        folder = with_pilot(folder, given, of_fits.out)
    comparison = resolve(with_stand_ins(folder, given), settings.judged_as(stored.settings), fits)
    if not any(can_be_forecast(method) and not method.is_reference for method in comparison.methods):
        why = "; ".join(f"{gone.name}: {gone.reason}" for gone in comparison.left_out) or "old and new are references"
        raise InputError(f"none of the methods can be forecast ({why}); choose others with --methods")
    # {new, new} is the only reference of a forecast.
    comparison = comparison.only([method for method in comparison.methods if method.name != HEAD_ALONE])
    comparison, _ = fit_maps(comparison, fits, of_fits)
    size = sum(vectors.nbytes for vectors in comparison.folder.gallery.vectors.values())
    if shards := 0 if stored.settings.filter else context.place.shards_for(size):
        from ray_backfill.forecast.ray.shards import gallery_in_shards

        with gallery_in_shards(comparison, given, shards) as gallery:
            forecasts = forecast_methods(comparison, given, gallery)
    else:
        forecasts = forecast_methods(comparison, given, gallery_here(comparison))
    tables = _tables(comparison, given, forecasts)
    judged = {name: getattr(stored.settings, name) for name in ("truth", "distance", "filter")}
    evaluation = asdict(settings) | {"metrics": comparison.evaluation.metrics} | judged
    facts = {"stage": "forecast", "format": FORMAT, "version": __version__, "command": context.command}
    facts |= {"evaluation": evaluation} | _facts(comparison, given, forecasts)
    others = ("manifest.json", "curves.png", "report.html")
    with replaced_whole(out, (*(f"{name}.parquet" for name in TABLES), *others)) as half:
        for name, table in tables.items():
            write_table(half / f"{name}.parquet", table)
        write_json(half / "manifest.json", facts)
    write_forecast_report(out)  # after the results: a page that cannot be made must not take them with it
    return out


def forecast_methods(comparison: Comparison, given: NewEmbeddings, gallery: Gallery) -> dict[Merged, Forecast]:
    """Forecast every method that can be forecast, in every order."""
    several = with_merges(comparison)
    with step("measure the start"):
        starts = gallery.starts(several)
    with task("forecast", len(several) * len(given.known.queries), "method-query pairs") as bar:
        return {
            merged: forecast_method(comparison, merged, given, gallery, own, bar)
            for merged, own in zip(several, starts, strict=True)
        }


def _tables(
    comparison: Comparison, given: NewEmbeddings, forecasts: Mapping[Merged, Forecast]
) -> Mapping[str, pd.DataFrame]:
    t = np.linspace(0, 1, comparison.evaluation.points)
    new = _of_new(forecasts)
    rest = {merged: forecast for merged, forecast in forecasts.items() if merged.method.name != NEW}
    curves = [
        (merged, order, metric, units)
        for merged, forecast in rest.items()
        for order, by_metric in forecast.units.items()
        for metric, units in by_metric.items()
    ]
    points = [
        ForecastPoint(merged.method.name, order, metric, float(at), *limits)
        for merged, order, metric, units in curves
        for at, limits in zip(t, numbers.curve(units), strict=True)
    ]
    sizes = (given.sampled, len(comparison.folder.gallery))
    rows = [_row(own, order, metric, units, new[False][metric], t, *sizes) for own, order, metric, units in curves]
    differences = [
        ForecastDifference(
            one.method.name, other.method.name, order, metric, *numbers.area(units.plus(others, -1.0), t).limits
        )
        for (one, order, metric, units), (other, *of_other, others) in combinations(curves, 2)
        if [order, metric] == of_other
    ]
    checked = [row for merged, forecast in rest.items() for row in _calibration(merged.method, forecast)]
    return {
        "curves": frame(ForecastPoint, points),
        "summary": frame(ForecastRow, rows),
        "differences": frame(ForecastDifference, differences),
        "calibration": frame(CalibrationRow, checked),
    }


def _of_new(forecasts: Mapping[Merged, Forecast]) -> Mapping[bool, Mapping[str, Units]]:
    """With CSLS or not -> metric -> the curve of {new, new}, of which the ends have a meaning."""
    of_new = [(merged, forecast) for merged, forecast in forecasts.items() if merged.method.name == NEW]
    return {merged.has_csls: next(iter(forecast.units.values())) for merged, forecast in of_new}


def _ends(new: Mapping[str, Units]) -> dict[str, object]:
    """By metric, what the old service has, and the new model alone with its interval."""
    return {
        "old": {metric: float(units.start.mean()) for metric, units in new.items()},
        "new": {metric: list(numbers.curve(units)[-1]) for metric, units in new.items()},
    }


def _facts(comparison: Comparison, given: NewEmbeddings, forecasts: Mapping[Merged, Forecast]) -> dict[str, object]:
    """What the manifest says about the data, and about what was left out."""
    known, new = given.known, _of_new(forecasts)
    gone = {missing.name: missing.reason for missing in comparison.left_out}
    methods = {merged.method for merged in forecasts}
    gone |= {m.name: "it has no forecast" for m in comparison.methods if m not in methods and not m.is_reference}
    return _ends(new[False]) | {
        "items": len(comparison.folder.gallery), "known": len(known.position), "queries": comparison.truth.n_queries,
        "chosen": len(known.queries), "lists": len(np.unique(known.group)),
        "with_csls": _ends(new[True]) if True in new else None, "left_out": gone, "notes": list(comparison.notes),
        "first_results": first_results(comparison, given),
        "parts_with_few": parts_with_few(comparison.truth, known.queries, known.position[known.at_random]),
        "data": {"models": models} if (models := short_names(comparison.folder.identities)) else {},
    }  # fmt: skip


def _row(
    merged: Merged, order: str, metric: str, units: Units, new: Units, t: NDArray[np.float64], sampled: int,
    gallery: int,
) -> ForecastRow:  # fmt: skip
    area = numbers.area(units, t)
    first, *_, last = numbers.curve(units)
    fall, start, end = numbers.fall(units, t)
    parts = (area.of_queries, area.of_answers, area.of_model)
    of_queries, of_answers, of_model = (part / area.variance if area.variance else float("nan") for part in parts)
    return ForecastRow(
        merged.method.name, order, merged.title, merged.merge.name, metric, first.value, *last, *area.bounded,
        *numbers.gain(units, new, t), *numbers.end_difference(units, new), *fall, start, end, of_queries, of_answers,
        of_model, numbers.items_to_halve(area, units.n_groups, sampled, gallery),
    )  # fmt: skip


def _calibration(method: Method, forecast: Forecast) -> list[CalibrationRow]:
    observed, expected = (
        np.concatenate([np.empty(0), *(getattr(query, name) for query in forecast.checked)])
        for name in ("observed", "expected")
    )
    rows = []
    for low, high in pairwise((0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, inf)):
        inside = (expected >= low) & (expected < high)
        if inside.any():
            means = float(expected[inside].mean()), float(observed[inside].mean())
            rows.append(CalibrationRow(method.name, low, high, int(inside.sum()), *means, forecast.calibration.ratio))
    return rows
