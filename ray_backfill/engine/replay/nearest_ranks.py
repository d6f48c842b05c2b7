"""Rankings cut at k from the candidates of ``nearest``. Shapes: b queries, P right answers, O orders, T points."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.rankings import ABSENT, NO_PLACES, Rankings
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.keys import KeyArray, item_of
from ray_backfill.engine.systems import IntArray


def nearest_rankings(
    rows: IntArray, keys: KeyArray, is_forward: NDArray[np.bool_], block: Block, slices_ON: NDArray[np.uint16], k: int,
    points: int, with_places: bool,
) -> Iterator[Rankings]:  # fmt: skip
    """Return the first k ranks of each order, from the candidates of all shards and both systems, by exact keys.

    rows: the query of each candidate, in any order. k: at most what the candidates were found for.
    """
    own, starts, places_of = sort_candidates(rows, keys, block)
    widths = np.minimum(np.diff(block.positive_starts), k)
    width_starts = np.concatenate([[0], np.cumsum(widths)])
    for slices in slices_ON:
        before = np.full(points * width_starts[-1], ABSENT)
        places = np.zeros(len(before), np.int32) if with_places else NO_PLACES
        _rank(own, starts, places_of, keys, is_forward, slices, k, points, width_starts, before, places)
        yield Rankings(before, width_starts, places)


def sort_candidates(rows: IntArray, keys: KeyArray, block: Block) -> tuple[IntArray, IntArray, NDArray[np.int32]]:
    """Find the candidates of each query that are not ignored, the closest first.

    Returns: CSR of indices of candidates; (b + 1,) their starts; aligned with the indices, which of the query's right
    answers it is, or -1.
    """
    own, starts = np.empty(len(rows), np.int64), np.empty(len(block) + 1, np.int64)
    places_of = np.empty(len(rows), np.int32)
    _sort_candidates(
        rows, keys, block.positives, block.positive_starts, block.ignored, block.ignored_starts, own, starts, places_of
    )
    return own[: starts[-1]], starts, places_of[: starts[-1]]


@kernel
def _sort_candidates(
    rows: Array, keys: Array, positives: Array, positive_starts: Array, ignored: Array, ignored_starts: Array,
    own: Array, starts: Array, places_of: Array,
) -> None:  # fmt: skip
    """Find the candidates of each query that are not ignored, the closest first.

    own: CSR by ``starts``, indices of candidates. places_of: aligned with ``own``, which right answer it is, or -1.
    """
    n_queries = len(starts) - 1
    given = np.zeros(n_queries + 1, np.int64)
    for row in rows:
        given[row + 1] += 1
    given = np.cumsum(given)
    of_row, filled = np.empty(len(rows), np.int64), given.copy()
    for c in range(len(rows)):
        of_row[filled[rows[c]]] = c
        filled[rows[c]] += 1
    at = 0
    for q in range(n_queries):
        starts[q] = at
        unsorted = of_row[given[q] : given[q + 1]]
        right = positives[positive_starts[q] : positive_starts[q + 1]]
        left_out = ignored[ignored_starts[q] : ignored_starts[q + 1]]
        for c in unsorted[np.argsort(keys[unsorted])]:
            if _place(left_out, item_of(keys[c])) < 0:
                own[at] = c
                places_of[at] = _place(right, item_of(keys[c]))
                at += 1
    starts[n_queries] = at


@kernel
def _rank(
    own: Array, starts: Array, places_of: Array, keys: Array, is_forward: Array, slices: Array, k: int, points: int,
    width_starts: Array, before: Array, places: Array,
) -> None:  # fmt: skip
    for q in range(len(starts) - 1):
        first, n_own = starts[q], starts[q + 1] - starts[q]
        width = width_starts[q + 1] - width_starts[q]
        # A candidate's system serves it at the points begin .. begin + length - 1.
        begin, length = np.empty(n_own, np.uint32), np.empty(n_own, np.uint32)
        for c in range(n_own):
            after = slices[item_of(keys[own[first + c]])] + 1
            begin[c] = after if is_forward[own[first + c]] else 0
            length[c] = points - after if is_forward[own[first + c]] else after
        for i in range(points):
            at, wrong, found = points * width_starts[q] + i * width, 0, 0
            for c in range(n_own):
                if np.uint32(np.uint32(i) - begin[c]) < length[c]:
                    if places_of[first + c] < 0:
                        wrong += 1
                    else:
                        before[at + found] = wrong
                        if len(places) > 0:
                            places[at + found] = places_of[first + c]
                        found += 1
                    if wrong + found == k:
                        break


@kernel
def _place(ascending: Array, value: int) -> Any:
    """Index of a value; -1 if it is not there."""
    at = np.searchsorted(ascending, value)
    return at if at < len(ascending) and ascending[at] == value else -1
