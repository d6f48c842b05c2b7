"""Retrieval metrics: functions of the ranks of a query's right answers. No I/O, no distances.

To add a metric, add its kernel and its ``MetricKind``, and name them in ``KINDS`` and in ``_value``.
tests/contracts/test_metrics.py finds it and asks for an oracle from outside. All metrics are compiled together, so
other distributions cannot add any.

Shapes: b queries, T points, M metrics.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, count_up_to, kernel, sum_of
from ray_backfill.engine.systems import GroundTruth, IntArray, rows_of

# (ranks, n_right, cut, grades, ideal) -> the metric of one ranking. Compiled.
#
# ranks: 1-based ranks (float64) of the query's right answers among all items that are not ignored, ascending; those
# above the cut-off may be missing. n_right: number of the query's right answers. cut: the last rank that counts.
# grades: of the right answers, in the order of ``ranks``; empty if all are 1. ideal: the value, computed with
# ideal = 1, of the ranking that has all right answers first, the highest grades at the top.
MetricKernel = Callable[[Array, int, int, Array, float], float]


@dataclass(frozen=True)
class MetricKind:
    """A metric, for every cut-off."""

    name: str
    """Name without its cut-off."""
    is_whole: bool
    """Whether the name alone, without @k, stands for the metric of the whole ranking."""
    meaning: str
    """One or two sentences for reports."""
    source: str
    """Definition that it follows."""
    value: MetricKernel
    uses_grades: bool = False
    """Whether ``grades`` and ``ideal`` count. They are computed for such metrics only."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The names that it takes: "mAP" and "mAP@k"."""
        return (self.name, f"{self.name}@k") if self.is_whole else (f"{self.name}@k",)


# In ``Rankings.before``: more wrong items than any gallery has.
ABSENT = (1 << 31) - 1
NO_PLACES: NDArray[np.int32] = np.empty(0, np.int32)


class Rankings(NamedTuple):
    """The rankings of b queries at T points.

    before: CSR of (T, W), for each query and point, the number of wrong items before the first, second, ... right
    answer; ABSENT for those that were not found. starts: (b + 1,) start of each query's W. places: like ``before``,
    which of the query's right answers it is, as an index into them; empty if nobody asked.
    """

    before: NDArray[np.int32]
    starts: IntArray
    places: NDArray[np.int32]


class GradedAnswers(NamedTuple):
    """The right answers of b queries. starts: (b + 1,), CSR. grades: aligned with them; empty if all count as 1.

    ideal: the grades of each query, in descending order. With grades, ``Rankings`` need places.
    """

    starts: IntArray
    grades: NDArray[np.float64]
    ideal: NDArray[np.float64]

    @classmethod
    def of(cls, truth: GroundTruth, queries: IntArray, with_grades: bool) -> "GradedAnswers":
        if truth.grades is None or not with_grades:
            return cls.graded(rows_of(truth.positives, truth.positive_starts, queries)[1], np.empty(0))
        grades, starts = rows_of(truth.grades, truth.positive_starts, queries)
        return cls.graded(starts, grades)

    @classmethod
    def graded(cls, starts: IntArray, grades: NDArray[np.float64]) -> "GradedAnswers":
        of_query = np.repeat(np.arange(len(starts) - 1), np.diff(starts) if len(grades) else 0)
        return cls(starts, grades, grades[np.lexsort((-grades, of_query))])


@kernel
def _sum_of_precisions(ranks: Array, cut: int) -> float:
    """The sum of the precision (share of right items) at the ranks of right answers, up to rank ``cut``."""
    n_found = count_up_to(ranks, cut)
    terms = np.empty(n_found)
    for j in range(np.uint64(n_found)):
        terms[j] = np.float64(np.int32(j + np.uint64(1))) / ranks[j]
    return sum_of(terms)


