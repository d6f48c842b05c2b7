"""Ranked lists against literal loops and full sorts, with many ties."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_backfill.engine.lists import (
    RankedLists,
    best_first,
    joined,
    measure_lists,
    merge_lists,
    merge_sides,
    rank_lists,
)
from ray_backfill.engine.merges import RAW, Merge, ScoreMap
from ray_backfill.engine.metrics import Rankings
from ray_backfill.engine.systems import GroundTruth
from tests import reference
from tests.engine.replay.cases import assert_same_lists
from tests.reference import Answer

PADDING: Answer = (np.inf, np.inf, -1, False)


def as_lists(answers: Sequence[Sequence[Answer]], k: int) -> RankedLists:
    """One list for each query, filled up to k."""
    rows = [[*row, *[PADDING] * (k - len(row))] for row in answers]
    of_fields = zip((2, 1, 0, 3), (np.int64, np.float32, np.float64, np.bool_), strict=True)
    return RankedLists(*(np.array([[each[i] for each in row] for row in rows], dtype) for i, dtype in of_fields))


@st.composite
def shares(draw: st.DrawFn) -> tuple[list[list[list[Answer]]], int]:
    """(share of the items, query, answer), each list sorted and perhaps empty; and how many answers are asked for."""
    n_shares, n_queries = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    lists: list[list[list[Answer]]] = [[[] for _ in range(n_queries)] for _ in range(n_shares)]
    for q in range(n_queries):
        for item in rng.permutation(20)[: rng.integers(0, 15)].tolist():
            answer = (float(rng.integers(0, 3)), float(rng.integers(0, 3)), item, bool(rng.integers(0, 2)))
            lists[rng.integers(0, n_shares)][q].append(answer)
    return [[sorted(row) for row in share] for share in lists], draw(st.integers(1, 25))


@given(shares())
def test_merged_lists_are_those_of_a_full_sort(given_lists: tuple[list[list[list[Answer]]], int]) -> None:
    """Scores tie, then distances, then items decide; lists of any length, writable or not."""
    lists, k = given_lists
    longest = max(len(row) for share in lists for row in share)
    given_arrays = [as_lists(share, longest) for share in lists]
    for values in given_arrays[0]:
        values.flags.writeable = False
    found = merge_lists(given_arrays, k)
    depth = k if len(lists) > 1 else longest  # a single list stays as it is
    expected = as_lists([reference.merged(rows, depth) for rows in zip(*lists, strict=True)], depth)
    assert_same_lists(found, expected)
    assert found.are_distinct


def test_an_item_that_occurs_twice_is_seen() -> None:
    assert as_lists([[(1.0, 1.0, 4, True)], []], 3).are_distinct, "padding is no item"
    assert not as_lists([[], [(1.0, 1.0, 4, True), (1.0, 2.0, 4, False)]], 3).are_distinct


@pytest.mark.parametrize("batches", [[2], [1, 2], [2, 1, 1]])
def test_batches_of_queries_are_joined(batches: list[int]) -> None:
    rows: list[list[Answer]] = [[(float(q), 1.0, q, False)] for q in range(sum(batches))]
    whole, edges = as_lists(rows, 2), np.cumsum([0, *batches])
    parts = [as_lists(rows[a:b], 2) for a, b in pairwise(edges)]
    assert_same_lists(joined(parts), whole)


@pytest.mark.parametrize(
    "merge",
    [
        RAW,
        Merge(
            "steps",
            ScoreMap(np.arange(4.0), np.array([2.0, 2, 3, 3])),
            ScoreMap(np.arange(4.0), np.array([0.0, 2, 2, 9])),
        ),
    ],
)
@pytest.mark.parametrize("k", [1, 4, 50])
def test_what_two_systems_find_is_merged_by_score_then_distance_then_item(merge: Merge, k: int) -> None:
    """Steps of the score maps tie within a system and across both."""
    rng = np.random.default_rng(k)
    n_queries, items = 5, rng.permutation(40)
    sides: list[RankedLists] = []
    answers: list[list[Answer]] = [[] for _ in range(n_queries)]
    for is_forward, own in ((False, items[:17]), (True, items[17:])):
        of_query, item = (grid.ravel() for grid in np.meshgrid(np.arange(n_queries), own))
        distance = rng.integers(0, 4, len(item)).astype(np.float32)
        sides.append(best_first(of_query, distance, item, n_queries, k))
        scores = merge.scores(distance, np.full(len(item), is_forward))
        for q, score, d, g in zip(of_query, scores, distance, item, strict=True):
            answers[q].append((float(score), float(d), int(g), is_forward))
    found = merge_sides(sides[0], sides[1], merge, k)
    expected = as_lists([reference.merged([row], k) for row in answers], k)
    # Padding has no side.
    assert_same_lists(found._replace(is_forward=found.is_forward & (found.item >= 0)), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_graded", [False, True])
def test_metrics_of_lists_are_those_of_a_walk_down_each(seed: int, is_graded: bool) -> None:
    """Lists of several moments, some shorter than others, of some of the queries in any order."""
    rng = np.random.default_rng(seed)
    metrics = ("mAP@5", "CMC@1", "recall@3", "MRR@4", "nDCG@5")
    kind = rng.permuted(np.repeat([[0] * 13 + [1] * 5 + [2] * 4], 6, axis=0), axis=1)  # wrong, right, ignored
    gains = np.where(kind == 1, rng.integers(1, 4, kind.shape) if is_graded else 1, 0).astype(np.float64)
    positives, ignored = ([np.flatnonzero(row == which) for row in kind] for which in (1, 2))
    grades = [row[right] for row, right in zip(gains, positives, strict=True)] if is_graded else None
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=22, grades=grades)
    queries = rng.permutation(6)[:4]
    item = np.stack([[rng.permutation(22)[:9] for _ in range(3)] for _ in queries])
    item = np.where(np.arange(9) < rng.integers(0, 10, (4, 3, 1)), item, -1)
    values, first_is_right = measure_lists(item, truth, queries, metrics)
    for row, q in enumerate(queries):
        for i in range(3):
            listed = [g for g in item[row, i].tolist() if g >= 0 and kind[q, g] != 2]
            missed = [float(gains[q, g]) for g in positives[q] if g not in listed]
            for m, metric in enumerate(metrics):
                expected = reference.score([float(gains[q, g]) for g in listed], metric, missed)
                assert values[row, i, m] == pytest.approx(expected, abs=1e-12), metric
            assert first_is_right[row, i] == (bool(listed) and kind[q, listed[0]] == 1)
    one_moment, _ = measure_lists(item[:, 1], truth, queries, metrics)
    np.testing.assert_array_equal(one_moment[:, 0], values[:, 1])


def test_rankings_that_are_cut_take_the_first_right_answers_only() -> None:
    """And keep what they had at further points."""
    truth = GroundTruth.from_positives([[0, 1, 2], [3]], n_gallery=10)
    rankings = Rankings(np.full(4, 7), np.array([0, 1, 2]), np.full(4, 5, np.int32))
    rank_lists(np.array([[[1, 0, 2]], [[9, 3, 8]]]), truth, np.arange(2), rankings)
    assert rankings.before.tolist() == [0, 7, 1, 7], "two points of each query"
    assert rankings.places.tolist() == [1, 5, 0, 5]
