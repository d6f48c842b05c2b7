"""Numbers and verdicts in plain words, for both the terminal and the HTML page."""

from ray_backfill.compare.report.results import DAGGER, DOUBLE_DAGGER, Results, Row
from ray_backfill.compare.report.selection import own_methods
from ray_backfill.page.numbers import NOTHING

GAIN_IN_WORDS = (
    "AUC is the average quality over the whole backfill. Gain is the share of the finished upgrade's benefit that "
    "users get on average while the backfill runs: 0 % = the quality of the old service throughout, 100 % = the "
    "quality of the new model from the start. Above 100 %, or with a head rho that is trained with labels, part of it "
    "is the method's own training, which a finished upgrade could have as well."
)
COLUMNS_IN_WORDS = (
    "gain: the share of the upgrade's benefit that users get on average while the backfill runs (0 % = the old "
    "service throughout, 100 % = the new model from the start; \u2013 = new is not clearly better than old). "
    "M_0 \u2713: starts no worse than old. M_1 \u2713: ends no worse than new. falls: the largest drop to a later "
    "moment; \u2713: none. ?: these queries do not decide it. Marks are for all metrics. neg. flips: the largest share "
    "of queries whose first result is right in the old service and wrong during the backfill."
)

# What stands in place of the gain if the new model's own results were taken as right.
RETENTION_IN_WORDS = (
    "AUC is the average over the whole backfill. What the new model finds was taken as right, so there is no gain: "
    "old = what the old service finds of it, new = 100 %."
)
RETENTION_WARNING = (
    "Provisional: what the finished upgrade finds was taken as right. The figures say how much of {} users get, and "
    "nothing of whether the new model is better than the old one. On four data sets with right answers, such figures "
    "were 4 to 41 points away from the true quality relative to the new model’s: new-top1 by recall@10 4.4 to 15.3 "
    "points, too high on two of them; all others too low. The methods were ranked differently, too: Kendall’s tau "
    "between both rankings was 0.1 to 0.9 (docs/results/retention.md)."
)

ORACLE_NOTE = f"{DAGGER} An upper bound: this order uses knowledge that exists only after the upgrade."
UNLEARNED_NOTE = (
    f"{DOUBLE_DAGGER} Did not learn here: worse than rank merge without training (rm_naive) on validation items, which "
    "its fit did not see. It is never recommended."
)
FEW = 6  # names that a sentence can list


def is_retention(results: Results) -> bool:
    """Whether what the new model finds was taken as right, so that nothing is known of its quality."""
    return bool(results.manifest.data.get("truth", {}).get("is_retention"))


def retained(results: Results) -> str:
    """What is retained, in words: "the new model's first result"."""
    k = results.manifest.data.get("truth", {}).get("k", 1)
    return "the new model\u2019s first result" if k == 1 else f"the new model\u2019s first {k} results"


def metric_title(results: Results, metric: str) -> str:
    """A metric in titles, with what it means if the new model's own results were taken as right."""
    return f"Retention of {retained(results)}, {metric}" if is_retention(results) else metric


def explained(results: Results) -> str:
    """What gain, or retention, means."""
    return RETENTION_IN_WORDS if is_retention(results) else GAIN_IN_WORDS


def columns_in_words(results: Results) -> str:
    """What the columns of the overview mean."""
    gain, rest = COLUMNS_IN_WORDS.split(" M_0", 1)
    return f"{RETENTION_IN_WORDS if is_retention(results) else gain} M_0{rest}"


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
