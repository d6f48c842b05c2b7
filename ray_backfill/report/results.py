"""Reads and checks a results folder: three files in, one typed, frozen ``Results`` out. Computes nothing."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ray_backfill.errors import InputError
from ray_backfill.report.tables import read_manifest, read_table

T = TypeVar("T")
AGAIN = "run simulate again"

CURVE_COLUMNS = ("method", "order", "merge", "metric", "t", "value", "low", "high")
SUMMARY_COLUMNS = (
    *("method", "title", "order", "merge", "metric", "auc", "auc_low", "auc_high", "auc_mean", "gain", "gain_low"),
    *("gain_high", "start", "end", "monotone", "largest_fall", "starts_at_old", "ends_at_new", "negative_flips_max"),
)
DIFFERENCE_COLUMNS = (
    *("method", "order", "merge", "other_method", "other_order", "other_merge", "metric", "difference", "low", "high"),
)
SUBGROUP_COLUMNS = (*CURVE_COLUMNS, "group", "queries")
COST_NAMES = ("method", "title", "query_models", "trained_models")
COST_NUMBERS = (
    *("query_backbone_macs", "query_parameters", "query_macs", "gallery_macs", "training_flops"),
    "backbone_training_flops",
)
GAP = "(gap)"
FLIP_METRICS = {
    "negative_flips": "Negative flips against the method's own start",
    "negative_flips_vs_old": "Negative flips against the old service",
    "positive_flips": "Positive flips against the method's own start",
    "positive_flips_vs_old": "Positive flips against the old service",
}
DAGGER = "\u2020"
REFERENCES = ("old", "new")
ORDER_FREE = (*REFERENCES, "offline")  # by definition these do not depend on the order or the merge: shown once


class Variant(NamedTuple):
    """In which order items are backfilled and how distances of the two systems are made comparable."""

    order: str
    merge: str

    @property
    def is_oracle(self) -> bool:
        """Whether the order peeks at the answer: an upper bound that nobody can deploy."""
        return self.order.startswith("oracle")

    @property
    def order_name(self) -> str:
        """The order as it is shown: an oracle one is marked, wherever it stands."""
        return f"{self.order} {DAGGER}" if self.is_oracle else self.order


@dataclass(frozen=True)
class Row:
    """One line of summary.parquet. Metrics are shares (0.6 = 60 %); None stands for a flag that was not computed."""

    method: str
    title: str
    variant: Variant
    metric: str
    auc: float
    auc_low: float
    auc_high: float
    auc_mean: float
    gain: float
    gain_low: float
    gain_high: float
    start: float
    end: float
    monotone: bool | None
    largest_fall: float
    starts_at_old: bool | None
    ends_at_new: bool | None
    negative_flips_max: float

    @property
    def is_reference(self) -> bool:
        """Whether this is old or new: what the others are measured against."""
        return self.method in REFERENCES

    @property
    def is_bound(self) -> bool:
        """Whether it is backfilled in an oracle order; old, new and offline look the same in any."""
        return self.variant.is_oracle and self.method not in ORDER_FREE

    @property
    def is_safe(self) -> bool:
        """Whether all three conditions hold: starts at old, ends at new, never falls."""
        return bool(self.monotone and self.starts_at_old and self.ends_at_new)


class Line(NamedTuple):
    """One curve: arrays of one length, sorted by t; low and high are NaN where there is no interval."""

    t: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


class Difference(NamedTuple):
    """AUC of one row minus that of another, with its paired 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """One line of costs.parquet. numbers: by column, counts of what is done or stored; NaN = not known."""

    method: str
    title: str
    query_models: str
    trained_models: str
    numbers: dict[str, float]


# Two summary rows of one metric, by (method, variant) each.
Pair = tuple[tuple[str, Variant], tuple[str, Variant], str]


