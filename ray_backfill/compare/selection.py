"""What a report shows, and in which words: rows, variants and stretches of the backfill; names, notes and terms.

If there are too many rows to read, each method is shown once. Also: each method's best order without labels, and the
moments at which another method is better than the best one. Computes no figure of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ray_backfill.compare.results import DAGGER, DOUBLE_DAGGER, ResultsData, Row, Variant
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.errors import InputError
from ray_backfill.page import Difference
from ray_backfill.page.numbers import NOTHING

MANY_ROWS = 25  # a table with more rows shows each method once
MAX_LINES = 8  # lines, besides old, new and offline, that stay distinguishable in one panel
RANDOM = "random"

# Rows that another one was compared with, and its lead over each.
Leads = list[tuple[Row, Difference]]


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
    methods = [r for r in rows if not r.is_reference]
    drawn = [r for r in drawn_rows(rows) if not r.is_reference]
    if len(drawn) == len(methods):
        return []
    extra = [f"and {r.title}, the baseline" for r in drawn if r.is_baseline][: len(drawn) - MAX_LINES]
    return [f"the {MAX_LINES} best of {len(methods)} methods", *extra]


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


def rivals(results: ResultsData, best: Row) -> Leads:
    """All rows that the best one was compared with, the closest first.

    Intervals exist for rows that differ in one respect: each other method in the order and merge of the best row, and
    the best method itself in its other orders (same merge) and merges (same order). They allow for the choice of the
    best row, and hold for any other row as well.
    """
    others = [row for row in results.table(best.metric) if row != best and (best.is_bound or not row.is_bound)]
    leads = [(row, lead) for row in others if (lead := results.difference(best, row, at_once=True)) is not None]
    return sorted(leads, key=lambda pair: pair[1].value)


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
        raise InputError(f"these results have no row for {', '.join(filter(None, wanted))}; known: {known}")
    return max(rows, key=_rank)


def crossings(results: ResultsData, best: Row) -> list[Crossing]:
    """The stretches where a method leads by more than the margin, in the order and merge of ``best``, largest first."""
    mine = results.moments[best.method, best.variant, best.metric]
    stretches = []
    for row in results.panel(best.metric, best.variant):
        if row == best or row.is_reference:
            continue
        lead = results.moments[row.method, row.variant, row.metric].value - mine.value
        ahead = np.flatnonzero(lead > results.manifest.margin)
        for stretch in np.split(ahead, np.flatnonzero(np.diff(ahead) > 1) + 1) if len(ahead) else ():
            start, end = mine.t[stretch[[0, -1]]]
            stretches.append(Crossing(row, float(start), float(end), float(lead[stretch].max())))
    return sorted(stretches, key=lambda crossing: crossing.lead, reverse=True)


def best_orders(results: ResultsData) -> list[BestOrder]:
    """For each method at the first merge, the best method first; [] without a random order to compare with.

    Orders that are oracles or need labels of the gallery do not take part.
    """
    orders, merge, metric = results.label_free_orders, results.merges[0], results.primary
    if RANDOM not in orders or len(orders) < 2:
        return []
    best_of_methods = []
    for method in (row.method for row in best_per_method(results, metric) if not row.is_reference):
        rows = [results.row(method, Variant(order, merge), metric) for order in orders]
        run = [row for row in rows if row is not None and math.isfinite(row.auc)]
        random = next((row for row in run if row.order == RANDOM), None)
        if random is not None and len(run) > 1:
            best = max(run, key=lambda row: row.auc)
            lead = None if best is random else results.difference(best, random)
            best_of_methods.append(BestOrder(best, random, lead))
    return best_of_methods


def _rank(row: Row) -> tuple[bool, float]:
    return not row.is_bound, _auc(row)


def _auc(row: Row) -> float:
    return -math.inf if math.isnan(row.auc) else row.auc


GAIN_IN_WORDS = (
    "The average is that over the whole backfill. Gain is the share of the finished upgrade's benefit that users get "
    "on average while the backfill runs: 0 % = the quality of the old service throughout, 100 % = the quality of the "
    "new model from the start, both as they are served, without a merge. Above 100 %, or with a head rho that is "
    "trained with labels, part of it is the method's own training, or its merge, which a finished upgrade could have "
    "as well."
)
# What stands in place of the gain if the new model's own results were taken as right.
RETENTION_IN_WORDS = (
    "What the new model finds was taken as right, so there is no gain: old = what the old service finds of it, "
    "new = 100 %."
)
RETENTION_WARNING = (
    "Provisional: what the finished upgrade finds was taken as right. The figures say how much of {} users get, and "
    "not whether the new model is better than the old one. Where right answers were known, such figures were up to 43 "
    "points away from the true quality relative to the new model’s, new-top1 by recall@10 4 to 29, mostly too low. "
    "The methods were ranked differently, too: Kendall’s tau between both rankings was −0.4 to 0.9 "
    "(docs/results/retention.md)."
)

ORACLE_NOTE = f"{DAGGER} An upper bound: this order uses knowledge that exists only after the upgrade."
UNLEARNED_NOTE = (
    f"{DOUBLE_DAGGER} Did not learn here: worse than rank merge without training (rm_naive) in each merge, on "
    "validation items, which its fit did not see, and not better on the queries. It is never recommended."
)
FEW = 6  # names that a sentence can list

# docs/glossary.md has the same terms with their papers.
GLOSSARY = {
    "Gallery, query": "The gallery is the set of items that the service searches; a query is what users search for.",
    "Backfill": "Re-embedding every gallery item with the new model, here online, that is, while queries are served. "
    "Progress t is the share of the gallery that is backfilled, from 0 to 1.",
    "{query, gallery}": "A retrieval system, written as the model that embeds the query and the model that embedded "
    "the gallery. {old, old} is the service before the upgrade, {new, new} the finished upgrade.",
    "Cross-model query": "A query embedded by one model that searches gallery embeddings of another, such as "
    "{new, old}. It needs compatible models, or a learned map between them.",
    "Backward-compatible": "A new model whose queries can search the old gallery as it is: {new, old} is better than "
    "{old, old}.",
    "Forward-compatible": "Old embeddings that a map h can transform into the new model's space, so that new queries "
    "search {new, h(old)} without waiting for the backfill.",
    "M_t": "The quality metric at progress t. Backfilled items are searched by the forward system, all others by the "
    "backward system, and the two result lists are merged by distance. M_0 is the start, M_1 the end of the backfill.",
    "Average (AUC)": "The area under M_t for t from 0 to 1, by the trapezoid rule: what users get during the backfill.",
    "Gain": "(average of the method \u2212 that of old) / (average of new \u2212 that of old). It can exceed 100 %. It "
    "has no value if new is not clearly better than old.",
    "95 % interval": "What 95 % of repetitions with other queries of the same kind would give, estimated by a "
    "bootstrap over the queries.",
    "Margin": "The largest loss that counts as none, in points. It decides marks, milestones and crossings.",
    "As old, half gain, as new from": "Milestones: the share of the backfill from which on quality stays as good as "
    "the old service, has half of the upgrade's improvement, or is as good as the new model alone.",
    "Largest fall": "The largest drop of M_t from any moment to any later one, at 101 moments or more.",
    "Order": "The sequence in which gallery items are backfilled. An oracle order uses knowledge that is not available "
    "in advance: it is an upper bound, never a recommendation.",
    "Merge": "Combines the results of the backward and the forward system into one ranking (rank merge). Raw compares "
    "the distances as they are; every other merge first makes the two systems comparable.",
    "Negative flip": "A query whose first result was right before and is wrong at progress t: an error that users "
    "notice. A positive flip is the reverse. \u201cBefore\u201d is the same method at t = 0, or {old, old}.",
}


def is_retention(results: ResultsData) -> bool:
    """Whether what the new model finds was taken as right, so that nothing is known of its quality."""
    return bool(results.manifest.data.get("truth", {}).get("is_retention"))


def judgement(results: ResultsData) -> Mapping[str, Any] | None:
    """What judged queries say of both models, see ``data.judging.read_sheet``; None without judgements."""
    judged: Mapping[str, Any] | None = results.manifest.data.get("truth", {}).get("judged")
    return judged


def judged_side(results: ResultsData) -> int | None:
    """1 if judged queries show that the new model is better, -1 if worse, 0 if neither; None without judgements."""
    judged = judgement(results)
    return None if judged is None else Difference(judged["difference"], judged["low"], judged["high"]).side


def retained(results: ResultsData) -> str:
    """What is retained, in words: "the new model's first result"."""
    k = results.manifest.data.get("truth", {}).get("k", 1)
    return "the new model\u2019s first result" if k == 1 else f"the new model\u2019s first {k} results"


def service_in_words(results: ResultsData) -> str:
    """The stages of the service that was replayed, with the last part of paths; "" without one."""
    service = results.evaluation.get("service")
    if not service:
        return ""
    hybrid, rerank, told = service["hybrid"], service["rerank"], [f"{service['retrieve']:,} results of each partition"]
    if hybrid:
        merge = " without a merge" * (hybrid["lists"] == "separate")
        told.append(f"fusion with {PurePath(hybrid['list']).name} by {hybrid['fusion']}{merge}")
    if rerank:
        told.append(f"the first {rerank['top']:,} re-ranked by {PurePath(rerank['scores'] or rerank['model']).name}")
    return ", ".join(told)


def metric_title(results: ResultsData, metric: str) -> str:
    """A metric in titles, with what it means if the new model's own results were taken as right."""
    return f"Retention of {retained(results)}, {metric}" if is_retention(results) else metric


