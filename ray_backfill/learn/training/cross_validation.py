"""How strong a penalty is, or how large a rank, chosen by the squared error on train items that the fit has not seen.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Value = TypeVar("Value")

PARTS = 5
# From this many items on, one held-out part tells the strengths apart as well as all five do (each item says something
# in every dimension), at a fifth of the cost.
MANY = 1_000


class Part(NamedTuple):
    """One split of the train items: what is fitted on and what is held out, both centred on the means of the former."""

    x: Wide
    y: Wide
    held_x: Wide
    held_y: Wide


def parts(x_Np: Wide, y_Nq: Wide) -> Iterator[Part]:
    """Fifths of the items in random order, each held out in turn; only the first one where there are many items."""
    fifths = np.array_split(np.random.default_rng(0).permutation(len(x_Np)), PARTS)
    for held in fifths if len(x_Np) < MANY else fifths[:1]:
        seen = np.ones(len(x_Np), bool)
        seen[held] = False
        mean_x, mean_y = x_Np[seen].mean(0), y_Nq[seen].mean(0)
        yield Part(x_Np[seen] - mean_x, y_Nq[seen] - mean_y, x_Np[held] - mean_x, y_Nq[held] - mean_y)


def best_of(values: Sequence[Value], errors: Sequence[Sequence[float]]) -> Value:
    """The value of the least error. errors: for each part, one error per value."""
    return values[int(np.sum(errors, axis=0).argmin())]


def squared_error(predicted: Wide, held_y: Wide) -> float:
    return float(((predicted - held_y) ** 2).sum())
