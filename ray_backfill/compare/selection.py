"""Which rows, variants and stretches of the backfill a report shows. Computes no figure of its own.

If there are too many rows to read, each method is shown once. Also: each method's best order without labels, and the
moments at which another method is better than the best one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.errors import InputError
from ray_backfill.page import Difference

MANY_ROWS = 25  # a table with more rows shows each method once
MAX_LINES = 8  # lines, besides old, new and offline, that stay distinguishable in one panel
RANDOM = "random"

Compared = list[tuple[Row, Difference]]


class Crossing(NamedTuple):
    """A stretch of the backfill on which another method serves better.

    start, end: progress. lead: its largest lead, a share.
    """

    row: Row
    start: float
    end: float
    lead: float


class BestOrder(NamedTuple):
    """A method in its best order. lead: its AUC minus that of the random order; None if the random order is the best.

    random: the method in random order.
    """

    row: Row
    random: Row
    lead: Difference | None


def is_large(results: ResultsData) -> bool:
    """Whether a table of all rows is too long to read."""
    return len(results.table(results.primary)) > MANY_ROWS


def own_methods(results: ResultsData) -> tuple[str, ...]:
    """All methods except old, new and offline."""
    return tuple(dict.fromkeys(r.method for r in results.rows if not r.is_reference))


def best_per_method(results: ResultsData, metric: str) -> list[Row]:
    """old, new and offline, then each other method in its variant with the highest AUC, the best method first.

    An oracle order is chosen only if a method has no other; such methods come last.
    """
    rows = results.table(metric)
    best: dict[str, Row] = {}
    for row in (r for r in rows if not r.is_reference):
        if row.method not in best or _rank(row) > _rank(best[row.method]):
            best[row.method] = row
    return [r for r in rows if r.is_reference] + sorted(best.values(), key=_rank, reverse=True)


def shown_rows(results: ResultsData, metric: str) -> list[Row]:
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


def compared_variants(results: ResultsData, method: str) -> list[Row]:
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


def rivals(results: ResultsData, best: Row) -> Compared:
    """All rows that the best one was compared with, the closest first.

    Intervals exist for rows that differ in one respect: each other method in the order and merge of the best row, and
    the best method itself in its other orders (same merge) and merges (same order).
    """
    others = [row for row in results.table(best.metric) if row != best and (best.is_bound or not row.is_bound)]
    compared = [(row, found) for row in others if (found := results.difference(best, row)) is not None]
    return sorted(compared, key=lambda pair: pair[1].value)


def find_row(results: ResultsData, method: str, metric: str, order: str = "", merge: str = "") -> Row:
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


def crossings(results: ResultsData, best: Row) -> list[Crossing]:
    """The stretches where a method leads by more than the margin, in the order and merge of ``best``, largest first."""
    mine = results.moments[best.method, best.variant, best.metric]
    found = []
    for row in results.panel(best.metric, best.variant):
        if row == best or row.is_reference:
            continue
        lead = results.moments[row.method, row.variant, row.metric].value - mine.value
        ahead = np.flatnonzero(lead > results.manifest.margin)
        for stretch in np.split(ahead, np.flatnonzero(np.diff(ahead) > 1) + 1) if len(ahead) else ():
            start, end = mine.t[stretch[[0, -1]]]
            found.append(Crossing(row, float(start), float(end), float(lead[stretch].max())))
    return sorted(found, key=lambda each: each.lead, reverse=True)


def best_orders(results: ResultsData) -> list[BestOrder]:
    """For each method at the first merge, the best method first; [] without a random order to compare with.

    Orders that are oracles or need labels of the gallery do not take part.
    """
    orders, merge, metric = results.label_free_orders, results.merges[0], results.primary
    if RANDOM not in orders or len(orders) < 2:
        return []
    found = []
    for method in (row.method for row in best_per_method(results, metric) if not row.is_reference):
        rows = [results.row(method, Variant(order, merge), metric) for order in orders]
        run = [row for row in rows if row is not None and math.isfinite(row.auc)]
        random = next((row for row in run if row.order == RANDOM), None)
        if random is not None and len(run) > 1:
            best = max(run, key=lambda row: row.auc)
            found.append(BestOrder(best, random, None if best is random else results.difference(best, random)))
    return found


def _rank(row: Row) -> tuple[bool, float]:
    return not row.is_bound, _auc(row)


def _auc(row: Row) -> float:
    return -math.inf if math.isnan(row.auc) else row.auc
