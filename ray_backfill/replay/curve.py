"""The quality of a service at every moment of a backfill. Shapes: Q scored queries, T points."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill import metrics as m
from ray_backfill.errors import InputError


class Difference(NamedTuple):
    """A difference of two AUCs and its 95 % bootstrap interval; the two differ surely if 0 is outside of it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """What ``replay`` returns: each query's value of each metric at each point.

    t: (T,) progress in [0, 1]. per_query: metric name -> (Q, T) float64. top1_correct: (Q, T) bool.
    scored: (Q,) positions of the queries that have a positive; n_skipped: how many have none and count nowhere.
    """

    t: NDArray[np.float64]
    per_query: dict[str, NDArray[np.float64]]
    top1_correct: NDArray[np.bool_]
    scored: NDArray[np.int64]
    n_skipped: int

    def values(self, metric: str) -> NDArray[np.float64]:
        """(T,) mean over the scored queries: M_t."""
        mean: NDArray[np.float64] = self._of(metric).mean(axis=0)
        return mean

    def auc(self, metric: str) -> float:
        """Area under M_t, trapezoid rule."""
        return m.auc(self.t, self.values(metric))

    def auc_mean(self, metric: str) -> float:
        """Plain mean of M_t over the points, as FastFill's code takes it."""
        return m.auc_mean(self.values(metric))

    def gain(self, metric: str, old: "Curve", new: "Curve") -> float:
        """Share of the step from {old, old} to {new, new} that this curve's area gives; 1.0 = 100 %."""
        return m.gain(self.auc(metric), old.auc(metric), new.auc(metric))

    def monotone(self, metric: str) -> bool:
        """Whether M_t never decreases (rank merge, eq. 8)."""
        return m.is_monotone(self.values(metric))

    def interval(self, metric: str, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(T,) low and (T,) high of the 95 % bootstrap interval over queries."""
        return m.interval(m.bootstrap_means(self._of(metric), seed))

    def auc_interval(self, metric: str, *, seed: int = 0) -> tuple[float, float]:
        """Low and high of the 95 % bootstrap interval of the AUC."""
        low, high = m.interval(self._auc_draws(metric, seed))
        return float(low), float(high)

    def difference(self, other: "Curve", metric: str, *, seed: int = 0) -> Difference:
        """How much higher this curve's AUC is than that of another one of the same queries; paired."""
        self._same_queries(other)
        low, high = m.interval(self._auc_draws(metric, seed) - other._auc_draws(metric, seed))
        return Difference(self.auc(metric) - other.auc(metric), float(low), float(high))

    def gain_interval(self, metric: str, old: "Curve", new: "Curve", *, seed: int = 0) -> tuple[float, float]:
        """Low and high of the 95 % bootstrap interval of the gain; NaN where old and new are equal."""
        mine, olds, news = (curve._auc_draws(metric, seed) for curve in (self, old, new))
        low, high = m.interval(m.gain_draws(mine, olds, news))
        return float(low), float(high)

    def of_queries(self, mask: NDArray[np.bool_]) -> "Curve":
        """The same curve over some of the queries. mask: (all queries,) bool; of them only the scored ones count.

        Raises:
            InputError: none of them is scored.
        """
        kept = mask[self.scored]
        if not kept.any():
            raise InputError("none of these queries has a positive in the gallery: there is nothing to measure")
        skipped = int(np.count_nonzero(mask)) - int(np.count_nonzero(kept))
        per_query = {name: values[kept] for name, values in self.per_query.items()}
        return Curve(self.t, per_query, self.top1_correct[kept], self.scored[kept], skipped)

    def negative_flips(self, before: "Curve | None" = None) -> NDArray[np.float64]:
        """(T,) share of queries right before and wrong at t; before: this curve's t = 0, or that of another one."""
        return m.negative_flips(self._top1_before(before), self.top1_correct)

    def positive_flips(self, before: "Curve | None" = None) -> NDArray[np.float64]:
        """(T,) share of queries wrong before and right at t."""
        return m.positive_flips(self._top1_before(before), self.top1_correct)

    @property
    def frame(self) -> pd.DataFrame:
        """Tidy table with columns metric, t, value."""
        tables = [pd.DataFrame({"metric": name, "t": self.t, "value": self.values(name)}) for name in self.per_query]
        return pd.concat(tables, ignore_index=True)

    def _of(self, metric: str) -> NDArray[np.float64]:
        if metric not in self.per_query:
            raise InputError(f"this curve has no metric {metric!r}; it has: {', '.join(self.per_query)}")
        return self.per_query[metric]

    def _auc_draws(self, metric: str, seed: int) -> NDArray[np.float64]:
        return m.auc_draws(self.t, m.bootstrap_means(self._of(metric), seed))

    def _same_queries(self, other: "Curve") -> None:
        if not np.array_equal(other.scored, self.scored):
            raise InputError("only curves of the same queries can be compared")

    def _top1_before(self, before: "Curve | None") -> NDArray[np.bool_]:
        other = self if before is None else before
        self._same_queries(other)
        return other.top1_correct[:, :1]
