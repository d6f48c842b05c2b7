"""Writes ranked lists of a finished run, and its right answers, as files that TREC's tools read.

A run stores what lists depend on, not the lists. They are searched again, and must give the figures of its tables.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.reopen import method_called, reopened, rows_called
from ray_backfill.compare.report import AGAIN, read_data
from ray_backfill.compare.resolve import Comparison
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import track
from ray_backfill.core.stages import write_whole
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import IntArray

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
    row = rows_called(finished, method, order, merge)[0]
    if finished.evaluation.get("service"):
        raise InputError("the lists of these results are those of a --service, which --run does not write")
    comparison = reopened(finished, results, row.variant)
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


def _lists(comparison: Comparison, name: str, backfilled: int, k: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows of queries with a right answer, and their (b, k) items."""
    method = method_called(comparison, name)
    pair, truth, distance = comparison.pair(method), comparison.truth, comparison.evaluation.distance
    (order,), (merge,) = comparison.orders_of(method, pair).values(), comparison.merges_of(method).values()
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    for some in track(np.split(scored, range(_TOGETHER, len(scored), _TOGETHER)), "search", "blocks"):
        yield some, lists_at(pair, truth, some, order, backfilled, k, distance, merge, method.recalls).item
