"""Reads the tables of a forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from ray_backfill.core.schema import frame, read_manifest, read_table, rows_of
from ray_backfill.forecast.tables import CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow
from ray_backfill.page.numbers import html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RowT = TypeVar("RowT")
_AGAIN = "run forecast again"


@dataclass(frozen=True, repr=False)
class ForecastResults:
    """What ``forecast`` returns; shows itself as a table in a notebook.

    Attributes:
        manifest: Settings, sizes, and what was left out and why.
        points: The curves.
        rows: The lines of the summary.
        differences: Differences of AUCs with their paired intervals.
        calibration: How well the model of unsampled items predicts the sample.
    """

    manifest: Mapping[str, Any]
    points: Sequence[ForecastPoint]
    rows: Sequence[ForecastRow]
    differences: Sequence[ForecastDifference]
    calibration: Sequence[CalibrationRow]

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each method, order and metric: AUC, gain, start, end and more with their limits, as shares."""
        return frame(ForecastRow, self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """The curves as a tidy table: method, order, metric, t, value, low, high; shares."""
        return frame(ForecastPoint, self.points)

    def show(self) -> None:
        """Print the table that the command prints: one row for each method and order, and what limits the forecast."""
        from ray_backfill.forecast.report.terminal import draw_forecast

        draw_forecast(self)

    def plot(self) -> "Figure":
        """Draw the curves with their 95 % intervals. Needs matplotlib."""
        from ray_backfill.forecast.report.page import charts_of
        from ray_backfill.page.drawing import panels_figure

        return panels_figure(charts_of(self))

    def _repr_html_(self) -> str:
        from ray_backfill.forecast.report.terminal import overview, title
        from ray_backfill.forecast.report.words import told, warnings

        return html_table(title(self), overview(self), [*warnings(self), *told(self)])

    def __repr__(self) -> str:
        from ray_backfill.forecast.report.words import heading

        return f"{heading(self)}; {len({row.method for row in self.rows})} methods; .show(), .plot(), .summary, .frame"

    @property
    def is_exact(self) -> bool:
        """Whether the new embedding of every item is known."""
        return bool(self.manifest["known"] == self.manifest["items"])

    @property
    def metrics(self) -> list[str]:
        """The metrics, the primary one first."""
        return list(self.manifest["evaluation"]["metrics"])

    @property
    def orders(self) -> list[str]:
        """The orders."""
        return list(dict.fromkeys(row.order for row in self.rows))

    def of(self, metric: str, order: str) -> list[ForecastRow]:
        """The rows of a metric in an order, the highest AUC first."""
        found = [row for row in self.rows if (row.metric, row.order) == (metric, order)]
        return sorted(found, key=lambda row: -row.auc)

    def lead(self, metric: str, order: str) -> str:
        """A sentence: the method with the highest AUC, and over which its lead may be chance. "" for one method."""
        best, *rest = self.of(metric, order)
        if not rest:
            return ""
        first = f"{best.title} has the highest AUC of {metric}"
        apart = {pair.other_method for pair in self.pairs(metric, order) if pair.method == best.method and pair.low > 0}
        close = [row.title for row in rest if row.method not in apart]
        if self.is_exact:
            return f"{first}."
        if not close:
            return f"{first}; the sample is large enough to tell it from every other method."
        return f"{first}; the sample does not tell it from: {'; '.join(close)}."

    def pairs(self, metric: str, order: str) -> list[ForecastDifference]:
        """The differences of all pairs of methods in a metric and an order, the better method of each pair first."""
        rank = {row.method: place for place, row in enumerate(self.of(metric, order))}
        found = [
            each if rank[each.method] < rank[each.other_method] else replace(
                each, method=each.other_method, other_method=each.method, difference=-each.difference,
                low=-each.high, high=-each.low,
            )
            for each in self.differences if (each.metric, each.order) == (metric, order)
        ]  # fmt: skip
        return sorted(found, key=lambda each: (rank[each.method], rank[each.other_method]))


def read_forecast(folder: Path) -> ForecastResults:
    """Read a folder that ``forecast`` wrote. Raises InputError if a file is missing or broken."""
    manifest = read_manifest(folder / "manifest.json", ("evaluation", "items", "known", "old", "new"), _AGAIN)

    def rows(name: str, kind: type[RowT]) -> list[RowT]:
        return rows_of(kind, read_table(folder / f"{name}.parquet", kind, _AGAIN, may_be_empty=True))

    return ForecastResults(
        manifest,
        rows("curves", ForecastPoint),
        rows("summary", ForecastRow),
        rows("differences", ForecastDifference),
        rows("calibration", CalibrationRow),
    )