@dataclass(frozen=True)
class Results:
    """A results folder in memory.

    groups: by (method, variant, metric) the curve of each subgroup of queries and of the gap; {} without subgroups.
    costs: what each method costs; () where nobody counted.
    """

    rows: tuple[Row, ...]
    lines: dict[tuple[str, Variant, str], Line]
    differences: dict[Pair, Difference]
    groups: dict[tuple[str, Variant, str], dict[str, Line]]
    manifest: dict[str, Any]
    costs: tuple[Cost, ...] = ()

    @property
    def primary(self) -> str:
        """The metric by which methods are judged."""
        return str(self.manifest["primary_metric"])

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Quality metrics without the flip curves, the primary one first."""
        return _unique((self.primary, *(r.metric for r in self.rows if r.metric not in FLIP_METRICS)))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Plugin names in the order in which they should be listed."""
        return _unique(r.method for r in self.rows)

    @cached_property
    def titles(self) -> dict[str, str]:
        """Display name per method."""
        return {r.method: r.title for r in self.rows}

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Order and merge combinations that some method other than old, new and offline was run with."""
        own = _unique(r.variant for r in self.rows if r.method not in ORDER_FREE)
        return own or _unique(r.variant for r in self.rows)[:1]

    @cached_property
    def orders(self) -> tuple[str, ...]:
        """The orders among the variants."""
        return _unique(v.order for v in self.variants)

    @cached_property
    def merges(self) -> tuple[str, ...]:
        """The merges among the variants."""
        return _unique(v.merge for v in self.variants)

    def label(self, variant: Variant) -> str:
        """Names a variant by what distinguishes it; the order where there is only one variant."""
        parts = [f"{variant.order_name} order"] if len(self.orders) > 1 else []
        parts += [f"{variant.merge} merge"] if len(self.merges) > 1 else []
        return ", ".join(parts) or f"{variant.order_name} order"

    def group(self, row: Row) -> Variant | None:
        """The group of rows that a table sets apart; None for old, new and offline, and if there is one variant."""
        return None if len(self.variants) == 1 or row.method in ORDER_FREE else row.variant

    def table(self, metric: str) -> list[Row]:
        """All rows of a metric: first old, new and offline, once each, then one group per variant."""
        rows = [r for r in self.rows if r.metric == metric]
        if len(self.variants) == 1:
            return self.panel(metric, self.variants[0])
        free = {r.method: r for r in reversed(rows) if r.method in ORDER_FREE}
        once = [free[m] for m in self.methods if m in free]
        place = {variant: index for index, variant in enumerate(self.variants)}
        return once + sorted((r for r in rows if r.method not in ORDER_FREE), key=lambda r: place[r.variant])

    def panel(self, metric: str, variant: Variant) -> list[Row]:
        """The rows to compare within one variant: its own, and old, new and offline wherever they were stored."""
        found: dict[str, Row] = {}
        for row in (r for r in self.rows if r.metric == metric):
            if row.variant == variant or (row.method in ORDER_FREE and row.method not in found):
                found[row.method] = row
        return [found[m] for m in self.methods if m in found]

    def line(self, row: Row, metric: str | None = None) -> Line | None:
        """The curve that belongs to a summary row, or that row's curve of another metric; None if there is none."""
        return self.lines.get((row.method, row.variant, metric or row.metric))

    def difference(self, row: Row, other: Row) -> Difference | None:
        """How far the AUC of ``row`` is above that of ``other``; None where they were not compared."""
        variant = Variant(row.variant.order, other.variant.merge) if other.method in ORDER_FREE else other.variant
        return self.differences.get(((row.method, row.variant), (other.method, variant), row.metric))

    def best(self, metric: str | None = None) -> Row | None:
        """The row with the highest AUC (primary metric by default) that one could deploy during a backfill."""
        rows = [
            r
            for r in self.rows
            if r.metric == (metric or self.primary) and not (r.is_reference or r.is_bound or math.isnan(r.auc))
        ]
        return max(rows, key=lambda r: r.auc, default=None)

    @property
    def best_variant(self) -> Variant:
        """The order and merge of the best row; the first ones that one could deploy where it depends on neither."""
        best = self.best()
        if best is not None and best.method not in ORDER_FREE:
            return best.variant
        return next((v for v in self.variants if not v.is_oracle), self.variants[0])


