"""Makes the tables of a results folder from its curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill import metrics as m
from ray_backfill.comparison.replay import Curves, Key
from ray_backfill.merges import RAW
from ray_backfill.methods import Method
from ray_backfill.progress import stage
from ray_backfill.replay import Curve
from ray_backfill.systems import IntArray
from ray_backfill.tables.results import (
    GAP,
    NEGATIVE_FLIPS,
    NEGATIVE_FLIPS_VS_OLD,
    NEW,
    OLD,
    POSITIVE_FLIPS,
    POSITIVE_FLIPS_VS_OLD,
    CurvePoint,
    DifferenceRow,
    SubgroupPoint,
    SummaryRow,
)
from ray_backfill.tables.schema import block, frame


@dataclass(frozen=True)
class Tables:
    """Tables, named as in ``tables.results``. subgroups: None if queries have no group."""

    curves: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    subgroups: pd.DataFrame | None


# Key: (method, order, merge, metric).
Draws = Mapping[tuple[str, str, str, str], NDArray[np.float64]]


def tabulate(
    methods: Sequence[Method], curves: Curves, metrics: Sequence[str], group_of_query: NDArray[np.generic] | None = None
) -> Tables:
    """Make all tables. The methods must include old and new. group_of_query: (all queries,), if they have groups."""
    # All curves use the same draws of queries, so that differences between curves are paired.
    keys = [(*key, metric) for key in curves for metric in metrics]
    with stage("intervals", len(keys), "curves") as shown:
        draws = {}
        for key in keys:
            draws[key] = m.bootstrap_means(curves[key[:3]].per_query[key[3]])
            shown.advance()
        areas = {key: m.auc_draws(curves[key[:3]].t, means) for key, means in draws.items()}
        by_name = {method.name: method for method in methods}
        tables = Tables(
            pd.concat([points for key in curves for points in _curve(curves, key, metrics, draws)], ignore_index=True),
            frame(SummaryRow, [_summary(curves, key, metric, areas, by_name) for key in curves for metric in metrics]),
            frame(DifferenceRow, list(_differences(curves, metrics, areas, by_name))),
            None if group_of_query is None else _subgroups(curves, metrics, group_of_query),
        )
    m.resamples.cache_clear()  # 2 bytes for each draw and query
    return tables


def _of_reference(name: str, order: str) -> Key:
    """The key of a reference, which is replayed without a merge because it is a single system."""
    return name, order, RAW.name


def _curve(curves: Curves, key: Key, metrics: Sequence[str], draws: Draws) -> Iterator[pd.DataFrame]:
    """Points of the quality metrics, then of flips."""
    curve = curves[key]
    for metric in metrics:
        yield block(CurvePoint, *key, metric, curve.t, curve.values(metric), *m.interval(draws[*key, metric]))
    for metric, flipped_QT in _flips(curve, curves[_of_reference(OLD, key[1])]).items():
        interval = m.interval(m.bootstrap_means(flipped_QT))
        yield block(CurvePoint, *key, metric, curve.t, flipped_QT.mean(axis=0), *interval)


def _flips(curve: Curve, old: Curve) -> dict[str, NDArray[np.float64]]:
    """(Q, T) 1.0 where a query has flipped: relative to the method's own start, and to {old, old}."""
    now, own_start, old_start = curve.top1_correct, curve.top1_correct[:, :1], old.top1_correct[:, :1]
    flipped = {
        NEGATIVE_FLIPS: own_start & ~now,
        POSITIVE_FLIPS: ~own_start & now,
        NEGATIVE_FLIPS_VS_OLD: old_start & ~now,
        POSITIVE_FLIPS_VS_OLD: ~old_start & now,
    }
    return {metric: flipped_QT.astype(np.float64) for metric, flipped_QT in flipped.items()}


def _summary(curves: Curves, key: Key, metric: str, areas: Draws, methods: Mapping[str, Method]) -> SummaryRow:
    method, order, merge = key
    old_key, new_key = _of_reference(OLD, order), _of_reference(NEW, order)
    curve, old, new, values = curves[key], curves[old_key], curves[new_key], curves[key].values(metric)
    auc_low, auc_high = m.interval(areas[*key, metric])
    gain_low, gain_high = m.interval(
        m.gain_draws(areas[*key, metric], areas[*old_key, metric], areas[*new_key, metric])
    )
    return SummaryRow(
        method=method,
        order=order,
        merge=merge,
        title=methods[method].title,
        metric=metric,
        auc=curve.auc(metric),
        auc_low=float(auc_low),
        auc_high=float(auc_high),
        auc_mean=curve.auc_mean(metric),
        gain=curve.gain(metric, old, new),
        gain_low=float(gain_low),
        gain_high=float(gain_high),
        start=values[0],
        end=values[-1],
        monotone=curve.monotone(metric),
        largest_fall=m.largest_fall(values),
        starts_at_old=bool(values[0] >= old.values(metric)[0] - 1e-12),
        ends_at_new=bool(values[-1] >= new.values(metric)[-1] - 1e-12),
        negative_flips_max=float(curve.negative_flips().max()),
    )


def _differences(
    curves: Curves, metrics: Sequence[str], areas: Draws, methods: Mapping[str, Method]
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
                low, high = m.interval(areas[*own, metric] - areas[*other, metric])
                difference = curves[own].auc(metric) - curves[other].auc(metric)
                yield DifferenceRow(*own, *other, metric, difference, float(low), float(high))


def _subgroups(curves: Curves, metrics: Sequence[str], group_of_query: NDArray[np.generic]) -> pd.DataFrame:
    """Each curve for each group that has scored queries, and the gap between the best and the worst group."""
    scored: IntArray = next(iter(curves.values())).scored
    blocks = []
    for key, curve in curves.items():
        own = {str(g): curve.of_queries(group_of_query == g) for g in np.unique(group_of_query[scored])}
        for metric in metrics:
            for group, part in own.items():
                points = (curve.t, part.values(metric), *part.interval(metric))
                blocks.append(block(SubgroupPoint, *key, metric, group, len(part.scored), *points))
            values = np.array([part.values(metric) for part in own.values()])
            gap = values.max(axis=0) - values.min(axis=0)
            blocks.append(block(SubgroupPoint, *key, metric, GAP, len(scored), curve.t, gap, np.nan, np.nan))
    return pd.concat(blocks, ignore_index=True)
