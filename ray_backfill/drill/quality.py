"""Quality of live answers: the replay's metrics computed from top-k lists, and recall against exact search.

Shapes: Q queries, k items per answer, N gallery items, M metrics.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.drill.operations import NEW, NOWHERE
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.metrics import Rankings, RightAnswers, measure, metric_codes, parse_metric
from ray_backfill.engine.replay import replay_moment
from ray_backfill.engine.statistics import Weights, relative_weights
from ray_backfill.engine.systems import GroundTruth, IntArray, UpgradePair


def depth(metrics: Sequence[str], truth: GroundTruth) -> int:
    """Number of items an answer needs for these metrics: their largest cutoff plus the most ignored items of a query.

    Raises:
        InputError: a metric needs the whole ranking, which a service does not return.
    """
    cuts = [parse_metric(metric).k for metric in metrics]
    if None in cuts:
        raise InputError("a live drill returns only the top items: choose metrics with a cutoff, such as mAP@100")
    return max(k for k in cuts if k) + int(np.diff(truth.ignored_starts).max())


def only_alive(truth: GroundTruth, state: NDArray[np.uint8]) -> GroundTruth:
    """The ground truth restricted to items in service; positions stay the same, absent items are dropped."""
    alive = state != NOWHERE
    if alive.all():
        return truth
    return truth.only(alive)


def live_quality(position_Qk: IntArray, truth: GroundTruth, metrics: Sequence[str]) -> dict[str, float]:
    """Metric -> mean over the queries that have a positive. position_Qk: answers to all queries. Cost: O(Q k)."""
    scored = _scored(truth)
    before, places = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for query in scored:
        answer = position_Qk[query]
        answer = answer[(answer >= 0) & ~np.isin(answer, truth.ignored_of(query))]
        positives = truth.positives_of(query)
        found = np.flatnonzero(np.isin(answer, positives))
        before.append(found - np.arange(len(found)))
        places.append(np.searchsorted(positives, answer[found]).astype(np.int32))
    starts = np.cumsum([len(row) for row in before])
    values, top1 = np.empty((len(scored), 1, len(metrics))), np.empty((len(scored), 1), np.bool_)
    measure(
        Rankings(np.concatenate(before), starts, np.concatenate(places)),
        RightAnswers.of(truth, scored, with_grades=True),
        metric_codes([parse_metric(metric) for metric in metrics]),
        values,
        top1,
    )
    return {metric: mean(values[:, 0, m], _weights(truth)) for m, metric in enumerate(metrics)}


def exact_quality(
    pair: UpgradePair,
    truth: GroundTruth,
    state: NDArray[np.uint8],
    metrics: Sequence[str],
    distance: str,
    merge: Merge,
) -> dict[str, float]:
    """Metric -> quality of exact search over the gallery in this state, computed by the replay engine.

    pair: covers all N items, including those that are NOWHERE. Cost: one replay.
    """
    there = only_alive(truth, state)
    if len(there.skipped) == there.n_queries:
        return dict.fromkeys(metrics, math.nan)
    alive = np.flatnonzero(state != NOWHERE)
    place = np.full(truth.n_gallery, -1)
    place[alive] = np.arange(len(alive))
    moved = replace(there, n_gallery=len(alive), positives=place[there.positives], ignored=place[there.ignored])
    part = pair if len(alive) == len(state) else pair.of_items(alive)
    values = replay_moment(part, moved, state[alive] == NEW, metrics, distance, merge)
    return {metric: mean(of_metric, _weights(there)) for metric, of_metric in values.items()}


def _scored(truth: GroundTruth) -> IntArray:
    """The queries that have a positive."""
    return np.setdiff1d(np.arange(truth.n_queries), truth.skipped)


def _weights(truth: GroundTruth) -> Weights:
    """Relative weights of the scored queries; None if they are equal."""
    return None if truth.weights is None else relative_weights(truth.weights[_scored(truth)])


def mean(values: NDArray[np.float64], weights: Weights = None) -> float:
    """Weighted mean of correctly rounded sums, which do not depend on the order; NaN if there are no values."""
    if weights is not None:
        return math.fsum(weights * values) / math.fsum(weights)
    return math.fsum(values) / len(values) if len(values) else math.nan


def recall(live_Qk: IntArray, exact_Qk: IntArray, state: NDArray[np.uint8], side: int) -> float:
    """Share of the exact answers' items on one side (OLD or NEW) that the live answers contain too.

    Pooled over all queries; NaN if the exact answers contain no such item.
    """
    wanted = found = 0
    for live, exact in zip(live_Qk, exact_Qk, strict=True):
        of_side = exact[(exact >= 0) & (state[exact] == side)]
        wanted += len(of_side)
        found += int(np.isin(of_side, live).sum())
    return found / wanted if wanted else float("nan")
