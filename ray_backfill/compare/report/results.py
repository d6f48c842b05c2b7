"""A results folder in memory: its rows and curves, and how they belong together. Computes nothing.

Functions that draw and print are imported where they are used: they need matplotlib and rich, and import this module.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import pandas as pd

from ray_backfill.compare.report.lines import Line as Line
from ray_backfill.compare.report.lines import Trace as Trace
from ray_backfill.compare.report.lines import Variant as Variant
from ray_backfill.compare.tables.checks import CheckRow
from ray_backfill.compare.tables.cutoffs import CutoffRow
from ray_backfill.compare.tables.queries import ShownQuery
from ray_backfill.compare.tables.results import FLIP_METRICS, NEW, OLD, CostRow, CurvePoint, Manifest, SummaryRow
from ray_backfill.compare.tables.slices import SliceRow
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.schema import block, frame
from ray_backfill.learn.methods import CONTROLS
from ray_backfill.page import Difference, Differences, html_table

if TYPE_CHECKING:
    from ray_backfill.page.drawing import Figure

T = TypeVar("T")
DAGGER, DOUBLE_DAGGER = "\u2020", "\u2021"
FigureName = Literal["curves", "gain", "orders", "flips", "subgroups"]


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
Pair = tuple[tuple[str, Variant], tuple[str, Variant], str]


@dataclass(frozen=True, repr=False)
class Results:
    """What ``simulate`` returns and ``read_results`` reads; shows itself as a table in a notebook.

    Attributes:
        rows: The lines of the summary.
        lines: (method, variant, metric) -> curve.
        differences: The two rows and a metric -> difference of their AUCs with its interval.
        groups: (method, variant, metric) -> curve of each group of the first slice, and of the gap; {} without slices.
        moments: (method, variant, metric) -> curve at all moments at which it was judged, without intervals.
        manifest: Settings, versions, sizes, and what was left out and why.
        costs: The cost of each method; () if costs were not counted.
        checks: Each fitted method on the validation part, against rank merge without training; () if not checked.
        slices: What each method does to each group of queries; () without slices.
        shown: The queries that lose and gain most with the leading method; () if there are none.
        cutoffs: What becomes of score cut-offs; () if none was given.
    """

    rows: tuple[Row, ...]
    lines: dict[tuple[str, Variant, str], Line]
    differences: dict[Pair, Difference]
    groups: dict[tuple[str, Variant, str], dict[str, Line]]
    moments: dict[tuple[str, Variant, str], Trace]
    manifest: Manifest
    costs: tuple[CostRow, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    slices: tuple[SliceRow, ...] = ()
    shown: tuple[ShownQuery, ...] = ()
    cutoffs: tuple[CutoffRow, ...] = ()

    @property
    def primary(self) -> str:
        """The metric that methods are ranked by."""
        return self.manifest.primary_metric

    @property
    def verdict(self) -> str:
        """One sentence: the method with the best AUC of the primary metric, and how good the backfill is with it."""
        from ray_backfill.compare.report.verdict import verdict

        return verdict(self)

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each method, order, merge and metric: AUC, gain, start, end and more, as shares (0.6 = 60 %)."""
        return frame(SummaryRow, self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """The curves as a tidy table: method, order, merge, metric, t, value, low, high; shares."""
        tables = [
            block(CurvePoint, method, *variant, metric, *line) for (method, variant, metric), line in self.lines.items()
        ]
        return pd.concat(tables, ignore_index=True)

    def show(self) -> None:
        """Print the table that the command prints: one row for each method, the verdict, the meaning of columns."""
        from ray_backfill.compare.report.terminal import draw_table

        draw_table(self)

    def plot(self, kind: FigureName = "curves") -> "Figure":
        """Draw a figure of the report. Needs matplotlib.

        Args:
            kind: "curves": quality at every moment, with 95 % bootstrap intervals. "gain": share of the upgrade's gain
                by method. "orders": the best method in each order and merge. "flips": queries that turn wrong or right
                on the way. "subgroups": the best method by subgroup of queries.

        Returns:
            The figure. A notebook shows it; ``figure.savefig("curves.png")`` writes it to a file.

        Raises:
            InputError: Unknown kind, or these results have nothing that it could show.
        """
        from ray_backfill.compare.report import figures

        if kind not in figures.FIGURES:
            raise unknown_name("figure", kind, figures.FIGURES)
        figure = figures.FIGURES[kind](self)
        if figure is None:
            lacking = "one order and merge, or no subgroups"
            raise InputError(f"these results have nothing for the figure {kind!r}: {lacking}")
        return figure

    def compare(
        self, method: str = "", *others: str, metric: str = "", order: str = "", merge: str = ""
    ) -> Differences:
        """How much higher the AUC of a method is than that of others, with paired 95 % bootstrap intervals.

        Args:
            method: Name of the method; by default the best one.
            *others: Names of the methods to compare it with; by default all that it was compared with, and the method
                itself in other orders and merges.
            metric: The metric; by default the primary one.
            order: Backfill order of the method; by default the one in which it is best.
            merge: Merge of the method; by default the one with which it is best.

        Returns:
            One row for each comparison, the closest first.

        Raises:
            InputError: Unknown names, or no other row was compared with this one.
        """
        from ray_backfill.compare.report.comparing import compare

        return compare(self, method, others, metric or self.primary, order, merge)

    def crossings(self, method: str = "", *, metric: str = "", order: str = "", merge: str = "") -> pd.DataFrame:
        """Where other methods serve better than a method, judged at all moments (``moments.parquet``).

        Args:
            method: Name of the method; by default the best one.
            metric: The metric; by default the primary one.
            order: Backfill order of both methods; by default the one in which the method is best.
            merge: Merge of both methods; by default the one with which the method is best.

        Returns:
            One row for each stretch of the backfill, the largest lead first: ``method`` (the other one), ``order``,
            ``merge``, ``start`` and ``end`` (progress), ``lead`` (its largest lead, a share). No row: none is better.

        Raises:
            InputError: Unknown names.
        """
        from ray_backfill.compare.report.crossings import crossing_frame

        return crossing_frame(self, method, metric or self.primary, order, merge)

    def only(self, *methods: str) -> "Results":
        """These results with some of the methods, and with old and new; in their tables and figures, too.

        Raises:
            InputError: Unknown names.
        """
        from ray_backfill.compare.report.selection import only

        return only(self, methods)

    def __repr__(self) -> str:
        counts = {"methods": self.methods, "orders": self.orders, "merges": self.merges, "metrics": self.metrics}
        sizes = [f"{len(names)} {word if len(names) > 1 else word[:-1]}" for word, names in counts.items()]
        return f"Results: {', '.join(sizes)}\n{self.verdict}"

    def _repr_html_(self) -> str:
        from ray_backfill.compare.report.terminal import overview, table_title

        return html_table(table_title(self), overview(self), [self.verdict])

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Quality metrics without the flip curves, the primary one first."""
        return _unique((self.primary, *(r.metric for r in self.rows if r.metric not in FLIP_METRICS)))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Method names in listing order."""
        return _unique(r.method for r in self.rows)

    @cached_property
    def titles(self) -> dict[str, str]:
        """Display name per method."""
        return {r.method: r.title for r in self.rows}

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The combinations of order and merge with which a method other than old, new and offline was run."""
        own = _unique(r.variant for r in self.rows if not r.is_reference)
        return own or _unique(r.variant for r in self.rows)[:1]

    @cached_property
    def orders(self) -> tuple[str, ...]:
        """The orders among the variants."""
        return _unique(v.order for v in self.variants)

    @cached_property
    def merges(self) -> tuple[str, ...]:
        """The merges among the variants."""
        return _unique(v.merge for v in self.variants)

    @cached_property
    def oracles(self) -> frozenset[str]:
        """The orders that use knowledge from after the upgrade."""
        return frozenset(r.order for r in self.rows if r.is_oracle)

    @cached_property
    def unlearned(self) -> frozenset[str]:
        """The fitted methods that are worse than rank merge without training on the validation part."""
        return frozenset(check.method for check in self.checks if check.is_worse)

    def name(self, row: Row) -> str:
        """Display name of a row's method; a double dagger marks those that did not learn here."""
        return f"{row.title} {DOUBLE_DAGGER}" if row.method in self.unlearned else row.title

    @cached_property
    def label_free_orders(self) -> tuple[str, ...]:
        """The orders that could be deployed without labels of the gallery."""
        traits = self.manifest.traits.orders
        return tuple(o for o in self.orders if o not in self.oracles and not traits[o].needs_labels)

    def order_name(self, order: str) -> str:
        """Display name of an order; oracle orders are marked with a dagger."""
        return f"{order} {DAGGER}" if order in self.oracles else order

    def label(self, variant: Variant) -> str:
        """Name a variant by what distinguishes it; by its order if there is only one variant."""
        order = f"{self.order_name(variant.order)} order"
        parts = [order] if len(self.orders) > 1 else []
        parts += [f"{variant.merge} merge"] if len(self.merges) > 1 else []
        return ", ".join(parts) or order

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
        found: dict[str, Row] = {}
        for row in (r for r in self.rows if r.metric == metric):
            if row.variant == variant or (row.is_reference and row.method not in found):
                found[row.method] = row
        return [found[m] for m in self.methods if m in found]

    def line(self, row: Row, metric: str | None = None) -> Line | None:
        """The curve of a summary row, or of the same row in another metric; None if there is none."""
        return self.lines.get((row.method, row.variant, metric or row.metric))

    def row(self, method: str, variant: Variant, metric: str) -> Row | None:
        """The row of this key; None if there is none."""
        return next((r for r in self.rows if (r.method, r.variant, r.metric) == (method, variant, metric)), None)

    def difference(self, row: Row, other: Row) -> Difference | None:
        """AUC of ``row`` minus AUC of ``other``; None if they were not compared."""
        variant = Variant(row.order, other.merge) if other.is_reference else other.variant
        return self.differences.get(((row.method, row.variant), (other.method, variant), row.metric))

    def candidates(self, metric: str) -> list[Row]:
        """The rows that could be deployed during a backfill, the highest AUC first; cascades embed for every query."""
        from ray_backfill.compare.report.selection import candidates

        return candidates(self, metric)

    @property
    def controls(self) -> frozenset[str]:
        """The methods that explain the results of others: never recommended."""
        return frozenset(name for name, of in self.manifest.traits.methods.items() if of.family == CONTROLS)

    @property
    def recalling(self) -> frozenset[str]:
        """The methods that embed items for every query, cascades, unless the run says that they may be recommended."""
        is_paid = self.manifest.settings.get("evaluation", {}).get("embed_per_query")
        return frozenset(n for n, of in self.manifest.traits.methods.items() if of.recalls and not is_paid)

    def best_cascade(self) -> Row | None:
        """The cascade with the highest AUC by the primary metric, in an order that can be had; None without one."""
        rows = [r for r in self.rows if r.metric == self.primary and r.method in self.recalling - self.unlearned]
        return max((r for r in rows if not (r.is_bound or math.isnan(r.auc))), key=lambda r: r.auc, default=None)

    def best(self, metric: str | None = None) -> Row | None:
        """The candidate with the highest AUC, by the primary metric unless another is given."""
        return next(iter(self.candidates(metric or self.primary)), None)

    @property
    def best_variant(self) -> Variant:
        """The variant of the best row; the first deployable one if the best row is a reference."""
        if (best := self.best()) is not None and not best.is_reference:
            return best.variant
        return next((v for v in self.variants if v.order not in self.oracles), self.variants[0])


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
