"""A results folder in memory: its rows, curves and further tables, and how they belong together. Computes nothing."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ray_backfill.compare.tables import FLIP_METRICS, NEW, OLD, Manifest, SummaryRow
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import rows_of
from ray_backfill.page import Difference

DAGGER, DOUBLE_DAGGER = "\u2020", "\u2021"


class Variant(NamedTuple):
    """A backfill order and a merge, which makes the distances of the two systems comparable."""

    order: str
    merge: str


class Line(NamedTuple):
    """One curve: arrays of equal length, sorted by t; low and high are NaN where there is no interval."""

    t: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


class Trace(NamedTuple):
    """One curve at all judged moments: arrays of equal length, sorted by t."""

    t: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]


LineT = TypeVar("LineT", Line, Trace)


@dataclass(frozen=True)
class Row(SummaryRow):
    """One line of summary.parquet, with the traits of its method and order from the manifest.

    Metrics are shares (0.6 = 60 %). is_reference: old, new or offline, which do not depend on order and merge.
    """

    is_reference: bool
    is_baseline: bool
    is_oracle: bool

    @property
    def variant(self) -> Variant:
        """The order and the merge."""
        return Variant(self.order, self.merge)

    @property
    def is_end(self) -> bool:
        """Whether this is old or new, the two ends of the gain scale."""
        return self.method in (OLD, NEW)

    @property
    def is_bound(self) -> bool:
        """Whether it uses an oracle order: an upper bound that cannot be deployed."""
        return self.is_oracle and not self.is_reference

    @property
    def conditions(self) -> tuple[str, str, str]:
        """The verdicts on the three conditions: starts at old, ends at new, never falls."""
        return self.starts_at_old, self.ends_at_new, self.never_falls


# Two (method, variant) pairs and a metric: the key of a difference.
DifferenceKey = tuple[tuple[str, Variant], tuple[str, Variant], str]


class Tables(Mapping[str, tuple[Any, ...]]):
    """The rows of the tables of analyses, by name; a table becomes rows when it is first asked for."""

    def __init__(self, tables: Mapping[str, tuple[type, pd.DataFrame]] | None = None) -> None:
        """tables: name -> the row type and the table."""
        self._tables = dict(tables or {})
        self._rows: dict[str, tuple[Any, ...]] = {}

    def __getitem__(self, name: str) -> tuple[Any, ...]:
        if name not in self._rows:
            self._rows[name] = tuple(rows_of(*self._tables[name]))
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def frame(self, name: str) -> pd.DataFrame:
        """The table of this name, which must be there."""
        return self._tables[name][1]

    def with_further(self, tables: Mapping[str, tuple[type, pd.DataFrame]]) -> "Tables":
        """These tables and further ones. tables: name -> the row type and the table."""
        return Tables(self._tables | dict(tables))

    def of_methods(self, names: Iterable[str]) -> "Tables":
        """The rows of these methods; tables without a column ``method`` as they are."""
        kept = list(names)
        return Tables(
            {
                name: (kind, table[table["method"].isin(kept)] if "method" in table else table)
                for name, (kind, table) in self._tables.items()
            }
        )


@dataclass(frozen=True, repr=False)
class ResultsData:
    """The content of a results folder; ``Results`` is what users see of it.

    rows: the summary. lines: curves at the reported points. moments: at all judged ones. tables: of analyses, by name.
    is_kept: whether its reader has the folder, too.
    """

    rows: tuple[Row, ...]
    lines: dict[tuple[str, Variant, str], Line]
    differences: dict[DifferenceKey, Difference]
    at_once: dict[DifferenceKey, Difference]
    moments: dict[tuple[str, Variant, str], Trace]
    manifest: Manifest
    tables: Tables
    is_kept: bool = True

    def file(self, name: str) -> str:
        """What to call a file of the results for a reader, who has none if they are in memory alone."""
        in_memory = {"report.html": 'results.report("report.html")', "summary.parquet": "results.summary"}
        return name if self.is_kept else in_memory.get(name, f"{name} of a run with out=...")

    def table_of(self, name: str) -> tuple[Any, ...]:
        """The rows of the table of an analysis; () if the run has not written it."""
        return self.tables.get(name, ())

    def only(self, *methods: str) -> Self:
        """These results with some of the methods, and with old and new; in their tables and figures, too.

        Raises:
            InputError: Unknown names.
        """
        if unknown := [name for name in methods if name not in self.methods]:
            raise InputError(f"these results have no method {unknown[0]}; known: {', '.join(self.methods)}")
        kept = {*methods, OLD, NEW}
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.method in kept),
            lines={key: line for key, line in self.lines.items() if key[0] in kept},
            moments={key: trace for key, trace in self.moments.items() if key[0] in kept},
            tables=self.tables.of_methods(kept),
        )

    @property
    def primary(self) -> str:
        """The metric that methods are ranked by."""
        return self.manifest.primary_metric

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """The settings of the evaluation; {} if they were not recorded."""
        recorded: Mapping[str, Any] = self.manifest.settings.get("evaluation", {})
        return recorded

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Quality metrics without the flip curves, the primary one first."""
        return tuple(dict.fromkeys((self.primary, *(r.metric for r in self.rows if r.metric not in FLIP_METRICS))))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Method names in listing order."""
        return tuple(dict.fromkeys(r.method for r in self.rows))

    @cached_property
    def titles(self) -> dict[str, str]:
        """Display name per method."""
        return {r.method: r.title for r in self.rows}

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The combinations of order and merge with which a method other than old, new and offline was run."""
        own = tuple(dict.fromkeys(r.variant for r in self.rows if not r.is_reference))
        return own or tuple(dict.fromkeys(r.variant for r in self.rows))[:1]

    @cached_property
    def orders(self) -> tuple[str, ...]:
        """The orders among the variants."""
        return tuple(dict.fromkeys(v.order for v in self.variants))

    @cached_property
    def merges(self) -> tuple[str, ...]:
        """The merges among the variants."""
        return tuple(dict.fromkeys(v.merge for v in self.variants))

    @property
    def several(self) -> tuple[str, ...]:
        """What distinguishes a method's rows: order, merge, both or nothing."""
        return tuple(word for word, names in (("order", self.orders), ("merge", self.merges)) if len(names) > 1)

    @cached_property
    def oracles(self) -> frozenset[str]:
        """The orders that use knowledge from after the upgrade."""
        return frozenset(r.order for r in self.rows if r.is_oracle)

    @cached_property
    def unlearned(self) -> frozenset[str]:
        """The fitted methods that are worse than rank merge without training on the validation part."""
        return frozenset(check.method for check in self.table_of("checks") if check.is_worse)

    @cached_property
    def label_free_orders(self) -> tuple[str, ...]:
        """The orders that could be deployed without labels of the gallery."""
        traits = self.manifest.traits.orders
        return tuple(o for o in self.orders if o not in self.oracles and not traits[o].needs_labels)

    @property
    def controls(self) -> frozenset[str]:
        """The methods that explain the results of others: never recommended."""
        from ray_backfill.learn.methods import CONTROLS

        return frozenset(name for name, of in self.manifest.traits.methods.items() if of.family == CONTROLS)

    @property
    def recalling(self) -> frozenset[str]:
        """The methods that embed items for every query, cascades, unless the run says that they may be recommended."""
        is_paid = self.evaluation.get("embed_per_query")
        return frozenset(n for n, of in self.manifest.traits.methods.items() if of.recalls and not is_paid)

    def name(self, row: Row) -> str:
        """Display name of a row's method; a double dagger marks those that did not learn here."""
        return f"{row.title} {DOUBLE_DAGGER}" if row.method in self.unlearned else row.title

    def order_name(self, order: str) -> str:
        """Display name of an order; oracle orders are marked with a dagger."""
        return f"{order} {DAGGER}" if order in self.oracles else order

    def label(self, variant: Variant) -> str:
        """Name a variant by what distinguishes it; by its order if there is only one variant."""
        names = {"order": f"{self.order_name(variant.order)} order", "merge": f"{variant.merge} merge"}
        return ", ".join(names[word] for word in self.several or ("order",))

    def group(self, row: Row) -> Variant | None:
        """The group of a row in a table; None for old, new and offline, and if there is only one variant."""
        return None if len(self.variants) == 1 or row.is_reference else row.variant

    def table(self, metric: str) -> list[Row]:
        """All rows of a metric: first old, new and offline, once each, then a group per variant."""
        rows = [r for r in self.rows if r.metric == metric]
        if len(self.variants) == 1:
            return self.panel(metric, self.variants[0])
        free = {r.method: r for r in reversed(rows) if r.is_reference}
        once = [free[m] for m in self.methods if m in free]
        place = {variant: index for index, variant in enumerate(self.variants)}
        return once + sorted((r for r in rows if not r.is_reference), key=lambda r: place[r.variant])

    def panel(self, metric: str, variant: Variant) -> list[Row]:
        """The rows to compare within one variant: its own rows, and old, new and offline from any variant."""
        of_method: dict[str, Row] = {}
        for row in (r for r in self.rows if r.metric == metric):
            if row.variant == variant or (row.is_reference and row.method not in of_method):
                of_method[row.method] = row
        return [of_method[m] for m in self.methods if m in of_method]

    def line(self, row: Row, metric: str | None = None) -> Line | None:
        """The curve of a summary row, or of the same row in another metric; None if there is none."""
        return self.lines.get((row.method, row.variant, metric or row.metric))

    def row(self, method: str, variant: Variant, metric: str) -> Row | None:
        """The row of this key; None if there is none."""
        return self._by_key.get((method, variant, metric))

    def reference(self, name: str, metric: str = "") -> Row | None:
        """The row of old, new or another reference, in the primary metric unless another is given; None without one."""
        rows = self.panel(metric or self.primary, self.best_variant)
        return next((row for row in rows if row.method == name), None)

    def digits(self, metric: str) -> int:
        """Decimal places of this metric in per cent: so many that its largest value has three digits."""
        values = (x for r in self.rows if r.metric == metric for x in (r.auc, r.start, r.end) if math.isfinite(x))
        largest = max(values, default=1.0)
        return 1 if largest >= 0.0995 else 2 if largest >= 0.00995 else 3

    def in_all_metrics(self, row: Row) -> list[Row]:
        """The rows of the same method, order and merge, one for each metric."""
        rows = (self.row(row.method, row.variant, metric) for metric in self.metrics)
        return [other for other in rows if other is not None]

    def difference(self, row: Row, other: Row, at_once: bool = False) -> Difference | None:
        """AUC of ``row`` minus AUC of ``other``; None if they were not compared.

        at_once: with limits that allow for the choice of ``row`` as the best of all rows compared with the other one.
        """
        variant = Variant(row.order, other.merge) if other.is_reference else other.variant
        differences = self.at_once if at_once else self.differences
        return differences.get(((row.method, row.variant), (other.method, variant), row.metric))

    def candidates(self, metric: str) -> list[Row]:
        """The rows that could be deployed during a backfill, the highest AUC first; cascades embed for every query."""
        excluded = self.unlearned | self.recalling | self.controls
        rows = [r for r in self.rows if r.metric == metric and not (r.is_end or r.is_bound or math.isnan(r.auc))]
        if not self.manifest.data.get("distances_compare", True):  # merged raw, what comes first is chance
            rows = [r for r in rows if r.merge != "raw" or not self.manifest.traits.methods[r.method].merges_models]
        return sorted((r for r in rows if r.method not in excluded), key=lambda r: r.auc, reverse=True)

    def best(self, metric: str | None = None) -> Row | None:
        """The candidate with the highest AUC, by the primary metric unless another is given."""
        return next(iter(self.candidates(metric or self.primary)), None)

    def best_cascade(self) -> Row | None:
        """The cascade with the highest AUC by the primary metric, in a deployable order; None without one."""
        rows = [r for r in self.rows if r.metric == self.primary and r.method in self.recalling - self.unlearned]
        return max((r for r in rows if not (r.is_bound or math.isnan(r.auc))), key=lambda r: r.auc, default=None)

    @cached_property
    def _by_key(self) -> dict[tuple[str, Variant, str], Row]:
        return {(r.method, r.variant, r.metric): r for r in reversed(self.rows)}

    @property
    def best_variant(self) -> Variant:
        """The variant of the best row; the first deployable one if the best row is a reference."""
        if (best := self.best()) is not None and not best.is_reference:
            return best.variant
        return next((v for v in self.variants if v.order not in self.oracles), self.variants[0])


def curves_of(table: pd.DataFrame, kind: type[LineT]) -> dict[tuple[str, Variant, str], LineT]:
    """(method, variant, metric) -> curve, from a table with a row for each of its points."""
    # Sort once and slice by position: handling hundreds of curves one by one takes minutes.
    ordered = table.sort_values("t", kind="stable")
    arrays = [ordered[name].to_numpy(dtype=np.float64) for name in kind._fields]
    lines = {}
    groups: dict[Any, Any] = ordered.groupby(["method", "order", "merge", "metric"], sort=False).indices
    for key, places in groups.items():
        method, order, merge, metric = (str(name) for name in key)
        lines[method, Variant(order, merge), metric] = kind(*(array[places] for array in arrays))
    return lines