@kernel
def average_precision(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """The mean over all right answers of the precision (share of right items) at their ranks.

    Cut at k, right answers beyond rank k count as 0, and the sum is divided by the largest number of right answers that
    the first k results can hold. (trec_eval's ``map_cut_k`` divides by the number of all right answers instead.)
    """
    return _sum_of_precisions(ranks, cut) / min(n_right, cut)


AVERAGE_PRECISION = MetricKind(
    name="mAP",
    is_whole=True,
    meaning="Mean average precision: for each query, the precision (share of right items) at the rank of every right "
    "item, averaged; then the mean over queries. mAP@k counts the first k results only; it is 100 % if all of them are "
    "right, where AP@k can be less.",
    source="trec_eval, map; mAP@k: Google Landmarks v2 (Weyand et al., CVPR 2020), section 5.1",
    value=average_precision,
)


@kernel
def average_precision_of_all(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """The same sum over the first k results, divided by the number of all right answers."""
    return _sum_of_precisions(ranks, cut) / n_right


CUT_AVERAGE_PRECISION = MetricKind(
    name="AP",
    is_whole=False,
    meaning="Mean average precision of the first k results: for each query, the sum of the precision at the ranks of "
    "the right items among them, divided by the number of all its right items; then the mean over queries. It is below "
    "100 % wherever a query has more than k right items.",
    source="trec_eval, map_cut_k",
    value=average_precision_of_all,
)


@kernel
def precision(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """The share of right answers among the first k results."""
    return count_up_to(ranks, cut) / cut


PRECISION = MetricKind(
    name="P",
    is_whole=False,
    meaning="For each query, the share of right items among the first k results; then the mean over queries. It is "
    "below 100 % wherever a query has fewer than k right items.",
    source="trec_eval, P_k",
    value=precision,
)


@kernel
def cmc(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """Cumulative match characteristic: whether any right answer is among the first k (success, hit rate)."""
    return 1.0 if len(ranks) > 0 and ranks[0] <= cut else 0.0


CMC = MetricKind(
    name="CMC",
    is_whole=False,
    meaning="The share of queries with at least one right item among the first k results.",
    source="rank merge, section 4; trec_eval, success_k",
    value=cmc,
)


@kernel
def recall(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """The share of a query's right answers that are among the first k results."""
    n_found = 0
    while n_found < len(ranks) and ranks[n_found] <= cut:
        n_found += 1
    return n_found / n_right


RECALL = MetricKind(
    name="recall",
    is_whole=False,
    meaning="For each query, the share of all its right items that are among the first k results; then the mean over "
    "queries. It is below 100 % wherever a query has more than k right items.",
    source="trec_eval, recall_k",
    value=recall,
)


@kernel
def reciprocal_rank(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """1 / the rank of the first right answer. Cut at k, it is 0 if this rank is above k."""
    return 1.0 / ranks[0] if len(ranks) > 0 and ranks[0] <= cut else 0.0


RECIPROCAL_RANK = MetricKind(
    name="MRR",
    is_whole=True,
    meaning="Mean reciprocal rank: for each query, 1 / the rank of the first right item; then the mean over queries. "
    "MRR@k is 0 for a query without a right item among the first k results.",
    source="trec_eval, recip_rank",
    value=reciprocal_rank,
)


@kernel
def ndcg(ranks: Array, n_right: int, cut: int, grades: Array, ideal: float) -> float:
    """Normalised discounted cumulative gain: the sum of grade / log2(1 + rank), divided by that of the ideal ranking.

    The convention is that of trec_eval, and so of ir_measures' nDCG and nDCG@k: the gain of a right answer is its grade
    (linear; 1 without grades), any other item gains nothing, and the ideal ranking has all right answers of the query
    first, in descending order of their grades, cut at k as well. (The other convention, a gain of 2^grade - 1, is equal
    only without grades.)
    """
    total = 0.0
    for j in range(len(ranks)):
        if ranks[j] > cut:
            break
        total += (grades[j] if len(grades) > 0 else 1.0) / np.log2(1.0 + ranks[j])
    return total / ideal


NDCG = MetricKind(
    name="nDCG",
    is_whole=True,
    meaning="Normalised discounted cumulative gain: for each query, the sum of grade / log2(1 + rank) over its right "
    "items (the grade is 1 if they have none), as a share of that of the ideal ranking; then the mean over queries. "
    "nDCG@k counts the first k results only.",
    source="Järvelin and Kekäläinen, TOIS 2002, with the gain and discount of trec_eval, ndcg and ndcg_cut_k",
    value=ndcg,
    uses_grades=True,
)


# A metric's place is its number in ``_value``.
KINDS = (AVERAGE_PRECISION, CMC, RECALL, RECIPROCAL_RANK, CUT_AVERAGE_PRECISION, PRECISION, NDCG)
_NUMBER = {kind.name: number for number, kind in enumerate(KINDS)}
_WHOLE = ABSENT  # a right answer that is absent has a higher rank


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
    if number == 4:
        return average_precision_of_all(ranks, n_right, cut, grades, ideal)
    if number == 5:
        return precision(ranks, n_right, cut, grades, ideal)
    return ndcg(ranks, n_right, cut, grades, ideal)


@dataclass(frozen=True)
class Metric:
    """A parsed name: "mAP" (whole ranking, k is None) or "mAP@100" (cut at k). name: as the user wrote it."""

    name: str
    kind: str
    k: int | None

    @property
    def own_name(self) -> str:
        """Its name here: "nDCG@10" also where the user wrote "ndcg_cut_10"."""
        return self.kind if self.k is None else f"{self.kind}@{self.k}"

    @property
    def uses_grades(self) -> bool:
        """Whether grades of right answers make a difference to it."""
        return KINDS[_NUMBER[self.kind]].uses_grades


def metric_forms() -> list[str]:
    """Return the names of all metrics: "mAP", "mAP@k", "CMC@k", ..."""
    return [form for kind in KINDS for form in kind.forms]


# What ir_measures, ranx, trec_eval and MTEB call a metric, in lower case, with @k for _k and _at_k.
_ELSEWHERE = {
    "mAP": "map ap",
    "AP@k": "ap@k map@k map_cut@k",
    "MRR": "mrr rr recip_rank",
    "MRR@k": "mrr@k rr@k",
    "recall@k": "recall@k r@k",
    "CMC@k": "cmc@k success@k hit_rate@k",
    "P@k": "p@k precision@k",
    "nDCG": "ndcg",
    "nDCG@k": "ndcg@k ndcg_cut@k",
}
ALIASES = {word: form for form, words in _ELSEWHERE.items() for word in words.split()}


def parse_metric(name: str) -> Metric:
    """Parse the name of a metric, such as "mAP", "CMC@1", "Success@1" or "ndcg_cut_10" (see ``ALIASES``).

    Case counts in "mAP@k" alone: "map@k" and "MAP@k" are the AP@k of other libraries, which is not the same.

    Raises:
        InputError: The name has none of the known forms; the message lists them.
    """
    match = re.fullmatch(r"([^@]+?)(?:(?:@|_at_|_)([1-9][0-9]*))?", name)
    written = f"{match[1]}@k" if match and match[2] else name
    form = written if written in metric_forms() else ALIASES.get(written.lower())
    if match is None or form is None:
        raise InputError(
            f"unknown metric {name!r}; known: {', '.join(metric_forms())}, e.g. mAP@100, CMC@1, and their names in "
            "ir_measures, ranx, trec_eval and MTEB"
        )
    k = int(match[2]) if match[2] else None
    if k is not None and k >= 1 << 32:
        raise InputError(f"the cut-off of metric {name!r} exceeds any gallery; use a smaller k")
    return Metric(name, form.removesuffix("@k"), k)


def of_lists(name: str) -> str:
    """The metric that lists of first results measure in place of this one: mAP@100 for mAP, otherwise itself."""
    return "mAP@100" if ALIASES.get(name.lower()) == AVERAGE_PRECISION.name else name


def same_metric(name: str, other: str) -> bool:
    """Whether two names stand for one metric: "nDCG@10" and "ndcg_cut_10"."""
    return parse_metric(name).own_name == parse_metric(other).own_name


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
        np.array([metric.uses_grades for metric in metrics], np.bool_),
    )


@kernel
def measure(rankings: Rankings, right: GradedAnswers, codes: MetricCodes, values: Array, top1: Array) -> None:
    """Compute the metrics of some rankings, and whether their first items are right answers.

    values: (b, T, M). top1: (b, T).
    """
    before, starts, places = rankings
    right_starts, right_grades, descending = right
    numbers, cuts, uses_grades = codes
    n_queries, points = top1.shape
    is_graded = len(right_grades) > 0
    ideals = np.ones(len(numbers))
    for q in range(n_queries):
        width, n_right = starts[q + 1] - starts[q], right_starts[q + 1] - right_starts[q]
        of_query = right_grades[right_starts[q] : right_starts[q + 1]] if is_graded else right_grades[:0]
        for m in range(len(numbers)):
            if uses_grades[m]:
                best = descending[right_starts[q] : right_starts[q + 1]]
                ideals[m] = _value(numbers[m], np.arange(1.0, n_right + 1), n_right, cuts[m], best, 1.0)
        ranks, grades = np.empty(width), np.empty(width if is_graded else 0)
        for i in range(points):
            # Loops of unsigned indices and of int32 numbers are compiled to vectors on all processors.
            first = np.uint64(points * starts[q] + i * width)
            for j in range(np.uint64(width)):
                ranks[j] = np.float64(before[first + j]) + np.float64(np.int32(j + np.uint64(1)))
            for j in range(np.uint64(len(grades))):
                grades[j] = of_query[places[first + j]]
            for m in range(len(numbers)):
                values[q, i, m] = _value(numbers[m], ranks, n_right, cuts[m], grades, ideals[m])
            top1[q, i] = width > 0 and ranks[0] == 1
