"""Numbers and verdicts in plain words, for both the terminal and the HTML page."""

import math

from ray_backfill.display import Difference
from ray_backfill.report.results import DAGGER, Results, Row
from ray_backfill.report.selection import best_per_method, is_large, own_methods
from ray_backfill.tables.results import NEW, OLD

MINUS = "\u2212"
NOTHING = "\u2013"

GAIN_IN_WORDS = (
    "AUC is the average quality over the whole backfill. Gain is the share of the finished upgrade's benefit that "
    "users get on average while the backfill runs: 0 % = the quality of the old service throughout, 100 % = the "
    "quality of the new model from the start."
)
COLUMNS_IN_WORDS = (
    "gain: the share of the upgrade's benefit that users get on average while the backfill runs (0 % = the old "
    "service throughout, 100 % = the new model from the start). \u2713 M_0: starts no worse than old. "
    "\u2713 M_1: ends no worse than new. falls: the largest drop between two moments. "
    "neg. flips: the largest share of queries that are right at the start and wrong later."
)

ORACLE_NOTE = f"{DAGGER} An upper bound: this order uses knowledge that exists only after the upgrade."
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
    "AUC": "The area under M_t for t from 0 to 1, by the trapezoid rule: the average quality during the backfill. "
    "AUC (mean) is the plain mean of the points, which some papers report instead.",
    "Gain": "(AUC of the method \u2212 AUC of old) / (AUC of new \u2212 AUC of old). It can exceed 100 %.",
    "Order": "The sequence in which gallery items are backfilled. An oracle order uses knowledge that is not available "
    "in advance: it is an upper bound, never a recommendation.",
    "Merge": "Combines the results of the backward and the forward system into one ranking (rank merge). Raw compares "
    "the distances as they are; every other merge first makes the two systems comparable.",
    "Negative flip": "A query whose first result was right before and is wrong at progress t: an error that users "
    "notice. A positive flip is the reverse. \u201cBefore\u201d is the same method at t = 0, or {old, old}.",
    "mAP": "Mean average precision: for each query, the precision (share of right items) at the rank of every right "
    "item, averaged; then the mean over queries. mAP@k counts the first k results only.",
    "CMC@k": "The share of queries with at least one right item among the first k results.",
}


def percent(share: float, digits: int = 1) -> str:
    """A share as per cent without the sign, 0.605 -> "60.5"; an en dash if it is undefined."""
    if not math.isfinite(share):
        return NOTHING
    text = f"{100 * share:.{digits}f}"
    if float(text) == 0:
        return text.removeprefix("-")
    return text.replace("-", MINUS)


def percent_sign(share: float, digits: int = 1) -> str:
    """Like percent, with the sign: "60.5 %"; an en dash if it is undefined."""
    return f"{percent(share, digits)} %" if math.isfinite(share) else NOTHING


def amount(number: float) -> str:
    """A count with a unit prefix: 0, 132.9 k, 1.8 G; an en dash if it is unknown."""
    if not math.isfinite(number):
        return NOTHING
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:g}"


def glossary(results: Results) -> dict[str, str]:
    """Term -> definition: the general terms, and those of this run's merges, methods and orders."""
    traits, found = results.manifest.traits, dict(GLOSSARY)
    for of_kind, names in (
        (traits.merges, results.merges),
        (traits.methods, results.methods),
        (traits.orders, results.orders),
    ):
        for name in names:
            found |= of_kind[name].glossary
    return found


def choice(results: Results) -> str:
    """What distinguishes a method's rows: "order and merge", "order", "merge", or nothing."""
    several = [("order", results.orders), ("merge", results.merges)]
    return " and ".join(word for word, names in several if len(names) > 1)


def variant_cells(results: Results, row: Row) -> dict[str, str]:
    """The cells of a table that tell a row's order and merge, where there are several."""
    several = {"order": results.orders, "merge": results.merges}
    names = {"order": results.order_name(row.order), "merge": row.merge}
    return {word: NOTHING if row.is_reference else names[word] for word, known in several.items() if len(known) > 1}


def size(results: Results) -> str:
    """The size of the comparison: "43 methods, 11 orders, 6 merges"; only counts above 1."""
    counts = {"methods": len(own_methods(results)), "orders": len(results.orders), "merges": len(results.merges)}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count > 1)


def left_out(results: Results) -> dict[str, list[str]]:
    """Reason -> the methods, orders and merges that were left out for it."""
    by_reason: dict[str, list[str]] = {}
    for each in results.manifest.left_out:
        by_reason.setdefault(each.reason, []).append(each.words)
    return by_reason


def tick(flag: bool | None) -> str:
    """A tick, a cross, or an en dash if the condition was not checked."""
    return NOTHING if flag is None else "\u2713" if flag else "\u2717"


