"""Forecasts: from a sample's new embeddings to tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill import __version__
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.orders import embeddings_of
from ray_backfill.comparison.resolve import Comparison, resolve
from ray_backfill.errors import InputError
from ray_backfill.files import replaced_whole, write_json
from ray_backfill.forecast import Forecast, Known, Units, forecast_pair, why_not_forecast
from ray_backfill.forecast import summary as numbers
from ray_backfill.forecast.calibration import Calibration
from ray_backfill.forecast.estimate import exact_units
from ray_backfill.forecast.stand_in import fit_stand_in
from ray_backfill.methods import Embeddings, Method
from ray_backfill.orders import find_order
from ray_backfill.progress import Stage, stage, step
from ray_backfill.replay import replay
from ray_backfill.runs.context import Context
from ray_backfill.runs.folder import fit_maps
from ray_backfill.runs.sampling import (
    StoredSample,
    free_pairs,
    positions_of,
    random_part,
    read_before_backfill,
    read_sample,
)
from ray_backfill.store import EmbeddingFolder, read_table
from ray_backfill.store import take as take_rows
from ray_backfill.systems import FloatArray, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.tables.forecast import TABLES, CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow
from ray_backfill.tables.results import NEW, OLD
from ray_backfill.tables.schema import frame, write_table
from ray_backfill.training.settings import FitSettings

FORMAT = 1
_RANGES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, float("inf"))


@dataclass(frozen=True, eq=False)
class KnownItems:
    """Gallery items whose new embeddings are given. position: (n,). new: (n, d). at_random: (n,)."""

    position: IntArray
    new: FloatArray
    at_random: NDArray[np.bool_]


@dataclass(frozen=True)
class Tables:
    """The tables of a forecast, and what its manifest says. left_out: method or order -> why it has no forecast."""

    curves: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    calibration: pd.DataFrame
    facts: dict[str, object] = field(default_factory=dict)


def forecast_folder(
    data: Path, sample: Path, new: Path | None, evaluation: Evaluation, fits: FitSettings, context: Context
) -> Path:
    """Forecast the curves of methods into ``out/forecast``; returns that folder.

    sample: the list that ``sample`` wrote. new: Parquet file or folder with id and new, by default the gallery's own
    new embeddings, of which only those of the sample are read.

    Raises:
        InputError: A file is missing or does not fit, or something that was asked for cannot be forecast.
    """
    evaluation.check()
    check_can_be_forecast(evaluation)
    with step("read embeddings"):
        folder = read_before_backfill(data)
        stored = read_sample(sample, folder)
        evaluation = replace(evaluation, truth=stored.settings.truth, distance=stored.settings.distance)
        known = find_known(folder, stored, new)
    comparison = resolve(with_stand_ins(folder, stored, known, evaluation.distance), evaluation, fits)
    # Maps that are fitted on the pilot change with every sample; those of a train split are shared with other commands.
    of_pilot = replace(context, out=context.out / "pilot", overwrite=True)
    place = of_pilot if folder.train is None else context
    comparison, _ = fit_maps(comparison, comparison.methods, fits, place)
    tables = forecast_tables(comparison, stored, known)
    out = context.out / "forecast"
    with replaced_whole(out, (*(f"{name}.parquet" for name in TABLES), "manifest.json", "curves.png")) as half:
        for name in TABLES:
            write_table(half / f"{name}.parquet", getattr(tables, name))
        facts = {"stage": "forecast", "format": FORMAT, "version": __version__, "command": context.command}
        write_json(half / "manifest.json", facts | tables.facts)
    return out


def check_can_be_forecast(evaluation: Evaluation) -> None:
    """Raises InputError for a metric, an order, a merge or an option that no forecast has."""
    for metric in evaluation.metrics:
        if why := why_not_forecast(metric):
            raise InputError(f"{metric} cannot be forecast: {why}; use mAP, mAP@100 or recall@100")
    for name in evaluation.orders:
        if find_order(name).is_oracle:
            raise InputError(f"the order {name} uses what is known only after the upgrade; it cannot be forecast")
    if evaluation.merges != ("raw",):
        raise InputError("merges cannot be forecast; leave --merges out")
    if evaluation.distance == "inner_product":
        raise InputError("inner products cannot be forecast; use --distance cosine or l2")
    for option in ("filter", "slices", "cutoffs"):
        if getattr(evaluation, option):
            raise InputError(f"--{option} has no forecast; leave it out")


def find_known(folder: EmbeddingFolder, stored: StoredSample, new: Path | None) -> KnownItems:
    """The new embeddings of the sample, and what else ``new`` holds.

    Raises:
        InputError: An item of the sample has no new embedding.
    """
    sample = stored.sample
    if new is None:
        if "new" not in folder.gallery.vectors:
            raise InputError(f"{folder.path} has no new embeddings; give them with --new FILE (Parquet: id, new)")
        return KnownItems(sample.position, folder.gallery.new[sample.position], random_part(sample))
    table = read_table(new, ("new",), ("new",))
    _check_new(new, table.new, folder, stored.settings.distance)
    position = positions_of(folder.gallery.id, table.id)
    if (position < 0).any():
        raise InputError(
            f"{new} has {int((position < 0).sum()):,} ids that the gallery lacks, such as {table.id[position < 0][0]}"
        )
    missing = np.setdiff1d(sample.position, position)
    if len(missing):
        raise InputError(
            f"{new} lacks {len(missing):,} of the {len(sample):,} items of the sample, such as "
            f"{folder.gallery.id[missing[0]]}; embed them, too"
        )
    random = np.zeros(len(folder.gallery), np.bool_)
    random[sample.at_random] = True
    return KnownItems(position, table.new, random[position])


def _check_new(path: Path, new: FloatArray, folder: EmbeddingFolder, distance: str) -> None:
    """Raises InputError for vectors of another length than the queries', and for zero vectors under cosine."""
    assert folder.queries is not None
    of_queries = folder.queries.new.shape[1]
    if new.shape[1] != of_queries:
        have = f"{path} has vectors of {new.shape[1]} dimensions"
        raise InputError(f"{have}, the queries' new embeddings have {of_queries}; use one model")
    zero = np.flatnonzero(~new.any(axis=1))
    if distance == "cosine" and len(zero):
        raise InputError(
            f"{path}, column 'new': zero vector in row {zero[0]}, which has no cosine distance; embed it again"
        )


