"""Curves: the quality of a retrieval service during a backfill. Shapes: Q scored queries, T points."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine import statistics as stats
from ray_backfill.page import Compared, Difference, Differences, html_table, make_differences

if TYPE_CHECKING:
    from ray_backfill.page.drawing import Axes, Figure


@dataclass(frozen=True, repr=False, eq=False)
class Curve:
    """The values of all queries and metrics at every point of a backfill; ``replay`` returns it.

    In all methods, ``metric`` is the name of a metric of this curve, and ``seed`` the seed of the bootstrap. An unknown
    metric raises InputError.
    """

    t: NDArray[np.float64]
    """(T,) progress of the backfill: the share of backfilled items, in [0, 1]."""
    per_query: dict[str, NDArray[np.float64]]
    """Metric name -> (Q, T) values."""
    top1_correct: stats.RightQT
    """(Q, T) whether each query's first item is a positive; for a mean over several orders, the share of them."""
    scored: NDArray[np.int64]
    """(Q,) positions of the queries that have a positive."""
    n_skipped: int
    """Number of queries without positives, which are left out."""
    is_step: bool = False
    """Whether it is constant until t = 1 and jumps there (offline backfilling), so that its area is that of a step."""
    weights: stats.Weights = None
    """(Q,) weight of each query in every mean, the largest is 1; None if they are equal."""
    embedded: NDArray[np.float64] | None = None
    """(Q, T) number of gallery items that the new model embeds for a query; None unless it is a cascade."""
    stale: NDArray[np.float64] | None = None
    """(Q, T) share of the first results of a service whose old vectors are of stale content; None without changes."""
    variations: Mapping[str, "Curve"] = field(default_factory=dict)
    """Behind a service's stages: the same with some of them left out, at the reported points."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", stats.relative_weights(self.weights))

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return M_t: the (T,) weighted means over the scored queries."""
        return stats.mean(self._of(metric), self.weights)

    def auc(self, metric: str) -> float:
        """Return the area under M_t, by the trapezoid rule; the exact area of a step."""
        return stats.auc(self.t, self.values(metric), self.is_step)

    def auc_mean(self, metric: str) -> float:
        """Return the plain mean of M_t over the points, as in FastFill's code."""
        return stats.auc_mean(self.values(metric))

    def gain(self, metric: str, old: "Curve", new: "Curve") -> float:
        """Return the share of the upgrade's improvement that users get during the backfill.

        Args:
            metric: Name of the metric.
            old: Curve of {old, old}, the service before the upgrade.
            new: Curve of {new, new}, the finished upgrade.

        Returns:
            (AUC - AUC of old) / (AUC of new - AUC of old); 1.0 = 100 %. NaN if old and new are equal; without meaning
            where new is not clearly better than old, for which ``gain_interval`` is NaN.
        """
        return stats.gain(self.auc(metric), old.auc(metric), new.auc(metric))

    def monotone(self, metric: str) -> bool:
        """Return whether M_t never decreases (rank merge, eq. 8), up to rounding of float64 means (1e-12)."""
        return self.largest_fall(metric).size <= stats.ROUNDING

    def largest_fall(self, metric: str) -> stats.Fall:
        """Return the largest drawdown of M_t: from its peak to the lowest later value."""
        return stats.largest_fall(self.values(metric))

    def interval(self, metric: str, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (T,) low and (T,) high of the 95 % bootstrap interval of M_t over queries."""
        return stats.interval(stats.bootstrap_means(self._of(metric), self.weights, seed), len(self.scored))

    def auc_interval(self, metric: str, *, seed: int = 0) -> tuple[float, float]:
        """Return low and high of the 95 % bootstrap interval of the AUC."""
        low, high = stats.interval(self._auc_draws(metric, seed), len(self.scored))
        return float(low), float(high)

    def difference(self, other: "Curve", metric: str, *, seed: int = 0) -> Difference:
        """Return this curve's AUC minus another one's, with a paired bootstrap interval.

        Raises:
            InputError: The two curves have different queries, or these have different weights.
        """
        self._same_queries(other)
        draws = self._auc_draws(metric, seed) - other._auc_draws(metric, seed)
        low, high = stats.interval(draws, len(self.scored))
        return Difference(self.auc(metric) - other.auc(metric), float(low), float(high))

    def gain_interval(self, metric: str, old: "Curve", new: "Curve", *, seed: int = 0) -> tuple[float, float]:
        """Return low and high of the 95 % bootstrap interval of ``gain``; NaN if new is not clearly better than old."""
        mine, olds, news = (curve._auc_draws(metric, seed) for curve in (self, old, new))
        return stats.gain_limits(mine, olds, news, len(self.scored))

    def of_queries(self, mask: NDArray[np.bool_]) -> "Curve":
        """Return the curve over some of the queries.

        Args:
            mask: (all queries,) bool, including the queries without positives.

        Raises:
            InputError: None of these queries has a positive.
        """
        kept = mask[self.scored]
        if not kept.any():
            raise InputError("none of these queries has a positive in the gallery, so there is nothing to measure")
        skipped = int(np.count_nonzero(mask)) - int(np.count_nonzero(kept))
        per_query = {name: values[kept] for name, values in self.per_query.items()}
        return replace(
            self,
            per_query=per_query,
            top1_correct=self.top1_correct[kept],
            scored=self.scored[kept],
            n_skipped=skipped,
            weights=None if self.weights is None else self.weights[kept],
            embedded=None if self.embedded is None else self.embedded[kept],
            stale=None if self.stale is None else self.stale[kept],
        )

    def thinned(self, step: int) -> "Curve":
        """Return the curve at every ``step``-th point, the first one included."""
        per_query = {name: np.ascontiguousarray(values[:, ::step]) for name, values in self.per_query.items()}
        return replace(
            self,
            t=self.t[::step],
            per_query=per_query,
            top1_correct=self.top1_correct[:, ::step].copy(),
            embedded=None if self.embedded is None else self.embedded[:, ::step].copy(),
            stale=None if self.stale is None else self.stale[:, ::step].copy(),
        )

    def negative_flips(self, before: "Curve | None" = None) -> NDArray[np.float64]:
        """Return the (T,) share of queries whose top-1 is correct before the backfill and wrong at t.

        Args:
            before: Curve whose values at t = 0 count as before; by default this one.
        """
        return stats.negative_flips(self._top1_before(before), self.top1_correct, self.weights)

    def positive_flips(self, before: "Curve | None" = None) -> NDArray[np.float64]:
        """Return the (T,) share of queries whose top-1 is wrong before the backfill and correct at t."""
        return stats.positive_flips(self._top1_before(before), self.top1_correct, self.weights)

    def compare(self, other: "Curve | Mapping[str, Curve]", metric: str | None = None, *, seed: int = 0) -> Differences:
        """How much higher this curve's AUC is than that of others of the same queries.

        Args:
            other: Another curve, or several by name, such as ``replay`` returns for several orders.
            metric: The metric to compare by; by default all of this curve.
            seed: Random seed of the bootstrap.

        Returns:
            One row for each other curve and metric, with paired 95 % intervals.

        Raises:
            InputError: The curves are not of the same queries, or one lacks the metric.
        """
        others = {"": other} if isinstance(other, Curve) else other
        lines = []
        for name, curve in others.items():
            for shown in [metric] if metric else self.per_query:
                names = {"other": name, "metric": shown} if name else {"metric": shown}
                difference = self.difference(curve, shown, seed=seed)
                lines.append(Compared(names, self.auc(shown), curve.auc(shown), difference))
        return make_differences("average of this curve minus that of the other, in per cent", lines)

    def plot(self, metric: str | None = None, *, label: str = "", ax: "Axes | None" = None) -> "Figure":
        """Draw M_t over progress with its 95 % bootstrap interval. Needs matplotlib.

        Args:
            metric: The metric to draw; by default all of this curve.
            label: Name of the curve in the legend; by default the metric.
            ax: Matplotlib axes to draw onto, for example ``figure.axes[0]`` of another curve's plot.

        Returns:
            The figure. A notebook shows it; ``figure.savefig("curve.png")`` writes it to a file.

        Raises:
            InputError: This curve has no such metric.
        """
        from ray_backfill.page.drawing import LabelledCurve, plot_bands

        names = [metric] if metric else list(self.per_query)
        labels = [label] if label and len(names) == 1 else [f"{label} {name}".strip() for name in names]
        bands = [
            LabelledCurve(shown, self.t, self.values(name), *self.interval(name))
            for shown, name in zip(labels, names, strict=True)
        ]
        only = names[0] if len(names) == 1 else "Quality"
        return plot_bands(bands, f"{only} during the backfill", f"{only} (%)", ax)

    def __repr__(self) -> str:
        lines = [
            f"{name}: {100 * values[0]:.1f} % at the start, {100 * values[-1]:.1f} % at the end, "
            f"average {100 * auc:.1f} %"
            for name in self.per_query
            for values, auc in [(self.values(name), self.auc(name))]
        ]
        return "\n".join([self._title, *lines])

    def _repr_html_(self) -> str:
        rows = []
        for name in self.per_query:
            values, (low, high) = self.values(name), self.auc_interval(name)
            fall = "never falls" if self.monotone(name) else f"{100 * self.largest_fall(name).size:.1f}"
            rows.append(
                {
                    "metric": name,
                    "average": f"{100 * self.auc(name):.1f}",
                    "95 % interval": f"{100 * low:.1f} to {100 * high:.1f}",
                    "start": f"{100 * values[0]:.1f}",
                    "end": f"{100 * values[-1]:.1f}",
                    "largest fall": fall,
                }
            )
        return html_table(f"{self._title}, in per cent", pd.DataFrame(rows))

    @property
    def _title(self) -> str:
        skipped = f" ({self.n_skipped:,} without a positive left out)" if self.n_skipped else ""
        weighted = "" if self.weights is None else ", weighted"
        return f"Curve: {len(self.t)} points, {len(self.scored):,} queries{skipped}{weighted}"

    @property
    def frame(self) -> pd.DataFrame:
        """Long-format table of M_t with the columns metric, t, value."""
        tables = [pd.DataFrame({"metric": name, "t": self.t, "value": self.values(name)}) for name in self.per_query]
        return pd.concat(tables, ignore_index=True)

    def _of(self, metric: str) -> NDArray[np.float64]:
        if metric not in self.per_query:
            raise InputError(f"this curve has no metric {metric!r}; it has: {', '.join(self.per_query)}")
        return self.per_query[metric]

    def _auc_draws(self, metric: str, seed: int) -> NDArray[np.float64]:
        return stats.auc_draws(self.t, stats.bootstrap_means(self._of(metric), self.weights, seed), self.is_step)

    def _same_queries(self, other: "Curve") -> None:
        if not np.array_equal(other.scored, self.scored):
            raise InputError("the two curves have different queries; replay both with the same queries to compare them")
        if not _equal(other.weights, self.weights):
            raise InputError("the two curves have different weights of queries; replay both with the same ground truth")

    def _top1_before(self, before: "Curve | None") -> stats.RightQT:
        other = self if before is None else before
        self._same_queries(other)
        return other.top1_correct[:, :1]


def _equal(a: stats.Weights, b: stats.Weights) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))
