"""What the new model embeds for the queries of a cascade: its price, which other methods do not pay."""

from typing import NamedTuple

import numpy as np

from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.tables.results import NEW_EMBEDDINGS


class Embedded(NamedTuple):
    """Gallery items that the new model embeds for a query: at t = 0, at t = 0.5, and on average over the backfill."""

    title: str
    order: str
    start: float
    half_way: float
    average: float


def embedded(results: Results) -> list[Embedded]:
    """One entry for each cascade and order; [] without cascades."""
    found = []
    for row in (row for row in results.rows if row.metric == results.primary):
        # At all moments: an order can reach the candidates before the first reported point.
        line = results.moments.get((row.method, row.variant, NEW_EMBEDDINGS))
        if line is not None:
            half_way, average = np.interp(0.5, line.t, line.value), np.trapezoid(line.value, line.t)
            found.append(Embedded(row.title, row.order, float(line.value[0]), float(half_way), float(average)))
    return found


def cascades_in_words(results: Results) -> list[str]:
    """A sentence for each cascade, for the terminal."""
    found = embedded(results)
    return [
        f"{title}: {_price([each for each in found if each.title == title])}."
        for title in dict.fromkeys(each.title for each in found)
    ]


def price(results: Results, row: Row) -> str:
    """What a cascade embeds in the order of its row, without a full stop; "" for any other method."""
    own = [each for each in embedded(results) if (each.title, each.order) == (row.title, row.order)]
    return _price(own, with_order=False) if own else ""


def _price(own: list[Embedded], with_order: bool = True) -> str:
    """own: one cascade in several orders, at the start the same."""
    averages = ", ".join(f"{each.average:.1f}{f' ({each.order})' * with_order}" for each in own)
    items = "item" if own[0].start == 1 else "items"
    return (
        f"the new model embeds {own[0].start:.0f} {items} for every query at the start; on average over the backfill "
        f"{averages}"
    )