def with_stand_ins(folder: EmbeddingFolder, stored: StoredSample, known: KnownItems, distance: str) -> EmbeddingFolder:
    """The folder with stand-ins as new embeddings, and the pilot as train split if it has none."""
    pilot = np.isin(known.position, stored.sample.position[stored.sample.reason == 0])
    old, new = free_pairs(folder)
    of_pilot = folder.gallery.old[known.position[pilot]]
    stand_in = fit_stand_in(np.concatenate([of_pilot, old]), np.concatenate([known.new[pilot], new]), distance)
    vectors = {"old": folder.gallery.old, "new": stand_in(folder.gallery.old)}
    train = folder.train
    if train is None:
        rows = take_rows(folder.gallery, known.position[pilot])
        train = replace(rows, vectors={"old": of_pilot, "new": known.new[pilot]})
    return replace(folder, gallery=replace(folder.gallery, vectors=vectors), train=train)


def forecast_tables(comparison: Comparison, stored: StoredSample, known: KnownItems) -> Tables:
    """Forecast every method in every order."""
    sample, how = stored.sample, comparison.evaluation
    items = Known(known.position, known.at_random, sample.queries, sample.group, sample.n_groups)
    methods = [method for method in comparison.methods if can_be_forecast(method)]
    t = np.linspace(0, 1, how.points)
    with step("measure the start"):
        starts = exact_starts(comparison, methods)
    with stage("forecast", len(methods) * len(sample.queries), "queries") as bar:
        found = {m: forecast_method(comparison, m, items, known, starts[m.name], bar) for m in methods}
    (new,) = found[_named(methods, NEW)].units.values()
    old = {metric: float(units.start.mean()) for metric, units in new.items()}
    rest = [method for method in methods if method.name != NEW]
    rows = [(m, order, name, units) for m in rest for order, by in found[m].units.items() for name, units in by.items()]
    curves = [
        ForecastPoint(method.name, order, metric, float(at), each.value, each.low, each.high)
        for method, order, metric, units in rows
        for at, each in zip(t, numbers.curve(units), strict=True)
    ]
    sizes = (len(known.position), len(comparison.folder.gallery))
    summary = [_row(m, order, metric, units, new[metric], t, *sizes) for m, order, metric, units in rows]
    return Tables(
        frame(ForecastPoint, curves), frame(ForecastRow, summary),
        frame(ForecastDifference, _differences(rows, t)),
        frame(CalibrationRow, [row for method in rest for row in _calibration(method, found[method])]),
        {
            "evaluation": asdict(how), "items": sizes[1], "known": sizes[0], "queries": comparison.truth.n_queries,
            "chosen": len(sample.queries), "old": old, "new": {name: _end(units, t) for name, units in new.items()},
            "left_out": {each.name: each.reason for each in comparison.left_out}
            | {m.name: "it has no forecast" for m in comparison.methods if m not in methods and not m.is_reference},
            "notes": list(comparison.notes),
        },
    )  # fmt: skip


def can_be_forecast(method: Method) -> bool:
    """Whether the engine knows how this method serves: no cascade, no step at the end, and nothing that hides items."""
    return not method.recalls and (method.name == NEW or not method.is_reference) and method.name != "instant"


def _named(methods: Sequence[Method], name: str) -> Method:
    return next(method for method in methods if method.name == name)


def _end(units: Units, t: NDArray[np.float64]) -> list[float]:
    last = numbers.curve(units)[len(t) - 1]
    return [last.value, last.low, last.high]


