"""What a comparison keeps of a replay: the curve at the reported points, and what is judged at more moments.

A curve can fall between two reported points, so falls, milestones and flips are judged at all replayed moments.
Shapes: Q scored queries, T reported points, J replayed moments, DRAWS bootstrap draws of queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.flips import Flips
from ray_backfill.compare.permutations import mean_curve
from ray_backfill.compare.tables.results import NEW_EMBEDDINGS
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.replay import Curve


@dataclass(frozen=True)
class FallFound:
    """The largest fall of a curve with its 95 % limits, and the progress t of its peak and trough."""

    size: float
    low: float
    high: float
    start: float
    end: float


@dataclass(frozen=True)
class Replayed:
    """One method in one order and merge; of a random order, the mean over its permutations.

    curve: at the reported points. draws: metric -> (DRAWS, T) means of M_t at these. t: (J,) moments. values: metric ->
    (J,) M_t, and of a cascade ``NEW_EMBEDDINGS``. falls: metric -> largest fall. top1_correct: (Q, J).
    permutation_aucs: metric -> (P,) AUC of each permutation; {} if there is one. first_top1: (Q, J) whether the first
    result is right in the first permutation. flips: its changes, with the first items; None for references, and but for
    the leading merge. merge: the kind of the merge; of the merge "best", the chosen one.
    """

    curve: Curve
    draws: Mapping[str, NDArray[np.float64]]
    t: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]
    falls: Mapping[str, FallFound]
    top1_correct: stats.RightQT
    permutation_aucs: Mapping[str, NDArray[np.float64]]
    first_top1: NDArray[np.bool_]
    flips: Flips | None = None
    merge: str = RAW.name

    def negative_flips_max(self, before_Q: stats.RightQT | None = None) -> float:
        """Return the largest share of queries with a right first result before and a wrong one at some moment.

        before_Q: (Q,) whether the first result was right before; by default that of this method's own start.
        """
        before = self.top1_correct[:, 0] if before_Q is None else before_Q
        return float(stats.negative_flips(before[:, None], self.top1_correct, self.curve.weights).max())

    def settles_at(self, metric: str, target: float) -> float:
        """Return the progress from which on M_t never is below ``target``; NaN if it is at the end."""
        index = stats.settles(self.values[metric], target - stats.ROUNDING)
        return float("nan") if index is None else float(self.t[index])


def judge(curves: Sequence[Curve], step: int) -> Replayed:
    """Judge a curve at all its moments, and keep every ``step``-th one for the report. Cost: O(DRAWS Q J).

    curves: one, or those of several permutations of a random order, whose mean is judged.
    """
    curve = mean_curve(curves)
    values = {metric: curve.values(metric) for metric in curve.per_query}
    draws, falls = {}, {}
    for metric, values_QJ in curve.per_query.items():
        means = stats.bootstrap_means(values_QJ, curve.weights)
        fall = stats.largest_fall(values[metric])
        limits = stats.fall_limits(means, values[metric])
        falls[metric] = FallFound(fall.size, *limits, float(curve.t[fall.peak]), float(curve.t[fall.trough]))
        draws[metric] = means[:, ::step].copy()
    if curve.embedded is not None:
        values[NEW_EMBEDDINGS] = stats.mean(curve.embedded, curve.weights)
    reported = [each.thinned(step) for each in curves] if len(curves) > 1 else []
    aucs = {metric: np.array([each.auc(metric) for each in reported]) for metric in curve.per_query if reported}
    first_top1 = curves[0].top1_correct.astype(np.bool_, copy=False)
    return Replayed(curve.thinned(step), draws, curve.t, values, falls, curve.top1_correct, aucs, first_top1)
