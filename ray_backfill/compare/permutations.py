"""Several permutations of a random order: what is reported is the mean of their curves.

A single permutation can be lucky, so a claim about orders needs several. They differ in their seed only, are replayed
in the same pass as all other orders, and are averaged query by query, so that areas, gains and paired bootstraps over
queries are those of the mean curve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.orders import BackfillOrders
from ray_backfill.engine.orders import make_order
from ray_backfill.engine.replay import Curve
from ray_backfill.engine.systems import IntArray

FoundT = TypeVar("FoundT")
# Between the name of an order and the number of its permutation.
_MARK = " permutation "


def permutation_seeds(seed: int, number: int) -> list[int]:
    """The seeds of the permutations: ``seed`` first; more of them do not change the first ones."""
    return [seed, *np.random.SeedSequence(seed).generate_state(number - 1).tolist()]


def further_permutations(orders: BackfillOrders, number: int) -> dict[str, IntArray]:
    """The second and later permutations of the random orders, under names that ``by_order`` understands."""
    return {
        f"{order.name}{_MARK}{place}": make_order(order.name, orders.gallery, seed)
        for order in orders.orders
        if order.is_random
        for place, seed in enumerate(permutation_seeds(orders.seed, number)[1:], 2)
    }


def by_order(curves: Mapping[str, FoundT]) -> dict[str, list[FoundT]]:
    """Order -> its curve (or what else each order has), or those of all its permutations."""
    found: dict[str, list[FoundT]] = {}
    for name, curve in curves.items():
        found.setdefault(name.partition(_MARK)[0], []).append(curve)
    return found


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over permutations of every query's values.

    Whether the first item is a positive becomes the share of permutations in which it is, so flips are means, too. A
    fall is that of the mean: single permutations may fall where their mean does not.
    """
    if len(curves) == 1:
        return curves[0]
    per_query = {
        metric: np.mean([curve.per_query[metric] for curve in curves], axis=0) for metric in curves[0].per_query
    }
    top1: NDArray[np.float64] = np.mean([curve.top1_correct for curve in curves], axis=0)
    embedded = [curve.embedded for curve in curves if curve.embedded is not None]
    return replace(
        curves[0],
        per_query=per_query,
        top1_correct=top1,
        embedded=np.mean(embedded, axis=0) if embedded else None,
    )
