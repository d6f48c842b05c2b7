"""The summary of one curve: area, gain, both ends, falls, milestones and verdicts."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.replay import Curves, Key
from ray_backfill.compare.replayed import FallFound, Replayed
from ray_backfill.compare.tables.results import NEW, OLD, SummaryRow
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import RAW

NAN = float("nan")


def of_reference(name: str, order: str) -> Key:
    """The key of a reference, which is replayed without a merge because it is a single system."""
    return name, order, RAW.name


def summary_row(
    title: str, key: Key, metric: str, curves: Curves,
    areas: Mapping[tuple[str, str, str, str], NDArray[np.float64]], margin: float, has_gain: bool = True,
) -> SummaryRow:  # fmt: skip
    """Summarise one curve. areas: (DRAWS,) areas by key and metric. margin: loss that counts as none. has_gain: whether
    the right answers can tell that the new model is better."""
    old_key, new_key = of_reference(OLD, key[1]), of_reference(NEW, key[1])
    found, old, new = curves[key], curves[old_key], curves[new_key]
    auc_low, auc_high = stats.interval(areas[*key, metric])
    olds, news = areas[*old_key, metric], areas[*new_key, metric]
    is_upgrade = has_gain and stats.is_upgrade(olds, news)
    draws = stats.gain_draws(areas[*key, metric], olds, news) if is_upgrade else np.array([NAN])
    gain_low, gain_high = stats.interval(draws)
    values, old_value, new_value = found.values[metric], old.values[metric][0], new.values[metric][-1]
    start_vs_old, end_vs_new = _apart(found, old, metric, 0), _apart(found, new, metric, -1)
    fall = found.falls[metric]
    return SummaryRow(
        *key,
        title=title,
        metric=metric,
        auc=found.curve.auc(metric),
        auc_low=float(auc_low),
        auc_high=float(auc_high),
        auc_mean=found.curve.auc_mean(metric),
        gain=found.curve.gain(metric, old.curve, new.curve) if is_upgrade else NAN,
        gain_low=float(gain_low),
        gain_high=float(gain_high),
        start=float(values[0]),
        end=float(values[-1]),
        start_vs_old=start_vs_old[0],
        start_vs_old_low=start_vs_old[1],
        start_vs_old_high=start_vs_old[2],
        end_vs_new=end_vs_new[0],
        end_vs_new_low=end_vs_new[1],
        end_vs_new_high=end_vs_new[2],
        moments=len(found.t),
        largest_fall=fall.size,
        largest_fall_low=fall.low,
        largest_fall_high=fall.high,
        fall_start=fall.start,
        fall_end=fall.end,
        passes_old_at=found.settles_at(metric, old_value - margin),
        half_gain_at=found.settles_at(metric, (old_value + new_value) / 2) if is_upgrade else NAN,
        passes_new_at=found.settles_at(metric, new_value - margin),
        starts_at_old=_no_loss(start_vs_old, margin),
        ends_at_new=_no_loss(end_vs_new, margin),
        never_falls=_never_falls(fall, margin),
        negative_flips_max=found.negative_flips_max(),
        negative_flips_vs_old_max=found.negative_flips_max(old.top1_correct[:, 0]),
    )


def _apart(found: Replayed, other: Replayed, metric: str, end: int) -> tuple[float, float, float]:
    """The value of a curve minus that of another one at the start (0) or the end (-1), with its paired interval."""
    low, high = stats.interval(found.draws[metric][:, end] - other.draws[metric][:, end])
    return float(found.values[metric][end] - other.values[metric][end]), float(low), float(high)


def _no_loss(apart: tuple[float, float, float], margin: float) -> str:
    _, low, high = apart
    if low >= -margin - stats.ROUNDING:
        return YES
    return NO if high < 0 else UNDECIDED


def _never_falls(fall: FallFound, margin: float) -> str:
    if fall.high <= margin + stats.ROUNDING:
        return YES
    return NO if fall.low > stats.ROUNDING else UNDECIDED
