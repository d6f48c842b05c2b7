"""Methods are fitted by their names."""

from typing import Any

from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.fit import Fit, TrainSet
from ray_backfill.learn.training.settings import FitSettings


def fit_of(name: str) -> Fit:
    (method,) = find_methods((name,))
    assert method.fit is not None
    return method.fit


def fitted(name: str, data: TrainSet, settings: FitSettings | None = None, distance: str = "cosine") -> Any:
    """The network."""
    return fit_of(name).fit(data, settings or FitSettings(), distance).network
