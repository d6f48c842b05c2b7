"""The tables of a results folder, from its curves. Columns: docs/results-format.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill import metrics as m
from ray_backfill.comparison.replay import Curves
from ray_backfill.methods import Method
from ray_backfill.replay import Curve
from ray_backfill.systems import IntArray

# Whatever the merge, the references are replayed without one: they are single systems.
_MERGE_OF_REFERENCES = "raw"
REFERENCES = ("old", "new", "offline")
# In the column ``group``: best group minus worst group.
GAP = "(gap)"


@dataclass(frozen=True)
class Tables:
    """curves, summary, differences: docs/results-format.md. subgroups: None where queries have no group."""

    curves: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    subgroups: pd.DataFrame | None


def tabulate(
    methods: Sequence[Method], curves: Curves, metrics: Sequence[str], group_of_query: NDArray[np.generic] | None = None
) -> Tables:
    """old and new must be among the methods. group_of_query: (all queries,), if they have any."""
    # The same draws of queries for every curve: what is computed from them is paired.
    keys = [(*key, metric) for key in curves for metric in metrics]
    draws = {
        key: m.bootstrap_means(curves[key[:3]].per_query[key[3]])
        for key in tqdm(keys, desc="intervals", unit=" curves", delay=2, leave=False, dynamic_ncols=True)
    }
    areas = {key: m.auc_draws(curves[key[:3]].t, means) for key, means in draws.items()}
    titles = {method.name: method.title for method in methods}
    curve_rows, summary_rows = [], []
    for own, curve in curves.items():
        method, order, merge = own
        old_key, new_key = (("old", order, _MERGE_OF_REFERENCES), ("new", order, _MERGE_OF_REFERENCES))
        old, new = curves[old_key], curves[new_key]
        key = {"method": method, "order": order, "merge": merge}
        flips = _flips(curve, old)
        for metric in metrics:
            values, (low, high) = curve.values(metric), m.interval(draws[*own, metric])
            curve_rows.append(_rows(key | {"metric": metric}, curve.t, values, low, high))
            start, end = values[0], values[-1]
            auc_low, auc_high = m.interval(areas[*own, metric])
            gain_low, gain_high = m.interval(
                m.gain_draws(areas[*own, metric], areas[*old_key, metric], areas[*new_key, metric])
            )
            summary_rows.append(
                key
                | {
                    "title": titles[method],
                    "metric": metric,
                    "auc": curve.auc(metric),
                    "auc_low": auc_low,
                    "auc_high": auc_high,
                    "auc_mean": curve.auc_mean(metric),
                    "gain": curve.gain(metric, old, new),
                    "gain_low": gain_low,
                    "gain_high": gain_high,
                    "start": start,
                    "end": end,
                    "monotone": curve.monotone(metric),
                    "largest_fall": m.largest_fall(values),
                    "starts_at_old": bool(start >= old.values(metric)[0] - 1e-12),
                    "ends_at_new": bool(end >= new.values(metric)[-1] - 1e-12),
                    "negative_flips_max": float(flips["negative_flips"].mean(axis=0).max()),
                }
            )
        for name, flipped_QT in flips.items():
            low, high = m.interval(m.bootstrap_means(flipped_QT))
            curve_rows.append(_rows(key | {"metric": name}, curve.t, flipped_QT.mean(axis=0), low, high))
    m.resamples.cache_clear()  # 2 bytes for each draw and query
    return Tables(
        pd.concat(curve_rows, ignore_index=True),
        pd.DataFrame(summary_rows),
        _differences(curves, metrics, areas),
        None if group_of_query is None else _subgroups(curves, metrics, group_of_query),
    )


def _flips(curve: Curve, old: Curve) -> dict[str, NDArray[np.float64]]:
    """(Q, T) 1.0 where a query has flipped: against the method's own start, and against {old, old}."""
    now = curve.top1_correct
    flips = {}
    for suffix, before in (("", curve.top1_correct[:, :1]), ("_vs_old", old.top1_correct[:, :1])):
        flips[f"negative_flips{suffix}"] = (before & ~now).astype(np.float64)
        flips[f"positive_flips{suffix}"] = (~before & now).astype(np.float64)
    return flips


def _differences(
    curves: Curves, metrics: Sequence[str], areas: Mapping[tuple[str, str, str, str], NDArray[np.float64]]
) -> pd.DataFrame:
    """AUC of one curve minus that of another, of which method, order or merge is another and the rest the same.

    References are compared with all merges of their order.
    """
    rows = []
    for own in curves:
        for other in curves:
            differing = sum(a != b for a, b in zip(own, other, strict=True))
            against_reference = own[1] == other[1] and other[0] in REFERENCES and own != other
            if differing != 1 and not against_reference:
                continue
            for metric in metrics:
                low, high = m.interval(areas[*own, metric] - areas[*other, metric])
                rows.append(
                    {
                        "method": own[0],
                        "order": own[1],
                        "merge": own[2],
                        "other_method": other[0],
                        "other_order": other[1],
                        "other_merge": other[2],
                        "metric": metric,
                        "difference": curves[own].auc(metric) - curves[other].auc(metric),
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


def _subgroups(curves: Curves, metrics: Sequence[str], group_of_query: NDArray[np.generic]) -> pd.DataFrame:
    """Each curve over the queries of each group that has any scored one; and the gap between best and worst group."""
    scored: IntArray = next(iter(curves.values())).scored
    rows = []
    for (method, order, merge), curve in curves.items():
        own = {str(g): curve.of_queries(group_of_query == g) for g in np.unique(group_of_query[scored])}
        for metric in metrics:
            key: dict[str, str | int] = {"method": method, "order": order, "merge": merge, "metric": metric}
            for group, part in own.items():
                found: dict[str, str | int] = {"group": group, "queries": len(part.scored)}
                rows.append(_rows(key | found, curve.t, part.values(metric), *part.interval(metric)))
            values = np.array([part.values(metric) for part in own.values()])
            gap, nothing = values.max(axis=0) - values.min(axis=0), np.full(len(curve.t), np.nan)
            rows.append(_rows(key | {"group": GAP, "queries": len(scored)}, curve.t, gap, nothing, nothing))
    return pd.concat(rows, ignore_index=True)


def _rows(
    key: Mapping[str, str | int],
    t: NDArray[np.float64],
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> pd.DataFrame:
    return pd.DataFrame({**key, "t": t, "value": value, "low": low, "high": high})
