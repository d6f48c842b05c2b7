"""What the metrics of rankings are computed from: where the right answers are. Shapes: b queries, T points."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.systems import GroundTruth, IntArray

# In ``Rankings.before``: more wrong items than any gallery has.
ABSENT = 1 << 62
NO_PLACES: NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True)
class Rankings:
    """The rankings of b queries at T points.

    before: CSR of (T, W), for each query and point, the number of wrong items before the first, second, ... right
    answer; ABSENT for those that were not found. starts: (b + 1,) start of each query's W. places: like ``before``,
    which of the query's right answers it is, as an index into them; empty if nobody asked.
    """

    before: IntArray
    starts: IntArray
    places: NDArray[np.int32]


@dataclass(frozen=True)
class RightAnswers:
    """The right answers of b queries. starts: (b + 1,), CSR. grades: aligned with them; empty if all count as 1.

    With grades, ``Rankings`` need places.
    """

    starts: IntArray
    grades: NDArray[np.float64]

    @classmethod
    def of(cls, truth: GroundTruth, queries: IntArray, with_grades: bool) -> "RightAnswers":
        lengths = (truth.positive_starts[queries + 1] - truth.positive_starts[queries]).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if truth.grades is None or not with_grades:
            return cls(starts, np.empty(0))
        at = np.arange(starts[-1]) + np.repeat(truth.positive_starts[queries] - starts[:-1], lengths)
        return cls(starts, truth.grades[at])