def explained(results: ResultsData) -> str:
    """What gain, or retention, means."""
    return RETENTION_IN_WORDS if is_retention(results) else GAIN_IN_WORDS


def columns_in_words(results: ResultsData) -> str:
    """What the columns of the overview mean."""
    gain = (
        "gain: the share of the upgrade's improvement that users get on average (\u2013 = new is not clearly better "
        "than old)."
    )
    return (
        f"{RETENTION_IN_WORDS if is_retention(results) else gain} \u2713: start no worse than old, end no worse than "
        "new, no fall, by all metrics; ?: undecided; at most, \u2264: by the 95 % interval. lost: the most queries "
        "that lose a right first result."
    )


def choice(results: ResultsData) -> str:
    """What distinguishes a method's rows: "order and merge", "order", "merge", or nothing."""
    return " and ".join(results.several)


def variant_cells(results: ResultsData, row: Row) -> dict[str, str]:
    """The cells of a table that tell a row's order and merge, where there are several."""
    names = {"order": results.order_name(row.order), "merge": row.merge}
    return {word: NOTHING if row.is_reference else names[word] for word in results.several}


def size(results: ResultsData) -> str:
    """The size of the comparison: "43 methods, 11 orders, 6 merges"; only counts above 1."""
    counts = {"methods": len(own_methods(results)), "orders": len(results.orders), "merges": len(results.merges)}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count > 1)


