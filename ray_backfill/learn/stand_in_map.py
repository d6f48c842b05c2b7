"""Stand-ins: new embeddings that a map predicts from old ones, for items that the new model has not embedded."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.memory import room_for
from ray_backfill.engine.systems import FloatArray

# Ridge penalty, relative to the mean variance of a dimension.
_PENALTY = 1e-2
# Rows that are mapped at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class StandInMap:
    """A linear map with a constant, (d_old + 1, d_new). length: of its results under cosine; 0: as they come."""

    weights: NDArray[np.float32]
    length: float

    def __call__(self, old: FloatArray) -> NDArray[np.float32]:
        """(N, d_old) -> (N, d_new) float32. Cost: 2 N d_old d_new."""
        out = room_for(len(old), self.weights.shape[1], np.float32)
        for first in range(0, len(old), _ROWS):
            rows = old[first : first + _ROWS].astype(np.float32)
            mapped = (_unit(rows) if self.length else rows) @ self.weights[:-1] + self.weights[-1]
            out[first : first + _ROWS] = self.length * _unit(mapped) if self.length else mapped
        return out


def fit_stand_in(old: FloatArray, new: FloatArray, distance: str) -> StandInMap:
    """Ridge regression of new embeddings on old ones of the same items. Under cosine, lengths do not count.

    Cost: n d_old (d_old + d_new).
    """
    x: NDArray[np.floating] = old.astype(np.float64)
    y: NDArray[np.floating] = new.astype(np.float64)
    length = float(np.linalg.norm(y, axis=1).mean()) if distance == "cosine" else 0.0
    # The penalty is for vectors of length 1.
    unit = 1.0 if length else float(np.sqrt((x * x).sum(axis=1).mean())) or 1.0
    x, y = (_unit(x), _unit(y)) if length else (x / unit, y)
    x = np.hstack([x, np.ones((len(x), 1))])
    moments = x.T @ x
    moments[np.diag_indices(len(moments))] += _PENALTY * np.trace(moments) / len(moments)
    weights = np.linalg.solve(moments, x.T @ y)
    weights[:-1] /= unit
    return StandInMap(weights.astype(np.float32), length)


def _unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30))
