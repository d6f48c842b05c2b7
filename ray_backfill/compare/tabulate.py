"""Makes the spine of a results folder from its curves: points, summary, differences, moments, values of each query."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare import tables as spine
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, Key, leading_merge
from ray_backfill.core.progress import task, track
from ray_backfill.core.schema import NO, UNDECIDED, YES, block, frame
from ray_backfill.data.truth import parse_truth
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import BEST, RAW
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
        (*key, metric): stats.auc_draws(curve.curve.t, curve.draws[metric], curve.curve.is_step)
        for key, curve in curves.items()
        for metric in metrics
    }
    by_name = {method.name: method for method in methods}
    has_gain = not parse_truth(evaluation.truth)[0].is_retention
    with task("intervals", len(curves), "curves") as shown:
        points: list[pd.DataFrame] = []
        for key in curves:
            points += _points(curves, key, metrics)
            shown.advance()
        summary = []
        for key in track(curves, "summary", "curves"):
            name, _, merge = key
            title, chosen = by_name[name].title, curves[key].merge
            if merge == BEST and chosen != RAW.name:  # the merge that was chosen for it: "RM naive + csls"
                title += f" + {chosen}"
            summary += [
                summary_row(title, key, metric, curves, areas, evaluation.margin, has_gain) for metric in metrics
            ]
        moments = [
            block(spine.MomentPoint, *key, metric, curve.t, values)
            for key, curve in curves.items()
            for metric, values in curve.values.items()
        ]
        return {
            "curves": pd.concat(points, ignore_index=True),
            "summary": frame(spine.SummaryRow, summary),
            "differences": frame(spine.DifferenceRow, list(_differences(curves, metrics, areas, by_name))),
            "moments": pd.concat(moments, ignore_index=True),
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
    curve, old, new = curves[key], curves[old_key], curves[new_key]
    areas_of_curve, areas_of_old, areas_of_new = (areas[*of, metric] for of in (key, old_key, new_key))
    with_old, with_new = (end.with_merge.get(curve.merge, end) for end in (old, new))
    values, old_value, new_value = curve.values[metric], old.values[metric][0], new.values[metric][-1]
    fall, reached = curve.falls[metric], curve.reached.get(metric, [(NAN, NAN)] * 3)
    gain: Limited = NAN, NAN, NAN
    half_gain: Limited = NAN, NAN, NAN
    if has_gain and stats.is_upgrade(areas_of_old, areas_of_new, curve.n_queries):
        limits = stats.gain_limits(areas_of_curve, areas_of_old, areas_of_new, curve.n_queries)
        gain = (curve.curve.gain(metric, old.curve, new.curve), *limits)
        half_gain = (curve.settles_at((old_value + new_value) / 2, values), *reached[1])
    start_vs_old, end_vs_new = (
        limited(
            curve.values[metric][at] - end.values[metric][at],
            curve.draws[metric][:, at] - end.draws[metric][:, at],
            curve.n_queries,
        )
        for end, at in ((old, 0), (new, -1))
    )
    lost, finished = (of.negative_flips(old.top1_correct[:, 0]) for of in (curve, new))
    return spine.SummaryRow(
        *key,
        title,
        metric,
        *limited(curve.curve.auc(metric), areas_of_curve, curve.n_queries),
        curve.curve.auc_mean(metric),
        *gain,
        with_old.curve.auc(metric),
        with_new.curve.auc(metric),
        float(values[0]),
        float(values[-1]),
        *start_vs_old,
        *end_vs_new,
        len(curve.t),
        *fall,
        *(curve.settles_at(old_value - margin, values), *reached[0]),
        *half_gain,
        *(curve.settles_at(new_value - margin, values), *reached[2]),
        starts_at_old=no_loss(*start_vs_old[1:], margin),
        ends_at_new=no_loss(*end_vs_new[1:], margin),
        never_falls=no_loss(-fall.high, -fall.low, margin, stats.ROUNDING),
        negative_flips_max=float(curve.negative_flips().max()),
        negative_flips_vs_old_max=float(lost.max()),
        flips_as_new_at=curve.settles_at(-finished[-1] - margin, -lost),
    )


def limited(value: float, draws: NDArray[np.float64], n_queries: int) -> Limited:
    """A value with its 95 % interval, from its bootstrap draws."""
    low, high = stats.interval(draws, n_queries)
    return float(value), float(low), float(high)


def no_loss(low: float, high: float, margin: float, rounding: float = 0.0) -> str:
    """Whether a difference is no loss, by its interval: yes if that excludes one above the margin, no if it shows one.

    rounding: what arithmetic alone may lose.
    """
    return YES if low >= -margin - stats.ROUNDING else NO if high < -rounding else UNDECIDED


def _points(curves: Curves, key: Key, metrics: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Points of the quality metrics, then of flips, of what a cascade embeds, and of stale answers."""
    replayed = curves[key]
    curve, old = replayed.curve, curves[of_reference(spine.OLD, key[1])].curve
    for metric in metrics:
        limits = stats.interval(replayed.draws[metric], replayed.n_queries)
        yield block(spine.CurvePoint, *key, metric, curve.t, curve.values(metric), *limits)
    # (Q, T) 1.0 where a query has flipped: relative to the method's own start, and to {old, old}.
    now, own_start, old_start = curve.top1_correct, curve.top1_correct[:, :1], old.top1_correct[:, :1]
    further = {
        spine.NEGATIVE_FLIPS: stats.lost(own_start, now),
        spine.POSITIVE_FLIPS: stats.lost(now, own_start),
        spine.NEGATIVE_FLIPS_VS_OLD: stats.lost(old_start, now),
        spine.POSITIVE_FLIPS_VS_OLD: stats.lost(now, old_start),
    }
    if curve.embedded is not None:
        further[spine.NEW_EMBEDDINGS] = curve.embedded
    if curve.stale is not None:
        further[spine.STALE_ANSWERS] = curve.stale
    for metric, values_QT in further.items():
        limits = stats.interval(stats.bootstrap_means(values_QT, curve.weights), replayed.n_queries)
        yield block(spine.CurvePoint, *key, metric, curve.t, stats.mean(values_QT, curve.weights), *limits)


