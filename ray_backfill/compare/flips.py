"""Which queries lose or win their right first result during a backfill, and what stands first then.

A replay says at which moments the first result is right. The first items themselves are searched only for the queries
for which that changes, and must agree with the replay at every moment.

Shapes: Q scored queries, J replayed moments, K changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.tables.queries import BACKWARD, FORWARD, LOST, WON, FlipRow
from ray_backfill.core.schema import block, columns
from ray_backfill.engine.replay import NOTHING, FirstItems, Served
from ray_backfill.engine.systems import IntArray

# Finds the first items of some queries (rows of the table of queries) in all orders of a pair; see ``find_first``.
FindFirst = Callable[[Served, IntArray], Mapping[str, FirstItems]]


@dataclass(frozen=True)
class Flips:
    """K changes of a query's first result between right and wrong, by query, then moment.

    query: (K,) index into the scored queries. moment: (K,) index of the first replayed moment after the change.
    is_lost: (K,) whether a right result became wrong. after, before: (K,) uint32 gallery position of the first item at
    this moment and at the one before; ``NOTHING`` where no item can be found. after_forward, before_forward: (K,)
    whether the forward system serves it.
    """

    query: IntArray
    moment: IntArray
    is_lost: NDArray[np.bool_]
    after: NDArray[np.uint32]
    before: NDArray[np.uint32]
    after_forward: NDArray[np.bool_]
    before_forward: NDArray[np.bool_]


def find_flips(
    top1_correct: Mapping[str, NDArray[np.bool_]], scored: IntArray, served: Served, find: FindFirst
) -> dict[str, Flips]:
    """Find the changes of each order and what stands first before and after them.

    Cost: one search, shared by all orders, for the queries that change in any of them.

    Args:
        top1_correct: Order -> (Q, J) whether the first result is right, from the replay of this pair.
        scored: (Q,) rows of the queries.
        served: The pair in these orders, with the merge of the replay.
        find: Searches the pair.

    Raises:
        RuntimeError: The search contradicts the replay: an error of this program.
    """
    changes = np.array([(right[:, 1:] != right[:, :-1]).any(axis=1) for right in top1_correct.values()])
    changing = np.flatnonzero(changes.any(axis=0))
    if not len(changing):
        nothing: IntArray = np.empty(0, np.int64)
        return {order: Flips(nothing, nothing, *(nothing.astype(kind) for kind in "?II??")) for order in top1_correct}
    found = find(served, scored[changing])
    return {order: _flips(right[changing], found[order], changing, order) for order, right in top1_correct.items()}


def _flips(right: NDArray[np.bool_], first: FirstItems, changing: IntArray, order: str) -> Flips:
    """The changes of the queries ``changing``, whose first results are ``right``."""
    if not np.array_equal(right, first.is_right):
        apart = int((right != first.is_right).any(axis=1).sum())
        raise RuntimeError(
            f"the search for first results contradicts the replay for {apart} of {len(right)} queries in the order "
            f"{order!r}; this is an error of ray_backfill, please report it"
        )
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    at, then = (query, before + 1), (query, before)
    return Flips(
        changing[query],
        before + 1,
        right[then],
        first.item[at],
        first.item[then],
        first.is_forward[at],
        first.is_forward[then],
    )


def changes(right: NDArray[np.bool_]) -> Flips:
    """The changes of first results of which only right and wrong is known, not the items. right: (Q, J)."""
    query, before = np.nonzero(right[:, 1:] != right[:, :-1])
    nothing, unknown = np.full(len(query), NOTHING, np.uint32), np.zeros(len(query), np.bool_)
    return Flips(query, before + 1, right[query, before], nothing, nothing, unknown, unknown)


def flip_table(
    flips: Mapping[tuple[str, str, str], Flips],
    t: NDArray[np.float64],
    query_ids: NDArray[np.generic],
    item_ids: NDArray[np.generic],
) -> pd.DataFrame:
    """``FlipRow``s. flips: by method, order and merge. t: (J,). query_ids: of the scored queries. item_ids: (N,)."""
    blocks = list(_blocks(flips, t, query_ids, item_ids))
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=list(columns(FlipRow)), dtype=str)


def _blocks(
    flips: Mapping[tuple[str, str, str], Flips],
    t: NDArray[np.float64],
    query_ids: NDArray[np.generic],
    item_ids: NDArray[np.generic],
) -> Iterator[pd.DataFrame]:
    for (method, order, _), found in flips.items():
        kinds = np.where(found.is_lost, LOST, WON)
        yield block(
            FlipRow,
            query_ids[found.query].astype(str),
            method,
            order,
            t[found.moment],
            kinds,
            *_told(found.after, found.after_forward, item_ids),
            *_told(found.before, found.before_forward, item_ids),
        )


def _told(
    items: NDArray[np.uint32], is_forward: NDArray[np.bool_], item_ids: NDArray[np.generic]
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Ids and systems; both empty where there is no item."""
    is_there = items != NOTHING
    ids = item_ids[np.where(is_there, items, 0)].astype(str)
    return np.where(is_there, ids, ""), np.where(is_there, np.where(is_forward, FORWARD, BACKWARD), "")
