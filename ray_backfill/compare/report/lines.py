"""Curves and what they are of, as plain values."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Variant(NamedTuple):
    """A backfill order and a merge, which makes the distances of the two systems comparable."""

    order: str
    merge: str


class Line(NamedTuple):
    """One curve: arrays of equal length, sorted by t; low and high are NaN where there is no interval."""

    t: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


class Trace(NamedTuple):
    """One curve at all judged moments: arrays of equal length, sorted by t."""

    t: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
