"""Makes the tables of a results folder from its curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, Key, leading_merge
from ray_backfill.compare.slice_tables import slice_tables
from ray_backfill.compare.summary import of_reference, summary_row
from ray_backfill.compare.tables.queries import AUC, END, START, QueryValues
from ray_backfill.compare.tables.results import (
    NEGATIVE_FLIPS,
    NEGATIVE_FLIPS_VS_OLD,
    NEW_EMBEDDINGS,
    OLD,
    POSITIVE_FLIPS,
    POSITIVE_FLIPS_VS_OLD,
    CurvePoint,
    DifferenceRow,
    MomentPoint,
    PermutationRow,
    SummaryRow,
)
from ray_backfill.core.progress import task
from ray_backfill.core.schema import block, frame
from ray_backfill.data.query_groups import Slice
from ray_backfill.data.truth import parse_truth
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import BEST, RAW
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.methods import Method


@dataclass(frozen=True)
class Tables:
    """Tables, named as in ``tables.results``.

    subgroups, slices: None if queries have no groups. permutations: None if no curve is a mean over several.
    """

    curves: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    moments: pd.DataFrame
    query_values: pd.DataFrame
    subgroups: pd.DataFrame | None
    slices: pd.DataFrame | None
    permutations: pd.DataFrame | None


# Key: (method, order, merge, metric). Values: (DRAWS,) areas; all curves use the same draws of queries, so differences
# between curves are paired.
Areas = Mapping[tuple[str, str, str, str], NDArray[np.float64]]


def tabulate(methods: Sequence[Method], curves: Curves, evaluation: Evaluation, slices: Sequence[Slice] = ()) -> Tables:
    """Make all tables. The methods must include old and new. slices: groups of queries."""
    metrics = evaluation.metrics
    areas = {
        (*key, metric): stats.auc_draws(found.curve.t, found.draws[metric], found.curve.is_step)
        for key, found in curves.items()
        for metric in metrics
    }
    by_name = {method.name: method for method in methods}
    has_gain = not parse_truth(evaluation.truth)[0].is_retention
    with task("intervals", len(curves), "curves") as shown:
        points: list[pd.DataFrame] = []
        for key in curves:
            points += _points(curves, key, metrics)
            shown.advance()
        titles = {key: _title(by_name[key[0]], key[2], found.merge) for key, found in curves.items()}
        summary = [
            summary_row(titles[key], key, metric, curves, areas, evaluation.margin, has_gain)
            for key in curves
            for metric in metrics
        ]
        tables = Tables(
            pd.concat(points, ignore_index=True),
            frame(SummaryRow, summary),
            frame(DifferenceRow, list(_differences(curves, metrics, areas, by_name))),
            _moments(curves),
            pd.concat(_query_values(curves, metrics[0], by_name), ignore_index=True),
            *slice_tables(curves, metrics, slices, evaluation.margin),
            _permutations(curves),
        )
    stats.resamples.cache_clear()  # 2 bytes for each draw and query
    return tables


def _title(method: Method, merge: str, chosen: str) -> str:
    """The method's, and the merge that was chosen for it: "RM naive + csls"."""
    return method.title if merge != BEST or chosen == RAW.name else f"{method.title} + {chosen}"


def _points(curves: Curves, key: Key, metrics: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Points of the quality metrics, then of flips and of what a cascade embeds."""
    found = curves[key]
    curve, old = found.curve, curves[of_reference(OLD, key[1])].curve
    for metric in metrics:
        yield block(CurvePoint, *key, metric, curve.t, curve.values(metric), *stats.interval(found.draws[metric]))
    for metric, flipped_QT in _flips(curve, old).items():
        interval = stats.interval(stats.bootstrap_means(flipped_QT, curve.weights))
        yield block(CurvePoint, *key, metric, curve.t, stats.mean(flipped_QT, curve.weights), *interval)
    if curve.embedded is not None:
        interval = stats.interval(stats.bootstrap_means(curve.embedded, curve.weights))
        yield block(CurvePoint, *key, NEW_EMBEDDINGS, curve.t, stats.mean(curve.embedded, curve.weights), *interval)


def _flips(curve: Curve, old: Curve) -> dict[str, NDArray[np.float64]]:
    """(Q, T) 1.0 where a query has flipped: relative to the method's own start, and to {old, old}."""
    now, own_start, old_start = curve.top1_correct, curve.top1_correct[:, :1], old.top1_correct[:, :1]
    return {
        NEGATIVE_FLIPS: stats.lost(own_start, now),
        POSITIVE_FLIPS: stats.lost(now, own_start),
        NEGATIVE_FLIPS_VS_OLD: stats.lost(old_start, now),
        POSITIVE_FLIPS_VS_OLD: stats.lost(now, old_start),
    }


def _moments(curves: Curves) -> pd.DataFrame:
    rows = [(key, found.t, metric, values) for key, found in curves.items() for metric, values in found.values.items()]
    blocks = [block(MomentPoint, *key, metric, t, values) for key, t, metric, values in rows]
    return pd.concat(blocks, ignore_index=True)


def _permutations(curves: Curves) -> pd.DataFrame | None:
    """How much the AUC varies over the permutations of the random order; None if there are not several."""
    rows = [
        PermutationRow(*key, metric, len(aucs_P), float(aucs_P.std(ddof=1)), float(aucs_P.min()), float(aucs_P.max()))
        for key, found in curves.items()
        for metric, aucs_P in found.permutation_aucs.items()
    ]
    return frame(PermutationRow, rows) if rows else None


def _query_values(curves: Curves, metric: str, methods: Mapping[str, Method]) -> Iterator[pd.DataFrame]:
    """Areas and ends of each query as (Q,) float32, once where the order makes no difference."""
    seen: set[str] = set()
    for (name, order, merge), found in curves.items():
        if merge != leading_merge(each for method, _, each in curves if method == name):
            continue
        curve, is_reference, is_first = found.curve, methods[name].is_reference, name not in seen
        seen.add(name)
        values_QT = curve.per_query[metric]
        parts = {(START, ""): values_QT[:, 0], (END, ""): values_QT[:, -1]} if is_first else {}
        if is_first or not is_reference:
            parts[AUC, "" if is_reference else order] = stats.auc_draws(curve.t, values_QT, curve.is_step)
        for (quantity, of_order), values_Q in parts.items():
            yield block(QueryValues, name, of_order, metric, quantity, [values_Q.astype(np.float32)])


def _differences(
    curves: Curves, metrics: Sequence[str], areas: Areas, methods: Mapping[str, Method]
) -> Iterator[DifferenceRow]:
    """AUC differences of all pairs of curves that differ in only one of method, order and merge.

    References are compared with all merges of their order.
    """
    for own in curves:
        for other in curves:
            differing = sum(a != b for a, b in zip(own, other, strict=True))
            against_reference = own[1] == other[1] and methods[other[0]].is_reference and own != other
            if differing != 1 and not against_reference:
                continue
            for metric in metrics:
                low, high = stats.interval(areas[*own, metric] - areas[*other, metric])
                difference = curves[own].curve.auc(metric) - curves[other].curve.auc(metric)
                yield DifferenceRow(*own, *other, metric, difference, float(low), float(high))
