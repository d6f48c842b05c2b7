"""How many items are closer to a query than each of its right answers, at each moment of the backfill.

Exact for items whose distance is known: by the old embedding before the backfill, by the new one if they are sampled.
For the others, a histogram of predicted distances gives the expected number. Slices of the gallery are counted apart,
and their histograms are added.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.forecast.others import CELLS, OtherItems

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
# Cells into which the range of thresholds is divided, to find the place of a distance among them.
_STARTS = 1024


@dataclass(frozen=True, eq=False)
class Histograms:
    """Items of b queries by distance and moment of their backfill.

    places: (b, O, M + 1, T + 1) by their place among M thresholds before the backfill. cells: (b, O, CELLS, T + 1)
    those that are not known after it, by their predicted distance then.
    """

    places: Ints
    cells: Ints

    def plus(self, other: "Histograms") -> "Histograms":
        """The histograms of two slices together."""
        return Histograms(self.places + other.places, self.cells + other.cells)


@dataclass(frozen=True, eq=False)
class Counts:
    """Items closer than M thresholds, ascending. known: (O, M, T) exact. expected: (O, M, T) of the others.

    changes: (1 + PARTS, O, M, T) of the expected number: by ``structural_error``, and if a part of the items is left
    out on which the model is fitted.
    """

    thresholds: Floats32
    known: Ints
    expected: Floats
    changes: Floats


def find_starts(thresholds: Floats32) -> tuple[NDArray[np.int32], Floats]:
    """Of each query, the places at which to start the search for a distance, and (first threshold, cells per distance).

    thresholds: (b, M) ascending, each filled up with infinity.
    """
    starts, scales = np.zeros((len(thresholds), _STARTS), np.int32), np.zeros((len(thresholds), 2))
    for row, own in enumerate(thresholds):
        own = own[np.isfinite(own)]
        scales[row] = own[0], _STARTS / max(float(own[-1]) - float(own[0]), 1e-30)
        starts[row] = np.searchsorted(own, own[0] + np.arange(_STARTS) / scales[row, 1], side="right")
    return starts, scales


@kernel
def count_tile(
    stand_in: Array, old: Array, before: Array, moment: Array, coefficients: Array, low: float, width: float,
    thresholds: Array, starts: Array, scales: Array, places: Array, cells: Array,
) -> None:  # fmt: skip
    """Add the items of a tile. stand_in, old, before: (b, n) distances: to the stand-ins, NaN for items that are known
    after their backfill; in the old model; before the backfill, infinite for items that do not count. moment: (O, n).
    """
    a, b, c, d = coefficients
    for q in range(len(before)):
        at, number = thresholds[q], np.searchsorted(thresholds[q], np.inf)
        last, first, scale = at[number - 1], scales[q, 0], scales[q, 1]
        for i in range(before.shape[1]):
            place, x = -1, before[q, i]
            if x < last:
                place = starts[q, min(max(int((x - first) * scale), 0), starts.shape[1] - 1)]
                while at[place] <= x:
                    place += 1
                while place > 0 and at[place - 1] > x:
                    place -= 1
            cell, s = -1, stand_in[q, i]
            if not np.isnan(s):
                predicted = a + b * s + c * old[q, i] + d * s * old[q, i]
                cell = min(max(int((predicted - low) / width), 0), cells.shape[2] - 1)
            for o in range(len(moment)):
                if place >= 0:
                    places[q, o, place, moment[o, i]] += 1
                if cell >= 0:
                    cells[q, o, cell, moment[o, i]] += 1


def count(
    places: Ints, cells: Ints, known_moments: Ints, after: Floats32, others: OtherItems,
    thresholds: Floats32, beyond: float = 0.0,
) -> Counts:  # fmt: skip
    """The counts of one query from its histograms, as in ``Histograms``.

    known_moments: (O, k) when other known items are backfilled. after: (k,) their distances then. beyond: see
    ``Calibration``.
    """
    orders, number, points = len(places), len(thresholds), places.shape[2] - 1
    closer = np.zeros((orders, number, points), np.int64)
    for o in range(orders):
        _closer(places[o], known_moments[o], after, thresholds, closer[o])
    hidden = np.cumsum(cells[:, :, :points], axis=2).astype(np.float64)
    likely = others.cumulative(thresholds)  # (1 + PARTS, CELLS, M)
    by_threshold = likely.swapaxes(1, 2) @ hidden.swapaxes(0, 1).reshape(len(hidden[0]), -1)  # (1 + PARTS, M, O T)
    expected = by_threshold.reshape(*by_threshold.shape[:2], orders, points).swapaxes(1, 2)
    changes = np.concatenate([structural_error(expected[:1], beyond), expected[1:] - expected[0]])
    return Counts(thresholds, closer, expected[0], changes)


def structural_error(expected: Floats, beyond: float = 0.0) -> Floats:
    """By how much expected numbers of closer items may be wrong besides the sample's error, as a standard deviation.

    The model has the same residuals for all queries. beyond: share by which it disagrees with the sample, see
    ``Calibration``. docs/results/forecast.md: what intervals with this error cover.
    """
    return np.asarray((0.03 + beyond) * expected + 0.15 * np.sqrt(expected))


@kernel
def _closer(places: Array, moments: Array, after: Array, at: Array, closer: Array) -> None:
    """An item counts by its old embedding until its moment, and by its new one from then on."""
    backfilled = np.zeros(places.shape, np.int64)
    for k in range(len(after)):
        if after[k] < at[-1]:
            backfilled[np.searchsorted(at, after[k], side="right"), moments[k]] += 1
    for j in range(len(at)):
        waiting, done = places[j].sum(), 0
        for t in range(closer.shape[1]):
            waiting -= places[j, t]
            done += backfilled[j, t]
            closer[j, t] = waiting + done + (closer[j - 1, t] if j else 0)


def no_cells(queries: int, orders: int, points: int, thresholds: int) -> Histograms:
    """Histograms of no items. thresholds: M, points: T."""
    return Histograms(
        np.zeros((queries, orders, thresholds + 1, points + 1), np.int64),
        np.zeros((queries, orders, CELLS, points + 1), np.int64),
    )
