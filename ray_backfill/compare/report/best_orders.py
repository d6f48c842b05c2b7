"""Each method's best order among those that can be used without labels of the gallery. Computes nothing."""

import math
from typing import NamedTuple

from ray_backfill.compare.report.results import Results, Row, Variant
from ray_backfill.compare.report.selection import best_per_method
from ray_backfill.page import Difference

RANDOM = "random"


class BestOrder(NamedTuple):
    """A method in its best order. lead: its AUC minus that of the random order; None if the random order is the best.

    random: the method in random order.
    """

    row: Row
    random: Row
    lead: Difference | None


def best_orders(results: Results) -> list[BestOrder]:
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
