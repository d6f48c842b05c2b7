"""Distances of items that are no right answers, predicted from those of their stand-ins.

A regression on the stand-in's distance, the old distance and their product predicts the distance; what remains is the
empirical distribution of the residuals at similar predictions. The items of all queries that were drawn at random make
the pairs from which it is fitted; items that were taken because they are close would bias it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.kernels import Array, kernel

# Cells of predicted distance, of equal width.
CELLS = 256
# Least number of pairs from which residuals are taken; cells with fewer share those of their neighbours.
_FEWEST = 150

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class OtherItems:
    """The fitted model. coefficients: (4,) of constant, stand-in's distance, old distance, product.

    low, width: predictions are in cell (prediction - low) / width. bin_C: (CELLS,) bin of residuals of each cell.
    residuals: of all bins, ascending within each. starts: of the bins.
    """

    coefficients: Floats32
    low: float
    width: float
    bin_C: NDArray[np.int64]
    residuals: Floats32
    starts: NDArray[np.int64]

    def cumulative(self, thresholds: Floats32) -> NDArray[np.float64]:
        """(CELLS, M) probability that an item of a cell is closer than each threshold. Cost: CELLS M log(pairs)."""
        out = np.empty((CELLS, len(thresholds)))
        _cumulative(self.low, self.width, self.bin_C, self.residuals, self.starts, thresholds, out)
        return out


@kernel
def _cumulative(low: float, width: float, bins: Array, residuals: Array, starts: Array, at: Array, out: Array) -> None:
    for c in range(len(bins)):
        own = residuals[starts[bins[c]] : starts[bins[c] + 1]]
        centre = low + (c + 0.5) * width
        for j in range(len(at)):
            out[c, j] = np.searchsorted(own, at[j] - centre) / len(own)


@kernel
def find_cells(
    stand_in: Array, old: Array, coefficients: Array, low: float, width: float, cells: Array
) -> None:  # fmt: skip
    """Write the cell of each item of one query. stand_in, old: (N,) distances. cells: (N,) int16."""
    a, b, c, d = coefficients
    last = CELLS - 1
    for i in range(len(cells)):
        predicted = a + b * stand_in[i] + c * old[i] + d * stand_in[i] * old[i]
        cells[i] = min(max(int((predicted - low) / width), 0), last)


def fit_others(stand_in: Floats32, old: Floats32, true: Floats32) -> OtherItems:
    """Fit the model on pairs of a query and an item that is not its right answer.

    stand_in, old, true: (pairs,) distances of the item's stand-in, in the old model, and by its new embedding.
    """
    # Close pairs decide which right answers are overtaken.
    weight = np.exp(-np.clip((stand_in - stand_in.mean()) / (stand_in.std() + 1e-12), -5, 1)).astype(np.float64)
    x = np.stack([np.ones_like(stand_in), stand_in, old, stand_in * old], axis=1).astype(np.float64)
    moments = (x * weight[:, None]).T @ x
    moments[np.diag_indices(4)] += 1e-9 * np.trace(moments)
    coefficients = np.linalg.solve(moments, (x * weight[:, None]).T @ true).astype(np.float32)
    predicted = (x @ coefficients).astype(np.float32)
    low, high = float(predicted.min()) - 1e-4, float(predicted.max()) + 1e-4
    width = (high - low) / CELLS
    cells = np.clip(((predicted - low) / width).astype(np.int64), 0, CELLS - 1)
    bin_C = _bins(np.bincount(cells, minlength=CELLS))
    of_pair, residuals = bin_C[cells], true - predicted
    sorted_ = np.lexsort((residuals, of_pair))
    starts = np.concatenate([[0], np.cumsum(np.bincount(of_pair))])
    return OtherItems(coefficients, low, width, bin_C, residuals[sorted_].astype(np.float32), starts)


def _bins(pairs_C: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the cells, closest first, so that each number has at least ``_FEWEST`` pairs."""
    bins, number, held = np.zeros(len(pairs_C), np.int64), 0, 0
    left = np.cumsum(pairs_C[::-1])[::-1]
    for cell, pairs in enumerate(pairs_C.tolist()):
        bins[cell] = number
        held += pairs
        if held >= _FEWEST and cell + 1 < len(pairs_C) and left[cell + 1] >= _FEWEST:
            number, held = number + 1, 0
    return bins