def read_results(folder: Path) -> Results:
    """Read curves, summary, differences, subgroups and costs (if there are any) and manifest.json of a simulation.

    Raises:
        InputError: the folder, a file, a column or a key is missing, or the files contradict each other.
    """
    if not folder.is_dir():
        raise InputError(f"no results folder at {folder}: give the folder that simulate wrote with --out")
    curves = read_table(folder / "curves.parquet", CURVE_COLUMNS, AGAIN)
    summary = read_table(folder / "summary.parquet", SUMMARY_COLUMNS, AGAIN)
    differences = read_table(folder / "differences.parquet", DIFFERENCE_COLUMNS, AGAIN)
    subgroups, costs = folder / "subgroups.parquet", folder / "costs.parquet"
    results = Results(
        tuple(_row(record) for record in summary.to_dict("records")),
        _lines(curves),
        _differences(differences),
        _groups(read_table(subgroups, SUBGROUP_COLUMNS, AGAIN)) if subgroups.exists() else {},
        read_manifest(folder / "manifest.json", AGAIN),
        _costs(read_table(costs, (*COST_NAMES, *COST_NUMBERS), AGAIN)) if costs.exists() else (),
    )
    if not any(r.metric == results.primary for r in results.rows):
        raise InputError(
            f"{folder / 'summary.parquet'} has no rows for the primary metric {results.primary!r}: run simulate again"
        )
    for row in results.rows:
        if row.metric not in FLIP_METRICS and results.line(row) is None:
            raise InputError(
                f"{folder / 'curves.parquet'} has no curve for {row.method}, {row.variant.order} order, "
                f"{row.variant.merge} merge, {row.metric}, which summary.parquet lists: run simulate again"
            )
    return results


def _row(record: dict[Any, Any]) -> Row:
    names = ("auc", "auc_low", "auc_high", "auc_mean", "gain", "gain_low", "gain_high", "start", "end", "largest_fall")
    numbers = {name: float(record[name]) for name in names}
    return Row(
        method=str(record["method"]),
        title=str(record["title"]),
        variant=Variant(str(record["order"]), str(record["merge"])),
        metric=str(record["metric"]),
        monotone=_flag(record["monotone"]),
        starts_at_old=_flag(record["starts_at_old"]),
        ends_at_new=_flag(record["ends_at_new"]),
        negative_flips_max=float(record["negative_flips_max"]),
        **numbers,
    )


def _flag(value: Any) -> bool | None:
    # bool(NaN) is True: a flag that was never computed must not read as a condition that holds.
    return None if pd.isna(value) else bool(value)


def _lines(curves: pd.DataFrame) -> dict[tuple[str, Variant, str], Line]:
    # Sorted once and cut by position: hundreds of curves one by one take minutes.
    ordered = curves.sort_values("t", kind="stable")
    columns = [ordered[c].to_numpy(dtype=np.float64) for c in ("t", "value", "low", "high")]
    lines = {}
    groups: dict[Any, Any] = ordered.groupby(["method", "order", "merge", "metric"], sort=False).indices
    for key, places in groups.items():
        method, order, merge, metric = (str(k) for k in key)
        lines[method, Variant(order, merge), metric] = Line(*(column[places] for column in columns))
    return lines


def _differences(table: pd.DataFrame) -> dict[Pair, Difference]:
    columns = (table[c].astype(str) for c in DIFFERENCE_COLUMNS[:7])
    numbers = (table[c].to_numpy(dtype=np.float64).tolist() for c in DIFFERENCE_COLUMNS[7:])
    return {
        ((method, Variant(order, merge)), (other, Variant(other_order, other_merge)), metric): Difference(*found)
        for method, order, merge, other, other_order, other_merge, metric, *found in zip(
            *columns, *numbers, strict=True
        )
    }


def _costs(table: pd.DataFrame) -> tuple[Cost, ...]:
    return tuple(
        Cost(
            str(r["method"]),
            str(r["title"]),
            str(r["query_models"]),
            str(r["trained_models"]),
            {name: float(r[name]) for name in COST_NUMBERS},
        )
        for r in table.to_dict("records")
    )


def _groups(table: pd.DataFrame) -> dict[tuple[str, Variant, str], dict[str, Line]]:
    found: dict[tuple[str, Variant, str], dict[str, Line]] = {}
    for group, part in table.groupby("group", sort=False):
        for key, line in _lines(part).items():
            found.setdefault(key, {})[str(group)] = line
    return found


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
