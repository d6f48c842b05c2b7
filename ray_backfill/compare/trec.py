"""Writes ranked lists of a finished run, and its right answers, as files that TREC's tools read.

A run stores what lists depend on, not the lists. They are searched again, and must give the figures of its tables.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import resolve_merges
from ray_backfill.compare.orders import resolve_orders
from ray_backfill.compare.report import AGAIN, read_data
from ray_backfill.compare.resolve import Comparison, resolve_truth
from ray_backfill.compare.results import ResultsData, Variant
from ray_backfill.compare.run import with_sample
from ray_backfill.compare.write import STAGE, results_key
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.progress import step, track
from ray_backfill.core.stages import is_finished, write_whole
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.orders import find_order
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import IntArray
from ray_backfill.learn.methods import find_methods, models_of
from ray_backfill.learn.training.settings import ClassificationSettings

# Items of a list, unless a metric of the run counts more. Queries that are searched together.
_DEPTH, _TOGETHER = 1000, 1000


def write_lists(results: Path, file: Path, method: str, order: str, merge: str, at: str, depth: int) -> None:
    """Write the lists of a method at a moment into ``file``, and the right answers into ``file``.qrels.

    Scores count from the end of a full list: no two of a list are equal, so a sort by score keeps our order. Cost: one
    search of the gallery. Raises InputError if the run has no such curve, or its embeddings or maps are gone or others.
    """
    share = Fraction(at.removesuffix("%")) / (100 if "%" in at else 1) if re.fullmatch(r"\d*\.?\d+%?", at) else 2
    if share > 1:
        raise InputError(f"--at is the share of the gallery that is backfilled, such as 50% or 0.5, not {at!r}")
    finished = read_data(results)
    known = {f"{row.method} {row.order} {row.merge}": row for row in finished.rows}
    fit = (row for row in known.values() if row.method == method and {order, merge} <= {"", row.order, row.merge})
    if (row := next(fit, None)) is None:
        raise unknown_name("method, order and merge", " ".join(filter(None, (method, order, merge))), known)
    comparison = _reopened(finished, results, row.variant)
    truth, gallery = comparison.truth, comparison.folder.gallery
    query_ids, item_ids = (of.id.astype(str).astype(object) for of in (comparison.folder.queries or gallery, gallery))
    grades = np.ones(len(truth.positives)) if truth.grades is None else truth.grades
    if wrong := [id_ for id_ in (*query_ids, *item_ids) if len(id_.split()) != 1] or grades[grades % 1 > 0].tolist():
        raise InputError(f"TREC's files hold ids of one word and whole grades, not {wrong[0]!r}; change it, {AGAIN}")
    k = min(len(gallery), depth or max(_DEPTH, *(parse_metric(metric).k or 0 for metric in finished.metrics)))
    metrics = [metric for metric in finished.metrics if (parse_metric(metric).k or len(gallery)) <= k]
    values: list[NDArray[np.float64]] = []

    def lines() -> Iterator[str]:
        ends = [f"{place + 1} {k - place} {'/'.join((method, *row.variant, at))}\n" for place in range(k)]
        for queries, item in _lists(comparison, method, int(share * len(gallery)), k):
            values.append(measure_lists(item, truth, queries, metrics)[0][:, 0])
            for query, listed in zip(query_ids[queries], item, strict=True):
                yield from (
                    f"{query} Q0 {i} {end}" for i, end in zip(item_ids[listed[listed >= 0]], ends, strict=False)
                )
        weights = None if truth.weights is None else stats.relative_weights(np.delete(truth.weights, truth.skipped))
        for metric, value in zip(metrics, stats.mean(np.concatenate(values), weights), strict=True):
            there = finished.moments[method, row.variant, metric].value
            place = share * (len(there) - 1)
            if place.denominator == finished.evaluation["permutations"] == 1 and abs(value - there[int(place)]) > 1e-9:
                raise InputError(f"the lists have {metric} {value:.6f}, the tables {there[int(place)]:.6f}: {AGAIN}")

    columns = np.repeat(query_ids, np.diff(truth.positive_starts)), item_ids[truth.positives], grades
    answers = (f"{query} 0 {item} {grade:.0f}\n" for query, item, grade in zip(*columns, strict=True))
    _write_lines(file, lines())
    _write_lines(file.with_name(f"{file.name}.qrels"), answers)


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as out:
            out.writelines(lines)

    write_whole(path, write)


def _reopened(finished: ResultsData, results: Path, variant: Variant) -> Comparison:
    """The comparison of finished results, for one order and one merge."""
    run, settings, data = results.parent, finished.manifest.settings, Path(finished.manifest.data["path"])
    recorded: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["evaluation"].items()}
    how = Evaluation(**recorded)
    if any(word.startswith("python:") for word in how.truth):  # only a command line may name code to run
        raise InputError(f"report does not call {how.truth[-1]} for right answers; make a table of them, and {AGAIN}")
    path = next((p for p in (run / "cleaned", data, run / data.name) if (p / "gallery.parquet").exists()), None)
    if path is None:
        raise InputError(f"the embeddings of this run are not in {data} any more; put them back, or a link to them")
    named = replace(how.named, methods=tuple(find_methods(how.methods)))
    with TemporaryDirectory() as scratch, step("read embeddings"):
        folder = with_sample(path, models_of(named.methods), Path(scratch))
    truth, named = resolve_truth(folder, named, bool(finished.manifest.recipe))
    more = {name: settings[name] for name in ("fits", "chosen") if name in settings}
    if difference := results_key(folder, truth.ground, named, more).difference({"stage": STAGE, "settings": settings}):
        raise InputError(f"{path} is not what {results} was computed from ({difference}); {AGAIN}")
    one = replace(named, orders=(find_order(variant.order),), merges=(all_merges()[variant.merge],))
    loss = {name: more["fits"]["transforms"]["loss"][name] for name in ClassificationSettings.__dataclass_fields__}
    orders = resolve_orders(folder, one, ClassificationSettings(**loss))
    merges = resolve_merges(folder, one.merges, how.distance, how.order_seed)
    maps = {method.name: run / "maps" / method.name for method in one.methods if method.fit}
    return Comparison(folder, one, truth.ground, orders, merges).fitted(maps)


def _lists(comparison: Comparison, name: str, backfilled: int, k: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows of queries with a right answer, and their (b, k) items."""
    (method,) = (method for method in comparison.methods if method.name == name)
    if method.fit and not is_finished(path := comparison.maps.folders[name]):
        raise InputError(f"{path} does not hold the fitted map any more; {AGAIN}")
    pair, truth, distance = comparison.pair(method), comparison.truth, comparison.evaluation.distance
    (order,), (merge,) = comparison.orders_of(method, pair).values(), comparison.merges_of(method).values()
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    for some in track(np.split(scored, range(_TOGETHER, len(scored), _TOGETHER)), "search", "blocks"):
        yield some, lists_at(pair, truth, some, order, backfilled, k, distance, merge, method.recalls).item
