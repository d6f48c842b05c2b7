"""Distances of items that are no right answers, predicted from those of their stand-ins.

A regression on the stand-in's distance, the old distance and their product predicts the distance; what remains is the
empirical distribution of the residuals at similar predictions. Pairs of a query and an item that was drawn at random
are what it is fitted on; items that were taken because they are close would bias it. How far the distribution may be
off is estimated by the jackknife: items are divided into ``PARTS``, and each part is left out in turn.

Calibration checks the model on the items that were sampled at random: of each chosen query, those that are closer than
its sampled right answers are counted and compared with their expected number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.forecast.tables import LEAST_RATIO, MOST_RATIO

# Cells of predicted distance, of equal width.
CELLS = 256
# Parts of the items for the jackknife.
PARTS = 8
# Residuals are taken from at least 1 of so many pairs, within limits; cells with fewer share those of their neighbours.
# A distribution of few pairs ends at its lowest residual and expects too few closer items; one of a large share of all
# pairs mixes different predictions.
_SHARE, _FEWEST, _MOST = 2000, 150, 1000
# Cells begin below the closest prediction of a pair, by this share of the range: a gallery has items that are predicted
# closer than any sampled one.
_ROOM = 0.5
# Points at which the distribution of residuals is kept; between them it is linear.
_GRID = 2048
# Limits of the fitted variance of that ratio between queries.
_LEAST_VARIANCE, _MOST_VARIANCE = 0.01, 5.0

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Cells:
    """How items are divided by their predicted distances. coefficients: (4,) of constant, stand-in's distance, old
    distance, product. low, width: predictions are in cell (prediction - low) / width.
    """

    coefficients: Floats32
    low: float
    width: float

    def predict(self, stand_in: Floats32, old: Floats32) -> Floats:
        """Predicted distances; shapes as given."""
        a, b, c, d = self.coefficients.astype(np.float64)
        return np.asarray(a + b * stand_in + c * old + d * stand_in * old)

    def of(self, predicted: Floats) -> NDArray[np.int64]:
        """The cell of each prediction."""
        return np.clip(((predicted - self.low) / self.width).astype(np.int64), 0, CELLS - 1)


@dataclass(frozen=True, eq=False)
class OtherItems:
    """The fitted model. bin_C: (CELLS,) bin of residuals of each cell. below: (PARTS, bins, _GRID + 1) weight of a
    part's residuals below each point of a grid, which starts at ``first`` and has steps of ``step``.
    """

    cells: Cells
    bin_C: NDArray[np.int64]
    below: Floats
    first: float
    step: float

    def cumulative(self, thresholds: Floats32) -> Floats:
        """(1 + PARTS, CELLS, M) probability that an item of a cell is closer than a threshold, and without each part.

        Cost: PARTS CELLS M.
        """
        out = np.empty((1 + PARTS, CELLS, len(thresholds)))
        cells = self.cells
        _cumulative(cells.low, cells.width, self.bin_C, self.below, self.first, self.step, thresholds, out)
        return out


@kernel
def _cumulative(
    low: float, width: float, bins: Array, below: Array, first: float, step: float, at: Array, out: Array
) -> None:  # fmt: skip
    grid = below.shape[2] - 1
    for c in range(len(bins)):
        whole = below[:, bins[c], grid].sum()
        for j in range(len(at)):
            place = (at[j] - (low + (c + 0.5) * width) - first) / step
            place = min(max(place, 0.0), grid - 1e-9)
            point = int(place)
            rest = place - point
            total = 0.0
            for part in range(len(below)):
                here = below[part, bins[c], point] * (1 - rest) + below[part, bins[c], point + 1] * rest
                out[1 + part, c, j] = here
                total += here
            out[0, c, j] = total / whole
            for part in range(len(below)):
                others = whole - below[part, bins[c], grid]
                out[1 + part, c, j] = (total - out[1 + part, c, j]) / others if others > 0 else out[0, c, j]


def fit_others(
    stand_in: Floats32, old: Floats32, true: Floats32, weight: Floats, part: NDArray[np.int64], unit: float = 1.0
) -> OtherItems:  # fmt: skip
    """Fit the model on pairs of a query and an item that is not its right answer.

    stand_in, old, true: (pairs,) distances of the item's stand-in, in the old model, and by its new embedding. weight:
    (pairs,) for how many items each one stands. part: (pairs,) of the item, for the jackknife. unit: a usual distance.
    """
    cells = _fit_cells(stand_in, old, true, weight, unit)
    predicted = cells.predict(stand_in, old)
    cell = cells.of(predicted)
    bin_C = _bins(np.bincount(cell, minlength=CELLS))
    residual = true - predicted
    first, last = float(residual.min()) - 1e-6 * unit, float(residual.max()) + 1e-6 * unit
    step = (last - first) / _GRID
    bins = int(bin_C.max()) + 1
    # A residual is below the point that follows it.
    place = (part * bins + bin_C[cell]) * (_GRID + 1) + ((residual - first) / step).astype(np.int64) + 1
    mass = np.bincount(place, weight, PARTS * bins * (_GRID + 1)).reshape(PARTS, bins, _GRID + 1)
    return OtherItems(cells, bin_C, np.cumsum(mass, axis=2), first, step)


def _fit_cells(stand_in: Floats32, old: Floats32, true: Floats32, weight: Floats, unit: float) -> Cells:
    # Close pairs decide which right answers are overtaken.
    weight = weight * np.exp(-np.clip((stand_in - stand_in.mean()) / (stand_in.std() + 1e-12), -5, 1))
    units = np.array([1, unit, unit, unit * unit])
    x = np.stack([np.ones_like(stand_in), stand_in, old, stand_in * old], axis=1).astype(np.float64) / units
    moments = (x * weight[:, None]).T @ x
    moments[np.diag_indices(4)] += 1e-9 * np.trace(moments)
    coefficients = (np.linalg.solve(moments, (x * weight[:, None]).T @ true) / units).astype(np.float32)
    predicted = Cells(coefficients, 0.0, 1.0).predict(stand_in, old)
    low, high = float(predicted.min()) - 1e-4 * unit, float(predicted.max()) + 1e-4 * unit
    low -= _ROOM * (high - low)
    return Cells(coefficients, low, (high - low) / CELLS)


def _bins(pairs_C: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the cells, closest first, so that each number has at least 1 of ``_SHARE`` pairs, within limits."""
    bins, number, held = np.zeros(len(pairs_C), np.int64), 0, 0
    left = np.cumsum(pairs_C[::-1])[::-1]
    fewest = min(max(int(pairs_C.sum()) // _SHARE, _FEWEST), _MOST)
    for cell, pairs in enumerate(pairs_C.tolist()):
        bins[cell] = number
        held += pairs
        if held >= fewest and cell + 1 < len(pairs_C) and left[cell + 1] >= fewest:
            number, held = number + 1, 0
    return bins


@dataclass(frozen=True, eq=False)
class Checked:
    """Closer items among those sampled at random, at each sampled right answer of all chosen queries.

    observed, expected: (A,). influence: (A,) how much an error of the count changes average precision.
    """

    observed: Floats
    expected: Floats
    influence: Floats


@dataclass(frozen=True)
class Calibration:
    """ratio: observed over expected number of closer items, fitted. variance: of the ratio between queries."""

    ratio: float
    variance: float

    @property
    def beyond(self) -> float:
        """By what share of the expected numbers the ratio is outside of what may be chance."""
        return max(0.0, self.ratio / MOST_RATIO - 1, 1 - self.ratio / LEAST_RATIO)


def check(observed: Floats, expected: Floats, share: float, answers: int) -> Checked:
    """One query. observed, expected: (n,) at its sampled answers, ascending by distance. share: of all items that were
    sampled. answers: number of its right answers.
    """
    number = len(observed)
    of_all = expected / share
    preceding = np.arange(number) * max(answers - 1, 0) / max(number - 1, 1) if number > 1 else np.array([answers / 2])
    return Checked(observed, expected + 1e-6, (1 + preceding) * of_all / (1 + preceding + of_all) ** 2 / number)


def calibrate(checked: list[Checked]) -> Calibration:
    """Fit a negative binomial distribution of the counts by maximum likelihood, weighted by influence."""
    observed, expected, weight = (
        np.concatenate([getattr(each, name) for each in checked]) for name in ("observed", "expected", "influence")
    )
    weight = weight / max(weight.sum(), 1e-12)

    def loss(parameters: Floats) -> float:
        ratio, shape = np.exp(np.clip(parameters[0], -5, 5)), np.exp(-np.clip(parameters[1], -7, 3))
        mean = ratio * expected
        chance = gammaln(observed + shape) - gammaln(shape) + shape * np.log(shape / (shape + mean))
        return -float(weight @ (chance + observed * np.log(mean / (shape + mean))))

    ratio, variance = np.exp(np.clip(minimize(loss, [0.0, -1.0], method="Nelder-Mead").x, -5, 5))
    return Calibration(float(ratio), float(np.clip(variance, _LEAST_VARIANCE, _MOST_VARIANCE)))
