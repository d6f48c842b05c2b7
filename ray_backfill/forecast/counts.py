"""How many items are closer to a query than each of its right answers, at each moment of the backfill.

Exact for items whose distance is known: by the old embedding before the backfill, by the new one if they are sampled.
For the others, a histogram of predicted distances gives the expected number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.forecast.others import CELLS, OtherItems, find_cells
from ray_backfill.kernels import Array, kernel

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Counts:
    """Items closer than M thresholds, ascending. known: (O, M, T) exact. expected: (O, M, T) of the others."""

    thresholds: Floats32
    known: NDArray[np.int64]
    expected: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QueryDistances:
    """Distances of a query to all items. stand_in, old, before: (N,) to the stand-ins, in the old model, and by the
    system that serves items before their backfill. left_out: positions of its right answers and ignored items.
    known, after: (k,) other items that are sampled, and their distances after the backfill.
    """

    stand_in: Floats32
    old: Floats32
    before: Floats32
    left_out: NDArray[np.int64]
    known: NDArray[np.int64]
    after: Floats32


def count(query: QueryDistances, model: OtherItems, moment_ON: NDArray[np.int16], points: int, at: Floats32) -> Counts:
    """Count the items closer than the thresholds ``at``, ascending.

    moment_ON: index of the first moment at which an item is backfilled, from 0 to ``points``. Cost: O N log M.
    """
    orders = len(moment_ON)
    cells = np.empty(len(query.before), np.int16)
    find_cells(query.stand_in, query.old, model.coefficients, model.low, model.width, cells)
    cells[query.left_out] = cells[query.known] = -1
    before = query.before.copy()
    before[query.left_out] = np.inf
    closer = np.zeros((orders, len(at) + 1, points + 1), np.int64)
    hidden = np.zeros((orders, CELLS, points + 1), np.int64)
    for o in range(orders):
        _count(cells, before, moment_ON[o], at, query.known, query.after, closer[o], hidden[o])
    likely = model.cumulative(at)
    expected = np.einsum("cm,oct->omt", likely, hidden[:, :, :points].astype(np.float64), optimize=True)
    return Counts(at, closer[:, :-1, :points], expected)


def counts_error(expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much an expected number of closer items may be wrong, as a standard deviation.

    Small numbers are less certain: a few close items that nothing predicts decide them. docs/results/forecast.md: what
    intervals with this error cover.
    """
    return np.asarray(0.05 * expected + 0.3 * np.sqrt(expected))


@kernel
def _count(
    cells: Array, before: Array, moment: Array, at: Array, known: Array, after: Array, closer: Array, hidden: Array
) -> None:
    """closer: (M + 1, T + 1), hidden: (CELLS, T + 1), both 0 at the start; column T is of no moment."""
    last, points = at[-1], closer.shape[1] - 1
    backfilled = np.zeros(closer.shape, np.int64)
    for i in range(len(before)):
        if before[i] < last:
            closer[np.searchsorted(at, before[i], side="right"), moment[i]] += 1
        if cells[i] >= 0:
            hidden[cells[i], moment[i]] += 1
    for k in range(len(known)):
        if after[k] < last:
            backfilled[np.searchsorted(at, after[k], side="right"), moment[known[k]]] += 1
    for j in range(len(closer)):
        # An item counts by its old embedding until its moment, and by its new one from then on.
        waiting, done = closer[j].sum(), 0
        for t in range(points):
            waiting -= closer[j, t]
            done += backfilled[j, t]
            closer[j, t] = waiting + done
        if j:
            for t in range(points):
                closer[j, t] += closer[j - 1, t]
    for c in range(len(hidden)):
        for t in range(1, points):
            hidden[c, t] += hidden[c, t - 1]
