"""Metrics of rankings that are small enough to check by hand, and their names."""

import math

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.metrics import GradedAnswers, Rankings, measure, metric_codes, metric_forms, parse_metric


def value(ranks: list[int], name: str, n_right: int = 3, grades: list[float] | None = None) -> float:
    """The metric of one ranking. grades: of all right answers; the found ones are the first of them."""
    values, top1 = np.empty((1, 1, 1)), np.empty((1, 1), np.bool_)
    before, places = np.array(ranks, np.int64) - np.arange(len(ranks)) - 1, np.arange(len(ranks), dtype=np.int32)
    right = GradedAnswers.graded(np.array([0, n_right]), np.array(grades or [], np.float64))
    measure(
        Rankings(before, np.array([0, len(ranks)]), places), right, metric_codes([parse_metric(name)]), values, top1
    )
    assert top1[0, 0] == (ranks[:1] == [1])
    return float(values[0, 0, 0])


def log2(number: int) -> float:
    return math.log(number) / math.log(2)


IDEAL = 1 + 1 / log2(3) + 1 / log2(4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mAP", (1 / 1 + 2 / 3 + 3 / 10) / 3),
        ("mAP@3", (1 / 1 + 2 / 3) / 3),
        ("mAP@2", 1 / 2),  # divided by min(P, k) = 2: the GLDv2 definition
        ("CMC@1", 1),
        ("recall@1", 1 / 3),
        ("recall@9", 2 / 3),
        ("recall@10", 1),
        ("MRR", 1),
        ("nDCG", (1 + 1 / log2(4) + 1 / log2(11)) / IDEAL),
        ("nDCG@3", (1 + 1 / log2(4)) / IDEAL),
        ("nDCG@2", 1 / (1 + 1 / log2(3))),
    ],
)
def test_values_by_hand(name: str, expected: float) -> None:
    assert value([1, 3, 10], name) == pytest.approx(expected)


def test_the_first_right_answer_decides_cmc_and_mrr() -> None:
    assert value([3, 4], "CMC@2") == value([3, 4], "MRR@2") == 0
    assert value([1, 9], "CMC@2") == 1
    assert value([3, 4], "MRR") == value([3, 4], "MRR@3") == 1 / 3


@pytest.mark.parametrize("form", metric_forms())
def test_a_ranking_without_a_right_answer_is_worth_nothing(form: str) -> None:
    assert value([], form.replace("@k", "@2")) == 0


def test_graded_gains_by_hand() -> None:
    """Grades 1 and 4 at ranks 1 and 3; the third right answer, of grade 2, is missing."""
    found = 1 + 4 / log2(4)
    assert value([1, 3], "nDCG", grades=[1, 4, 2]) == pytest.approx(found / (4 + 2 / log2(3) + 1 / log2(4)))
    assert value([1, 3], "nDCG@2", grades=[1, 4, 2]) == pytest.approx(1 / (4 + 2 / log2(3)))
    assert value([1, 3], "mAP", grades=[1, 4, 2]) == value([1, 3], "mAP")


@pytest.mark.parametrize(
    "name", ["CMC", "recall", "CMC@0", "mAP@", "mAP@k", "mAP@-1", "CMC@1.5", "P", "rr@", "err@5", "mAP@5@5", "", "@3"]
)
def test_unknown_names_list_the_known_forms(name: str) -> None:
    with pytest.raises(InputError) as error:
        parse_metric(name)
    known = "mAP, mAP@k, CMC@k, recall@k, MRR, MRR@k, AP@k, P@k, nDCG, nDCG@k"
    assert str(error.value).startswith(f"unknown metric {name!r}; known: {known}, e.g.")