def exact_starts(comparison: Comparison, methods: Sequence[Method]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Method -> metric -> (Q,) values at t = 0, which need no new embedding of the gallery; NaN without right answers.

    Cost: one pass over the gallery for each distinct backward system.
    """
    how, query = comparison.evaluation, embeddings_of(comparison.folder).query
    old = RetrievalSystem(query["old"], comparison.folder.gallery.old)
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for method in methods:
        same = OLD if method.backward in (OLD, NEW) else method.name
        if same not in found:
            backward = old if same == OLD else comparison.pair(method).backward
            still, anything = UpgradePair(backward, backward), np.arange(len(old.gallery))
            start = replay(still, comparison.truth, anything, 2, how.metrics, how.distance)
            found[same] = {metric: np.full(comparison.truth.n_queries, np.nan) for metric in how.metrics}
            for metric, values in start.per_query.items():
                found[same][metric][start.scored] = values[:, 0]
        found[method.name] = found[same]
    return found


def forecast_method(
    comparison: Comparison, method: Method, items: Known, known: KnownItems, starts: Mapping[str, NDArray[np.float64]],
    bar: Stage | None = None,
) -> Forecast:  # fmt: skip
    """The forecast of a method; if every item is known, its exact curves. Of {new, new}, only the end has a meaning.

    starts: of the method, see ``exact_starts``.
    """
    folder, how = comparison.folder, comparison.evaluation
    given = embeddings_of(folder)
    if len(known.position) == len(folder.gallery):
        return _exact(comparison, method, known)
    pair = comparison.pair(method)
    of_known = Embeddings(given.query, {"old": folder.gallery.old[known.position], "new": known.new})
    after = method.pair(of_known, comparison.maps.of(method)).forward.gallery
    old = RetrievalSystem(given.query["old"], folder.gallery.old)
    if method.name == NEW:
        pair = UpgradePair(old, pair.forward)
    orders = {"": np.arange(len(folder.gallery))} if method.name == NEW else comparison.orders_of(method, pair)
    return forecast_pair(
        pair, old, after, items, comparison.truth, orders, starts, how.points, how.distance,
        method.forward or method.name, bar,
    )  # fmt: skip


def _exact(comparison: Comparison, method: Method, known: KnownItems) -> Forecast:
    """The exact curves of a method, as a forecast without any error."""
    how, old = comparison.evaluation, comparison.folder.gallery.old
    new = np.empty((len(old), known.new.shape[1]), known.new.dtype)
    new[known.position] = known.new
    query = embeddings_of(comparison.folder).query
    pair = method.pair(Embeddings(query, {"old": old, "new": new}), comparison.maps.of(method))
    if method.name == NEW:
        pair = UpgradePair(RetrievalSystem(query["old"], old), pair.forward)
    orders = {"": np.arange(len(old))} if method.name == NEW else comparison.orders_of(method, pair)
    curves = replay(pair, comparison.truth, orders, how.points, how.metrics, how.distance)
    return Forecast(
        {
            order: {metric: exact_units(values) for metric, values in curve.per_query.items()}
            for order, curve in curves.items()
        },
        Calibration(1.0, 0.0),
        [],
    )


def _row(
    method: Method, order: str, metric: str, units: Units, new: Units, t: NDArray[np.float64], known: int,
    gallery: int,
) -> ForecastRow:  # fmt: skip
    area = numbers.area(units, t)
    last, gained = numbers.curve(units)[-1], numbers.gain(units, new, t)
    behind, (fall, start, end) = numbers.end_difference(units, new), numbers.fall(units, t)
    variance = area.of_queries + area.of_answers + area.of_model
    parts = (area.of_queries, area.of_answers, area.of_model)
    of_queries, of_answers, of_model = (part / variance if variance else float("nan") for part in parts)
    return ForecastRow(
        method.name, order, method.title, metric, numbers.curve(units)[0].value, last.value, last.low, last.high,
        area.value, area.low, area.high, gained.value, gained.low, gained.high, behind.value, behind.low, behind.high,
        fall.value, fall.low, fall.high, start, end, of_queries, of_answers, of_model,
        numbers.items_to_halve(area, units.n_groups, known, gallery),
    )  # fmt: skip


def _differences(
    rows: Sequence[tuple[Method, str, str, Units]], t: NDArray[np.float64]
) -> list[ForecastDifference]:  # fmt: skip
    found = []
    for (one, order, metric, units), (other, its_order, its_metric, others) in combinations(rows, 2):
        if (order, metric) == (its_order, its_metric):
            area = numbers.area(units.plus(others, -1.0), t)
            found.append(ForecastDifference(one.name, other.name, order, metric, area.value, area.low, area.high))
    return found


def _calibration(method: Method, found: Forecast) -> list[CalibrationRow]:
    observed, expected = (
        np.concatenate([np.empty(0), *(getattr(each, name) for each in found.checked)])
        for name in ("observed", "expected")
    )
    rows = []
    for low, high in pairwise(_RANGES):
        inside = (expected >= low) & (expected < high)
        if inside.any():
            means = float(expected[inside].mean()), float(observed[inside].mean())
            rows.append(CalibrationRow(method.name, low, high, int(inside.sum()), *means, found.calibration.ratio))
    return rows
