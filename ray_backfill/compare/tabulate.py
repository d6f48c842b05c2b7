"""Makes the spine of a results folder from its curves: points, summary, differences, moments, values of each query."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare import tables as spine
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, FallFound, Key, Replayed, leading_merge
from ray_backfill.core.progress import task, track
from ray_backfill.core.schema import NO, UNDECIDED, YES, block, frame
from ray_backfill.data.truth import parse_truth
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import BEST, RAW
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.methods import Method

NAN = float("nan")
# Key: (method, order, merge, metric). Values: (DRAWS,) areas; all curves use the same draws of queries, so differences
# between curves are paired.
Areas = Mapping[tuple[str, str, str, str], NDArray[np.float64]]
# A value with the ends of its 95 % interval.
Limited = tuple[float, float, float]


def tabulate(methods: Sequence[Method], curves: Curves, evaluation: Evaluation) -> dict[str, pd.DataFrame]:
    """Table name -> table, of the spine but for ``queries``. The methods must include old and new."""
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
            for key in track(curves, "summary", "curves")
            for metric in metrics
        ]
        return {
            "curves": pd.concat(points, ignore_index=True),
            "summary": frame(spine.SummaryRow, summary),
            "differences": frame(spine.DifferenceRow, list(_differences(curves, metrics, areas, by_name))),
            "moments": _moments(curves),
            "query_values": pd.concat(_query_values(curves, metrics[0], by_name), ignore_index=True),
        }


def of_reference(name: str, order: str) -> Key:
    """The key of a reference, which is replayed without a merge because it is a single system."""
    return name, order, RAW.name


def summary_row(
    title: str, key: Key, metric: str, curves: Curves, areas: Areas, margin: float, has_gain: bool = True
) -> spine.SummaryRow:
    """Summarise one curve: area, gain, both ends, falls, milestones and verdicts.

    margin: loss that counts as none. has_gain: whether the right answers can tell that the new model is better.
    """
    old_key, new_key = of_reference(spine.OLD, key[1]), of_reference(spine.NEW, key[1])
    found, old, new = curves[key], curves[old_key], curves[new_key]
    of_this, olds, news = (areas[*each, metric] for each in (key, old_key, new_key))
    is_upgrade = has_gain and stats.is_upgrade(olds, news, found.n_queries)
    with_old, with_new = (each.with_merge.get(found.merge, each) for each in (old, new))
    gain: Limited = NAN, NAN, NAN
    if is_upgrade:
        limits = stats.gain_limits(of_this, olds, news, found.n_queries)
        gain = (found.curve.gain(metric, old.curve, new.curve), *limits)
    values, old_value, new_value = found.values[metric], old.values[metric][0], new.values[metric][-1]
    start_vs_old, end_vs_new = _apart(found, old, metric, 0), _apart(found, new, metric, -1)
    fall, reached = found.falls[metric], found.reached.get(metric, [(NAN, NAN)] * 3)
    lost, finished = (each.negative_flips(old.top1_correct[:, 0]) for each in (found, new))
    return spine.SummaryRow(
        *key,
        title,
        metric,
        *limited(found.curve.auc(metric), of_this, found.n_queries),
        found.curve.auc_mean(metric),
        *gain,
        with_old.curve.auc(metric),
        with_new.curve.auc(metric),
        float(values[0]),
        float(values[-1]),
        *start_vs_old,
        *end_vs_new,
        len(found.t),
        fall.size,
        fall.low,
        fall.high,
        fall.start,
        fall.end,
        *(found.settles_at(metric, old_value - margin), *reached[0]),
        *((found.settles_at(metric, (old_value + new_value) / 2), *reached[1]) if is_upgrade else (NAN, NAN, NAN)),
        *(found.settles_at(metric, new_value - margin), *reached[2]),
        starts_at_old=_no_loss(start_vs_old, margin),
        ends_at_new=_no_loss(end_vs_new, margin),
        never_falls=_never_falls(fall, margin),
        negative_flips_max=float(found.negative_flips().max()),
        negative_flips_vs_old_max=float(lost.max()),
        flips_as_new_at=found.settled(-lost, -finished[-1] - margin),
    )


def limited(value: float, draws: NDArray[np.float64], n_queries: int) -> Limited:
    """A value with its 95 % interval, from its bootstrap draws."""
    low, high = stats.interval(draws, n_queries)
    return float(value), float(low), float(high)


def _apart(found: Replayed, other: Replayed, metric: str, end: int) -> Limited:
    """The value of a curve minus that of another one at the start (0) or the end (-1), with its paired interval."""
    difference = found.values[metric][end] - other.values[metric][end]
    draws = found.draws[metric][:, end] - other.draws[metric][:, end]
    return limited(difference, draws, found.n_queries)


def _no_loss(apart: Limited, margin: float) -> str:
    _, low, high = apart
    if low >= -margin - stats.ROUNDING:
        return YES
    return NO if high < 0 else UNDECIDED


def _never_falls(fall: FallFound, margin: float) -> str:
    if fall.high <= margin + stats.ROUNDING:
        return YES
    return NO if fall.low > stats.ROUNDING else UNDECIDED


def _title(method: Method, merge: str, chosen: str) -> str:
    """The method's, and the merge that was chosen for it: "RM naive + csls"."""
    return method.title if merge != BEST or chosen == RAW.name else f"{method.title} + {chosen}"


