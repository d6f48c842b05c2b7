"""What the new model embeds for the queries of a cascade: its price, which other methods do not pay."""

from typing import NamedTuple

import numpy as np

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.compare.tables import NEW_EMBEDDINGS
from ray_backfill.page.sections import Cell, Section, number, table_of, word


class CascadePrice(NamedTuple):
    """Gallery items that the new model embeds for a query: at t = 0, at t = 0.5, and on average over the backfill."""

    title: str
    order: str
    start: float
    half_way: float
    average: float


def embedded(results: ResultsData) -> list[CascadePrice]:
    """One entry for each cascade and order; [] without cascades."""
    prices = []
    for row in (row for row in results.rows if row.metric == results.primary):
        # At all moments: an order can reach the candidates before the first reported point.
        line = results.moments.get((row.method, row.variant, NEW_EMBEDDINGS))
        if line is not None:
            half_way, average = np.interp(0.5, line.t, line.value), np.trapezoid(line.value, line.t)
            prices.append(CascadePrice(row.title, row.order, float(line.value[0]), float(half_way), float(average)))
    return prices


def section(results: ResultsData) -> Section | None:
    """A line per cascade and order, and a sentence for each cascade."""
    if not (prices := embedded(results)):
        return None
    lines = [
        [
            ("method", Cell(title)),
            ("order", word(order)),
            ("at the start", number(f"{start:.1f}", start)),
            ("half-way", number(f"{half_way:.1f}", half_way)),
            ("on average", number(f"{average:.1f}", average)),
        ]
        for title, order, start, half_way, average in prices
    ]
    words = (
        "A cascade re-ranks what a cheaper system finds. For that the new model embeds those candidates that are not "
        "backfilled yet, for every query; the numbers are items per query. No other method pays this, so cascades are "
        "not recommended beside them."
    )
    titles = dict.fromkeys(price.title for price in prices)
    said = [f"{title}: {_price([price for price in prices if price.title == title])}." for title in titles]
    table = table_of("Items that cascades embed for a query", lines)
    return Section("What cascades embed", [words, table], said=said)


def price(results: ResultsData, row: Row) -> str:
    """What a cascade embeds in the order of its row, without a full stop; "" for any other method."""
    prices = [of for of in embedded(results) if (of.title, of.order) == (row.title, row.order)]
    return _price(prices, with_order=False) if prices else ""


def _price(prices: list[CascadePrice], with_order: bool = True) -> str:
    """prices: of one cascade in several orders, at the start the same."""
    averages = ", ".join(f"{price.average:.1f}{f' ({price.order})' * with_order}" for price in prices)
    items = "item" if prices[0].start == 1 else "items"
    return (
        f"the new model embeds {prices[0].start:.0f} {items} for every query at the start; on average over the "
        f"backfill {averages}"
    )


ANALYSES = (Analysis("cascades", section=section, place=60),)