def falls(row: Row) -> str:
    """The largest fall of the curve: "never" or "by 1.2"."""
    if row.monotone is None:
        return NOTHING
    return "never" if row.monotone else f"by {_fall(row, '<0.1')}"


def verdict(results: Results) -> str:
    """One sentence: the method with the best AUC in the primary metric, and the quality of the backfill with it."""
    best = results.best()
    if best is None and any(r.is_bound for r in results.rows):
        return "Only oracle orders were run, which cannot be deployed, so there is nothing to recommend."
    if best is None:
        return "Only old and new were compared, so there is nothing to recommend."
    metric = results.primary
    by_name = {r.method: r for r in results.panel(metric, best.variant)}
    old, new = by_name.get(OLD), by_name.get(NEW)
    name = best.title + (f" ({results.label(best.variant)})" if results.group(best) else "")
    average = f"{percent_sign(best.auc)} {metric} on average"
    if old and new and new.auc <= old.auc:
        return (
            f"The new model is no better than the old one ({percent_sign(new.auc)} {metric} against "
            f"{percent_sign(old.auc)}), so the upgrade brings no gain; {name} serves best during the backfill "
            f"with {average}."
        )
    if old and best.auc <= old.auc:
        return (
            f"No method beats the old service while the backfill runs: the best, {name}, has {average} against "
            f"{percent_sign(old.auc)}; finish the backfill before you switch over."
        )
    name = name[:1].upper() + name[1:]
    if math.isfinite(best.gain):
        reach = f"{name} reaches {percent_sign(best.gain, 0)} of the upgrade\u2019s gain during the backfill"
    else:
        reach = f"{name} serves best during the backfill with {average}"
    starts, ends = _against(best.start, old, "old service"), _against(best.end, new, "finished upgrade")
    return f"{reach} and {_steadiness(best)}; {metric} starts at {starts} and ends at {ends}."


def runner_up(results: Results) -> str:
    """A sentence that names the second-best method; empty if there is none."""
    ranked = results.candidates(results.primary)
    second = next((r for r in ranked if r.method != ranked[0].method), None)
    if second is None:
        return ""
    gain = f", {percent_sign(second.gain, 0)} of the gain" if math.isfinite(second.gain) else ""
    lead = _lead(results.difference(ranked[0], second))
    return f"Next best: {second.title}, AUC {percent_sign(second.auc)}{gain}{lead}."


def interval(low: float, high: float) -> str:
    """An interval of shares in per cent: "44.1 to 46.6"; an en dash if it is undefined."""
    return f"{percent(low)} to {percent(high)}" if math.isfinite(low) and math.isfinite(high) else NOTHING


def _lead(difference: Difference | None) -> str:
    if difference is None:
        return ""
    points = f"{percent(difference.value)} points behind (95 % interval {interval(difference.low, difference.high)})"
    return f"; {points}" + ("" if difference.low > 0 else ", so these queries do not distinguish the two")


def safety(results: Results) -> str:
    """A sentence that names the methods for which all three conditions hold in the primary metric."""
    if is_large(results):
        return _safety_of_many(results)
    safe: dict[str, list[str]] = {}
    for row in results.table(results.primary):
        if row.is_safe and not (row.is_end or row.is_bound):
            label = results.label(row.variant) if results.group(row) else ""
            safe.setdefault(label, []).append(row.title)
    if not safe:
        return "No method meets all three safety conditions."
    groups = [", ".join(titles) + (f" ({label})" if label else "") for label, titles in safe.items()]
    return f"All three safety conditions hold for {'; '.join(groups)}."


def _safety_of_many(results: Results) -> str:
    rows = [r for r in best_per_method(results, results.primary) if not r.is_reference and not r.is_bound]
    safe = [r.title for r in rows if r.is_safe]
    each = f", each in its best {choice(results)}" if choice(results) else ""
    if not safe:
        return f"None of {len(rows)} methods meets all three safety conditions{each}."
    shown = safe if len(safe) <= FEW + 1 else safe[:FEW]
    comma = "; " if any("," in title for title in shown) else ", "
    names = comma.join(shown) + (f" and {len(safe) - FEW} more" if len(shown) < len(safe) else "")
    return f"All three safety conditions hold for {len(safe)} of {len(rows)} methods{each}: {names}."


def _steadiness(row: Row) -> str:
    if row.monotone is None:
        return "was not checked for falls"
    if row.monotone:
        return "never falls"
    return f"falls at times, by at most {_fall(row, 'less than 0.1')} points from one moment to the next"


def _fall(row: Row, tiny: str) -> str:
    size = percent(row.largest_fall)
    return tiny if size == "0.0" else size


def _against(value: float, reference: Row | None, name: str) -> str:
    return percent_sign(value) + (f" ({name}: {percent_sign(reference.auc)})" if reference else "")