def _points(curves: Curves, key: Key, metrics: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Points of the quality metrics, then of flips and of what a cascade embeds."""
    found = curves[key]
    curve, old = found.curve, curves[of_reference(spine.OLD, key[1])].curve
    for metric in metrics:
        limits = stats.interval(found.draws[metric], found.n_queries)
        yield block(spine.CurvePoint, *key, metric, curve.t, curve.values(metric), *limits)
    embedded = {} if curve.embedded is None else {spine.NEW_EMBEDDINGS: curve.embedded}
    for metric, values_QT in (_flips(curve, old) | embedded).items():
        interval = stats.interval(stats.bootstrap_means(values_QT, curve.weights), found.n_queries)
        yield block(spine.CurvePoint, *key, metric, curve.t, stats.mean(values_QT, curve.weights), *interval)


def _flips(curve: Curve, old: Curve) -> dict[str, NDArray[np.float64]]:
    """(Q, T) 1.0 where a query has flipped: relative to the method's own start, and to {old, old}."""
    now, own_start, old_start = curve.top1_correct, curve.top1_correct[:, :1], old.top1_correct[:, :1]
    return {
        spine.NEGATIVE_FLIPS: stats.lost(own_start, now),
        spine.POSITIVE_FLIPS: stats.lost(now, own_start),
        spine.NEGATIVE_FLIPS_VS_OLD: stats.lost(old_start, now),
        spine.POSITIVE_FLIPS_VS_OLD: stats.lost(now, old_start),
    }


def _moments(curves: Curves) -> pd.DataFrame:
    rows = [(key, found.t, metric, values) for key, found in curves.items() for metric, values in found.values.items()]
    blocks = [block(spine.MomentPoint, *key, metric, t, values) for key, t, metric, values in rows]
    return pd.concat(blocks, ignore_index=True)


def _query_values(curves: Curves, metric: str, methods: Mapping[str, Method]) -> Iterator[pd.DataFrame]:
    """Areas and ends of each query as (Q,) float32, once where the order makes no difference."""
    seen: set[str] = set()
    for (name, order, merge), found in curves.items():
        if merge != leading_merge(each for method, _, each in curves if method == name):
            continue
        curve, is_reference, is_first = found.curve, methods[name].is_reference, name not in seen
        seen.add(name)
        values_QT = curve.per_query[metric]
        parts = {(spine.START, ""): values_QT[:, 0], (spine.END, ""): values_QT[:, -1]} if is_first else {}
        if is_first or not is_reference:
            parts[spine.AUC, "" if is_reference else order] = stats.auc_draws(curve.t, values_QT, curve.is_step)
        for (quantity, of_order), values_Q in parts.items():
            yield block(spine.QueryValues, name, of_order, metric, quantity, [values_Q.astype(np.float32)])


def _differences(
    curves: Curves, metrics: Sequence[str], areas: Areas, methods: Mapping[str, Method]
) -> Iterator[spine.DifferenceRow]:
    """AUC differences of all pairs of curves that differ in only one of method, order and merge.

    References are compared with all merges of their order.
    """
    others_of = {other: [own for own in curves if _are_compared(own, other, methods)] for other in curves}
    own_curves = [key for key in curves if not methods[key[0]].is_reference]
    for metric in metrics:
        # A reference has the same curve in all orders, and the best of all orders and merges is compared with it.
        all_own = np.array([areas[*own, metric] for own in own_curves])
        against: dict[str, float] = {}
        for other, compared in others_of.items():
            draws = np.array([areas[*own, metric] - areas[*other, metric] for own in compared])
            could_win = np.array([not methods[own[0]].is_reference for own in compared])
            if not compared:
                continue
            n_queries = curves[other].n_queries
            if not could_win.any():
                width = 0.0
            elif methods[other[0]].is_reference:
                if other[0] not in against:
                    against[other[0]] = stats.simultaneous_width(all_own - areas[*other, metric], n_queries)
                width = against[other[0]]
            else:
                width = stats.simultaneous_width(draws[could_win], n_queries)
            low_K, high_K = stats.interval(draws.T, curves[other].n_queries)
            for own, low, high, spread, can in zip(compared, low_K, high_K, draws.std(axis=1), could_win, strict=True):
                value = curves[own].curve.auc(metric) - curves[other].curve.auc(metric)
                at_once = (value - width * spread, value + width * spread) if can else (low, high)
                yield spine.DifferenceRow(*own, *other, metric, value, float(low), float(high), *map(float, at_once))


def _are_compared(own: Key, other: Key, methods: Mapping[str, Method]) -> bool:
    differing = sum(a != b for a, b in zip(own, other, strict=True))
    return differing == 1 or (own[1] == other[1] and methods[other[0]].is_reference and own != other)
