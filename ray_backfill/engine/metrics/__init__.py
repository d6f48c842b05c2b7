"""Retrieval metrics: functions of the ranks of a query's right answers. No I/O, no distances. One file each.

To add a metric, add a file with its kernel and its ``MetricKind``, and name them here: in ``KINDS`` and in ``_value``.
tests/contracts/test_metrics.py finds it and asks for an oracle from outside. All metrics are compiled together, so
other distributions cannot add any.

Shapes: b queries, T points, M metrics.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.metrics.average_precision import AVERAGE_PRECISION, average_precision
from ray_backfill.engine.metrics.cmc import CMC, cmc
from ray_backfill.engine.metrics.kind import MetricKind as MetricKind
from ray_backfill.engine.metrics.ndcg import NDCG, ndcg
from ray_backfill.engine.metrics.rankings import ABSENT, Rankings, RightAnswers
from ray_backfill.engine.metrics.recall import RECALL, recall
from ray_backfill.engine.metrics.reciprocal_rank import RECIPROCAL_RANK, reciprocal_rank

# A metric's place is its number in ``_value``.
KINDS = (AVERAGE_PRECISION, CMC, RECALL, RECIPROCAL_RANK, NDCG)
_NUMBER = {kind.name: number for number, kind in enumerate(KINDS)}
_WHOLE = ABSENT


@kernel
def _value(number: int, ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    if number == 0:
        return average_precision(ranks, n_right, cut, grades, ideal)
    if number == 1:
        return cmc(ranks, n_right, cut, grades, ideal)
    if number == 2:
        return recall(ranks, n_right, cut, grades, ideal)
    if number == 3:
        return reciprocal_rank(ranks, n_right, cut, grades, ideal)
    return ndcg(ranks, n_right, cut, grades, ideal)


@dataclass(frozen=True)
class Metric:
    """A parsed name: "mAP" (whole ranking, k is None) or "mAP@100" (cut at k)."""

    name: str
    kind: str
    k: int | None

    @property
    def uses_grades(self) -> bool:
        """Whether grades of right answers make a difference to it."""
        return KINDS[_NUMBER[self.kind]].uses_grades


def metric_forms() -> list[str]:
    """Return the names of all metrics: "mAP", "mAP@k", "CMC@k", ..."""
    return [form for kind in KINDS for form in kind.forms]


def parse_metric(name: str) -> Metric:
    """Parse the name of a metric, such as "mAP" or "CMC@1".

    Raises:
        InputError: The name has none of the known forms; the message lists them.
    """
    match = re.fullmatch(r"([^@]+)(?:@([1-9][0-9]*))?", name)
    form = f"{match[1]}@k" if match and match[2] else name
    if match is None or form not in metric_forms():
        raise InputError(f"unknown metric {name!r}; known: {', '.join(metric_forms())}, e.g. mAP@100, CMC@1")
    k = int(match[2]) if match[2] else None
    if k is not None and k >= 1 << 32:
        raise InputError(f"the cut-off of metric {name!r} exceeds any gallery; use a smaller k")
    return Metric(name, match[1], k)


class MetricCodes(NamedTuple):
    """Metrics as (M,) arrays for ``measure``. numbers: places in ``KINDS``. cuts: the last ranks that count."""

    numbers: NDArray[np.int64]
    cuts: NDArray[np.int64]
    uses_grades: NDArray[np.bool_]


def metric_codes(metrics: Sequence[Metric]) -> MetricCodes:
    """Return the argument ``codes`` of ``measure``."""
    return MetricCodes(
        np.array([_NUMBER[metric.kind] for metric in metrics], np.int64),
        np.array([metric.k or _WHOLE for metric in metrics], np.int64),
        np.array([metric.uses_grades for metric in metrics]),
    )


def measure(
    rankings: Rankings,
    right: RightAnswers,
    codes: MetricCodes,
    values: NDArray[np.float64],
    top1: NDArray[np.bool_],
) -> None:
    """Compute the metrics of some rankings, and whether their first items are right answers.

    values: (b, T, M). top1: (b, T).
    """
    _measure(rankings.before, rankings.starts, rankings.places, right.starts, right.grades, *codes, values, top1)


@kernel
def _measure(
    before: Array, starts: Array, places: Array, right_starts: Array, right_grades: Array, numbers: Array, cuts: Array,
    uses_grades: Array, values: Array, top1: Array,
) -> None:  # fmt: skip
    n_queries, points = top1.shape
    is_graded = len(right_grades) > 0
    ideals = np.ones(len(numbers))
    for q in range(n_queries):
        width, n_right = starts[q + 1] - starts[q], right_starts[q + 1] - right_starts[q]
        own = right_grades[right_starts[q] : right_starts[q + 1]] if is_graded else right_grades[:0]
        for m in range(len(numbers)):
            if uses_grades[m]:
                ideals[m] = _value(numbers[m], np.arange(1, n_right + 1), n_right, cuts[m], -np.sort(-own), 1.0)
        ranks, grades = np.empty(width, np.int64), np.empty(width if is_graded else 0)
        for i in range(points):
            first = points * starts[q] + i * width
            for j in range(width):
                ranks[j] = before[first + j] + j + 1
            for j in range(len(grades)):
                grades[j] = own[places[first + j]]
            for m in range(len(numbers)):
                values[q, i, m] = _value(numbers[m], ranks, n_right, cuts[m], grades, ideals[m])
            top1[q, i] = width > 0 and ranks[0] == 1
