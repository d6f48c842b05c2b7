"""The tables of a simulation, from its curves. Columns: docs/results-format.md."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.methods import Method
from ray_backfill.metrics import largest_fall
from ray_backfill.replay import Curve

# Distances are compared as they are; other merges will come as a dimension of their own.
_MERGE = "raw"


def tabulate(
    methods: Sequence[Method], curves: Mapping[tuple[str, str], Curve], metrics: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``curves`` and ``summary`` of (method, order) -> curve; old and new must be among the methods."""
    titles = {method.name: method.title for method in methods}
    curve_rows, summary_rows = [], []
    for (method, order), curve in curves.items():
        old, new = curves["old", order], curves["new", order]
        key = {"method": method, "order": order, "merge": _MERGE}
        flips = {
            "negative_flips": curve.negative_flips(),
            "positive_flips": curve.positive_flips(),
            "negative_flips_vs_old": curve.negative_flips(old),
            "positive_flips_vs_old": curve.positive_flips(old),
        }
        for metric in metrics:
            values, (low, high) = curve.values(metric), curve.interval(metric)
            curve_rows.append(_rows(key, metric, curve.t, values, low, high))
            start, end = values[0], values[-1]
            summary_rows.append(
                key
                | {
                    "title": titles[method],
                    "metric": metric,
                    "auc": curve.auc(metric),
                    "auc_mean": curve.auc_mean(metric),
                    "gain": curve.gain(metric, old, new),
                    "start": start,
                    "end": end,
                    "monotone": curve.monotone(metric),
                    "largest_fall": largest_fall(values),
                    "starts_at_old": bool(start >= old.values(metric)[0] - 1e-12),
                    "ends_at_new": bool(end >= new.values(metric)[-1] - 1e-12),
                    "negative_flips_max": float(flips["negative_flips"].max()),
                }
            )
        for name, values in flips.items():
            nothing = np.full(len(values), np.nan)
            curve_rows.append(_rows(key, name, curve.t, values, nothing, nothing))
    return pd.concat(curve_rows, ignore_index=True), pd.DataFrame(summary_rows)


def _rows(
    key: Mapping[str, str],
    metric: str,
    t: NDArray[np.float64],
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> pd.DataFrame:
    return pd.DataFrame({**key, "metric": metric, "t": t, "value": value, "low": low, "high": high})