def _query_values(curves: Curves, metric: str, methods: Mapping[str, Method]) -> Iterator[pd.DataFrame]:
    """Areas and ends of each query as (Q,) float32, once where the order makes no difference."""
    seen: set[str] = set()
    for (name, order, merge), replayed in curves.items():
        if merge != leading_merge(other for method, _, other in curves if method == name):
            continue
        curve, is_reference, is_first = replayed.curve, methods[name].is_reference, name not in seen
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
    is_reference = {key: methods[key[0]].is_reference for key in curves}
    compared_with: dict[Key, list[Key]] = {}
    for other in curves:
        for key in curves:
            differing = sum(a != b for a, b in zip(key, other, strict=True))
            if differing == 1 or (differing and key[1] == other[1] and is_reference[other]):
                compared_with.setdefault(other, []).append(key)
    candidates = [key for key in curves if not is_reference[key]]
    for metric in metrics:
        # A reference has the same curve in all orders, and the best of all orders and merges is compared with it.
        areas_of_candidates = np.array([areas[*key, metric] for key in candidates])
        width_against: dict[str, float] = {}
        for other, compared in compared_with.items():
            draws = np.array([areas[*key, metric] - areas[*other, metric] for key in compared])
            could_win = np.array([not is_reference[key] for key in compared])
            n_queries = curves[other].n_queries
            if not could_win.any():
                width = 0.0
            elif is_reference[other]:
                if other[0] not in width_against:
                    differences = areas_of_candidates - areas[*other, metric]
                    width_against[other[0]] = stats.simultaneous_width(differences, n_queries)
                width = width_against[other[0]]
            else:
                width = stats.simultaneous_width(draws[could_win], n_queries)
            low_K, high_K = stats.interval(draws.T, n_queries)
            for key, low, high, spread, can in zip(compared, low_K, high_K, draws.std(axis=1), could_win, strict=True):
                value = curves[key].curve.auc(metric) - curves[other].curve.auc(metric)
                at_once = (value - width * spread, value + width * spread) if can else (low, high)
                yield spine.DifferenceRow(*key, *other, metric, value, float(low), float(high), *map(float, at_once))