def left_out(results: ResultsData) -> dict[str, list[str]]:
    """Reason -> the methods, orders and merges that were left out for it."""
    by_reason: dict[str, list[str]] = {}
    for missing in results.manifest.left_out:
        by_reason.setdefault(missing.reason, []).append(missing.words)
    return by_reason


def glossary(results: ResultsData) -> dict[str, str]:
    """Term -> definition: the general terms, and those of this run's metrics, merges, methods and orders."""
    traits, terms = results.manifest.traits, GLOSSARY | of_metrics(results.metrics)
    glossaries = [traits.merges[name].glossary for name in results.merges]
    glossaries += [traits.methods[name].glossary for name in results.methods]
    glossaries += [traits.orders[name].glossary for name in results.orders]
    for glossary in glossaries:
        terms |= glossary
    return terms


def of_metrics(names: Iterable[str]) -> dict[str, str]:
    """Names of these metrics, as the user and as this package writes them -> definition."""
    from ray_backfill.engine.metrics import KINDS, parse_metric

    metrics, terms = [parse_metric(name) for name in names], dict[str, str]()
    for kind in KINDS:
        if of_kind := [metric for metric in metrics if metric.kind == kind.name]:
            written = [metric.name for metric in of_kind if metric.name != metric.own_name]
            terms[", ".join((*written, *kind.forms))] = kind.meaning
    return terms
