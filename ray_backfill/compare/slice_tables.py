"""The tables of slices: each curve for each group of queries, and what the upgrade does to the group.

Shapes: T reported points, DRAWS bootstrap draws.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.replay import Curves, Key
from ray_backfill.compare.summary import of_reference
from ray_backfill.compare.tables.results import OLD
from ray_backfill.compare.tables.slices import FEWEST_QUERIES, GAP, SliceRow, SubgroupPoint
from ray_backfill.core.schema import NO, UNDECIDED, YES, block, frame
from ray_backfill.data.query_groups import Slice
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.replay import Curve
from ray_backfill.engine.systems import IntArray


class _Part(NamedTuple):
    """A curve over the queries of a group. values: (T,). draws: (DRAWS, T), of the same queries in every curve."""

    queries: int
    t: NDArray[np.float64]
    values: NDArray[np.float64]
    draws: NDArray[np.float64]


def slice_tables(
    curves: Curves, metrics: Sequence[str], slices: Sequence[Slice], margin: float
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """``SubgroupPoint``s and ``SliceRow``s of every curve; None without slices. Cost: like the intervals of a slice."""
    points: list[pd.DataFrame] = []
    rows: list[SliceRow] = []
    scored: IntArray = next(iter(curves.values())).curve.scored
    for each in slices:
        values: dict[tuple[Key, str], list[NDArray[np.float64]]] = {}
        # Group by group: the draws of its queries are made once for all curves.
        for number in np.unique(each.of_query[scored]):
            is_own = each.of_query == number
            for metric in metrics:
                for key, own, old in _parts(curves, metric, is_own):
                    names = (*key, metric, each.column, each.groups[number])
                    limits = stats.interval(own.draws)
                    points.append(block(SubgroupPoint, *names, own.queries, own.t, own.values, *limits))
                    rows.append(_row(names, own, old, margin))
                    values.setdefault((key, metric), []).append(own.values)
        for (key, metric), of_groups in values.items():
            gap, t = np.max(of_groups, axis=0) - np.min(of_groups, axis=0), curves[key].curve.t
            points.append(block(SubgroupPoint, *key, metric, each.column, GAP, len(scored), t, gap, np.nan, np.nan))
    return (pd.concat(points, ignore_index=True), frame(SliceRow, rows)) if rows else (None, None)


def _parts(curves: Curves, metric: str, is_own: NDArray[np.bool_]) -> Iterator[tuple[Key, _Part, _Part]]:
    """Each curve over the queries of a group, with that of the old service."""
    olds: dict[Key, _Part] = {}
    for key, found in curves.items():
        old_key = of_reference(OLD, key[1])
        if old_key not in olds:
            olds[old_key] = _part(curves[old_key].curve.of_queries(is_own), metric)
        yield key, _part(found.curve.of_queries(is_own), metric), olds[old_key]


def _part(curve: Curve, metric: str) -> _Part:
    draws = stats.bootstrap_means(curve.per_query[metric], curve.weights)
    return _Part(len(curve.scored), curve.t, curve.values(metric), draws)


def _row(names: tuple[str, str, str, str, str, str], own: _Part, old: _Part, margin: float) -> SliceRow:
    change_low, change_high = stats.interval(own.draws[:, -1] - own.draws[:, 0])
    above_old = own.values - old.values
    low, high = stats.lowest_limits(own.draws - old.draws, above_old)
    lowest = int(np.argmin(above_old))
    return SliceRow(
        *names,
        queries=own.queries,
        start=float(own.values[0]),
        end=float(own.values[-1]),
        change=float(own.values[-1] - own.values[0]),
        change_low=float(change_low),
        change_high=float(change_high),
        old=float(old.values[0]),
        lowest_vs_old=float(above_old[lowest]),
        lowest_vs_old_low=low,
        lowest_vs_old_high=high,
        lowest_at=float(own.t[lowest]),
        stays_at_old=_verdict(own.queries, low, high, margin),
    )


def _verdict(queries: int, low: float, high: float, margin: float) -> str:
    if queries < FEWEST_QUERIES:
        return UNDECIDED
    if low >= -margin - stats.ROUNDING:
        return YES
    return NO if high < -stats.ROUNDING else UNDECIDED
