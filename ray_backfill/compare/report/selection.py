"""Selects the rows and lines to show if there are too many to read. Computes nothing."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.tables.results import NEW, OLD
from ray_backfill.core.errors import InputError
from ray_backfill.page import Difference

MANY_ROWS = 25  # a table with more rows shows each method once
MAX_LINES = 8  # lines, besides old, new and offline, that stay distinguishable in one panel

Compared = list[tuple[Row, Difference]]


def is_large(results: Results) -> bool:
    """Whether a table of all rows is too long to read."""
    return len(results.table(results.primary)) > MANY_ROWS


def own_methods(results: Results) -> tuple[str, ...]:
    """All methods except old, new and offline."""
    return tuple(dict.fromkeys(r.method for r in results.rows if not r.is_reference))


def candidates(results: Results, metric: str) -> list[Row]:
    """See ``Results.candidates``."""
    excluded = results.unlearned | results.recalling | results.controls
    rows = [r for r in results.rows if r.metric == metric and not (r.is_end or r.is_bound or math.isnan(r.auc))]
    if not results.manifest.data.get("distances_compare", True):  # merged raw, what comes first is chance
        rows = [r for r in rows if r.merge != "raw" or not results.manifest.traits.methods[r.method].merges_models]
    return sorted((r for r in rows if r.method not in excluded), key=lambda r: r.auc, reverse=True)


def best_per_method(results: Results, metric: str) -> list[Row]:
    """old, new and offline, then each other method in its variant with the highest AUC, the best method first.

    An oracle order is chosen only if a method has no other; such methods come last.
    """
    rows = results.table(metric)
    best: dict[str, Row] = {}
    for row in (r for r in rows if not r.is_reference):
        if row.method not in best or _rank(row) > _rank(best[row.method]):
            best[row.method] = row
    return [r for r in rows if r.is_reference] + sorted(best.values(), key=_rank, reverse=True)


def shown_rows(results: Results, metric: str) -> list[Row]:
    """All rows of a metric if they are few, otherwise each method once."""
    return best_per_method(results, metric) if is_large(results) else results.table(metric)


def drawn_rows(rows: Sequence[Row]) -> list[Row]:
    """old, new and offline, the others with the highest AUC, and the baseline; in the given order."""
    ranked = sorted((r for r in rows if not r.is_reference), key=_rank, reverse=True)
    kept = {r.method for r in ranked[:MAX_LINES]}
    return [r for r in rows if r.method in kept or r.is_baseline or r.is_reference]


def drawn_in_words(rows: Sequence[Row]) -> list[str]:
    """Describes ``drawn_rows`` in a figure: "the 8 best of 43 methods"; empty if all of them are drawn."""
    own = [r for r in rows if not r.is_reference]
    drawn = [r for r in drawn_rows(rows) if not r.is_reference]
    if len(drawn) == len(own):
        return []
    extra = [f"and {r.title}, the baseline" for r in drawn if r.is_baseline][: len(drawn) - MAX_LINES]
    return [f"the {MAX_LINES} best of {len(own)} methods", *extra]


def compared_variants(results: Results, method: str) -> list[Row]:
    """A method's best rows in the primary metric, the highest AUC first.

    If some are left out, one oracle order stays to show how far the upper bound is above the others.
    """
    rows = [r for r in results.rows if r.metric == results.primary and r.method == method]
    rows.sort(key=_auc, reverse=True)
    if len(rows) <= MAX_LINES:
        return rows
    bounds = [r for r in rows if r.is_bound][:1]
    kept = [r for r in rows if not r.is_bound][: MAX_LINES - len(bounds)] + bounds
    return sorted(kept, key=_auc, reverse=True)


def rivals(results: Results, best: Row) -> Compared:
    """All rows that the best one was compared with, the closest first.

    Intervals exist for rows that differ in one respect: each other method in the order and merge of the best row, and
    the best method itself in its other orders (same merge) and merges (same order).
    """
    others = [row for row in results.table(best.metric) if row != best and (best.is_bound or not row.is_bound)]
    compared = [(row, found) for row in others if (found := results.difference(best, row)) is not None]
    return sorted(compared, key=lambda pair: pair[1].value)


def find_row(results: Results, method: str, metric: str, order: str = "", merge: str = "") -> Row:
    """The row of a method in the order and merge with its highest AUC; of the best method where none is named.

    order, merge: look at rows of this order or merge only.

    Raises:
        InputError: no such row.
    """
    rows = [r for r in results.rows if r.metric == metric and order in ("", r.order) and merge in ("", r.merge)]
    excluded = {OLD, NEW, *results.unlearned, *results.controls}
    rows = [r for r in rows if (r.method == method if method else not (r.is_bound or r.method in excluded))]
    if not rows:
        wanted = [method, metric, *(f"{name} {word}" for name, word in ((order, "order"), (merge, "merge")) if name)]
        known = ", ".join((*results.methods, *results.metrics, *results.orders, *results.merges))
        raise InputError(f"these results have no row for {', '.join(each for each in wanted if each)}; known: {known}")
    return max(rows, key=_rank)


def only(results: Results, methods: Sequence[str]) -> Results:
    """Some of the methods, and old and new; see ``Results.only``."""
    if unknown := [name for name in methods if name not in results.methods]:
        raise InputError(f"these results have no method {unknown[0]}; known: {', '.join(results.methods)}")
    kept = {*methods, OLD, NEW}
    return replace(
        results,
        rows=tuple(row for row in results.rows if row.method in kept),
        lines={key: line for key, line in results.lines.items() if key[0] in kept},
        moments={key: trace for key, trace in results.moments.items() if key[0] in kept},
        groups={key: lines for key, lines in results.groups.items() if key[0] in kept},
        shown=tuple(row for row in results.shown if row.method in kept),
        slices=tuple(row for row in results.slices if row.method in kept),
        costs=tuple(cost for cost in results.costs if cost.method in kept),
        cutoffs=tuple(row for row in results.cutoffs if row.method in kept),
    )


def _rank(row: Row) -> tuple[bool, float]:
    return not row.is_bound, _auc(row)


def _auc(row: Row) -> float:
    return -math.inf if math.isnan(row.auc) else row.auc
