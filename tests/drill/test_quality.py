"""Quality of live answers against plain loops over full sorts, and hand-computed numbers."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.drill import results
from ray_backfill.drill.plan import NEW, NOWHERE, OLD
from ray_backfill.engine.merges import RAW, Merge, fit_merge
from ray_backfill.engine.metrics import metric_forms
from ray_backfill.engine.systems import Filter, GroundTruth, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import all_methods
from ray_backfill.learn.sides import Sides
from ray_backfill.pipeline.lexical import TextLists
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.live import Answering
from ray_backfill.pipeline.rerank import PairScores
from ray_backfill.pipeline.service import Service
from tests import reference
from tests.drill._rankings import rankings

METRICS = ("mAP@1", "mAP@3", "mAP@20", "CMC@1", "CMC@4")
State = NDArray[np.uint8]
Lists = Sequence[Sequence[int]]


def system(rng: np.random.Generator, n_queries: int, n_items: int, dim: int) -> RetrievalSystem:
    """A pair with small integer vectors, so that many distances tie."""
    query, gallery = (rng.integers(1, 4, size=(n, dim)).astype(np.float32) for n in (n_queries, n_items))
    return RetrievalSystem(query, gallery)


def random_pair(rng: np.random.Generator, n_queries: int, n_items: int) -> UpgradePair:
    return UpgradePair(system(rng, n_queries, n_items, 2), system(rng, n_queries, n_items, 3))


@cache
def quantile_merge() -> Merge:
    rng = np.random.default_rng(7)
    old, new = (rng.integers(1, 4, size=(30, dim)).astype(np.float32) for dim in (2, 3))
    return fit_merge("quantile", UpgradePair(RetrievalSystem(old, old), RetrievalSystem(new, new)), None, "cosine", 0)


def exact_answers(sides: Sides, pair: UpgradePair, state: State, k: int, parts: Filter | None = None) -> Any:
    return results.exact_answers(sides, pair, state, Answering.plain(sides.merge, k), parts)


def by_loop(metric: str, ranked: Lists, positives: Lists, ignored: Lists, state: State) -> float:
    """mAP@k (GLDv2) and CMC@k by definition over the items in service, without queries that have no positive."""
    name, cut = metric.split("@")
    k, values = int(cut), []
    for items, right, skipped in zip(ranked, positives, ignored, strict=True):
        there = [item for item in right if state[item] != NOWHERE and item not in skipped]
        if not there:
            continue
        found, total = 0, 0.0
        for rank, item in enumerate([item for item in items if item not in skipped][:k], start=1):
            if item in there:
                found += 1
                total += found / rank
        values.append(total / min(len(there), k) if name == "mAP" else float(found > 0))
    return float(sum(map(Fraction, values), Fraction(0))) / len(values) if values else math.nan


@st.composite
def worlds(draw: st.DrawFn) -> tuple[UpgradePair, list[list[int]], list[list[int]], State]:
    """A pair, each query's positives and ignored items (some have none), and each item's state."""
    n_queries, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    what = rng.choice(3, size=(n_queries, n_items), p=[0.5, 0.25, 0.25])  # neither, right, ignored
    what[rng.random(n_queries) < 0.2] = 0
    positives, ignored = ([np.flatnonzero(row == kind).tolist() for row in what] for kind in (1, 2))
    state = rng.choice([NOWHERE, OLD, NEW], size=n_items).astype(np.uint8)
    return random_pair(rng, n_queries, n_items), positives, ignored, state


@given(world=worlds(), is_mapped=st.booleans(), n_parts=st.integers(0, 3))
def test_exact_and_live_quality_are_those_of_a_full_sort(world: Any, is_mapped: bool, n_parts: int) -> None:
    """Equal to the last bit; with exact answers of the depth ``depth``, live quality equals exact quality.

    n_parts: of a filter; 0: none. Some parts have queries or items only.
    """
    pair, positives, ignored, state = world
    merge = quantile_merge() if is_mapped else RAW
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=len(state))
    ranked = rankings(pair, state, merge)
    if n_parts:
        rng = np.random.default_rng(len(state))
        parts = Filter(*(rng.integers(0, n_parts, size) for size in (pair.n_queries, len(state))))
        truth = truth.with_filter(parts)
        ranked, positives = (
            [
                [item for item in row if parts.of_item[item] == part]
                for row, part in zip(of, parts.of_query, strict=True)
            ]
            for of in (ranked, positives)
        )
    expected = {metric: by_loop(metric, ranked, positives, ignored, state) for metric in METRICS}
    np.testing.assert_equal(results.exact_quality(pair, truth, state, METRICS, "cosine", merge), expected)
    sides = Sides(all_methods()["rm_naive"], None, merge, "cosine", {"old": 2, "new": 3})
    for metrics in (METRICS, ("mAP@3",), ("CMC@1",)):
        answers = exact_answers(sides, pair, state, results.depth(metrics, truth), truth.filter)
        live = results.live_quality(answers, results.only_alive(truth, state), metrics)
        np.testing.assert_equal(live, {metric: expected[metric] for metric in metrics})


@given(world=worlds(), is_weighted=st.booleans())
def test_live_quality_is_exact_for_every_metric_with_grades_and_weights(world: Any, is_weighted: bool) -> None:
    """Equal to the last bit; and up to rounding to plain loops over full sorts."""
    pair, positives, ignored, state = world
    metrics = tuple(form.replace("@k", f"@{k}") for form in metric_forms() if "@k" in form for k in (1, 3, 20))
    rng = np.random.default_rng(len(state))
    grades = [rng.integers(1, 4, len(row)).astype(np.float64) for row in positives]
    weights = (rng.integers(1, 4, len(positives)) if is_weighted else np.ones(len(positives))).astype(np.float64)
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=len(state), grades=grades).with_weights(weights)
    exact = results.exact_quality(pair, truth, state, metrics, "cosine", RAW)
    sides = Sides(all_methods()["rm_naive"], None, RAW, "cosine", {"old": 2, "new": 3})
    answers = exact_answers(sides, pair, state, results.depth(metrics, truth))
    np.testing.assert_equal(results.live_quality(answers, results.only_alive(truth, state), metrics), exact)
    gains = np.zeros((len(positives), len(state)))
    for row, items, own in zip(gains, positives, grades, strict=True):
        row[items] = own
    ranked = [
        [float(row[item]) for item in items if item not in skipped]
        for row, items, skipped in zip(gains, rankings(pair, state, RAW), ignored, strict=True)
    ]
    if any(map(any, ranked)):
        expected = {metric: reference.mean_score(ranked, weights, metric) for metric in metrics}
        assert exact == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60)
@given(
    world=worlds(), separate=st.booleans(), share=st.sampled_from([0.0, 0.3, 1.0]), n_parts=st.integers(1, 3)
)  # fmt: skip
def test_quality_behind_a_service_is_that_of_its_answers(
    world: Any, separate: bool, share: float, n_parts: int
) -> None:
    """Equal to the last bit, with ignored items, weights, parts, a text list and a re-ranker, at any moment."""
    pair, positives, ignored, state = world
    n, rng = len(state), np.random.default_rng(len(state))
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=n)
    parts = Filter(rng.integers(0, n_parts, len(positives)), rng.integers(0, n_parts, n))
    truth = truth.with_weights(rng.integers(1, 4, len(positives)).astype(np.float64)).with_filter(parts)
    state = np.where(rng.random(n) < share, NEW, OLD).astype(np.uint8)
    listed = [
        [i for i in rng.permutation(n).tolist() if i not in skipped and parts.of_item[i] == part][:3]
        for skipped, part in zip(ignored, parts.of_query, strict=True)
    ]
    text = TextLists(
        np.array([(row + [-1] * 3)[:3] for row in listed]),
        np.array([([3.0, 2.0, 2.0][: len(row)] + [-np.inf] * 3)[:3] for row in listed]),
    )
    query, item = np.divmod(np.arange(len(positives) * n), n)
    relevance = PairScores(query, item, rng.integers(0, 3, len(item)).astype(np.float64))
    service = Service(Stages(4, 5, Fusion("minmax", 60, (1, 1), separate, 3, 6), 3), text, relevance)
    sides = Sides(all_methods()["rm_naive"], None, quantile_merge(), "cosine", {"old": 2, "new": 3})
    metrics = ("mAP@4", "CMC@1", "nDCG@6")
    exact = results.exact_quality(pair, truth, state, metrics, "cosine", sides.merge, service)
    answers = results.exact_answers(sides, pair, state, Answering(sides.merge, service, 6, truth), truth.filter)
    np.testing.assert_equal(results.live_quality(answers, truth, metrics), exact)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_exact_answers_are_those_of_a_full_sort(is_mapped: bool) -> None:
    """Covers fewer items than requested, and nearly all items in one partition."""
    rng, merge = np.random.default_rng(1), quantile_merge() if is_mapped else RAW
    pair = random_pair(rng, 9, 30)
    sides = Sides(all_methods()["rm_naive"], None, merge, "cosine", {"old": 2, "new": 3})
    for p_old, p_new in ((0.4, 0.4), (1.0, 0.0), (0.0, 1.0), (0.05, 0.9), (0.9, 0.05)):
        state = rng.choice([NOWHERE, OLD, NEW], size=30, p=[1 - p_old - p_new, p_old, p_new]).astype(np.uint8)
        ranked = rankings(pair, state, merge)
        for k in (1, 7, 40):
            expected = [(items + [-1] * k)[:k] for items in ranked]
            np.testing.assert_array_equal(exact_answers(sides, pair, state, k), expected)


def test_without_living_positives_there_is_no_quality() -> None:
    pair = random_pair(np.random.default_rng(0), 2, 4)
    truth = GroundTruth.from_positives([[0], [0, 1]], n_gallery=4)
    for state in ([NOWHERE, NOWHERE, OLD, NEW], [NOWHERE] * 4):
        values = results.exact_quality(pair, truth, np.array(state, np.uint8), ("mAP@2", "CMC@1"), "cosine", RAW)
        assert list(values) == ["mAP@2", "CMC@1"]
        assert all(math.isnan(value) for value in values.values())
    nothing = GroundTruth.from_positives([[], []], n_gallery=4)
    assert math.isnan(results.live_quality(np.zeros((2, 3), np.int64), nothing, ["mAP@2"])["mAP@2"])


def test_live_quality_by_hand() -> None:
    """Query 0: item 7 is ignored, so positives 2 and 5 have ranks 1 and 3. Query 1 finds none; query 2 has none."""
    truth = GroundTruth.from_positives([[2, 5, 6], [0], []], [[7], [3], [1]], n_gallery=8)
    answers = np.array([[7, 2, 1, 5, 3], [3, 4, 5, -1, -1], [1, 2, 3, 4, 5]])
    values = results.live_quality(answers, truth, ["mAP@2", "mAP@4", "CMC@1"])
    assert values == {"mAP@2": (1 / 2) / 2, "mAP@4": ((1 + 2 / 3) / 3) / 2, "CMC@1": 0.5}


def test_deleted_items_are_neither_right_nor_ignored() -> None:
    truth = GroundTruth.from_positives([[0, 1, 2], [4], [3]], [[3, 5], [], [0, 1]], n_gallery=6)
    state = np.array([OLD, NEW, NOWHERE, NOWHERE, NOWHERE, OLD], np.uint8)
    there = results.only_alive(truth, state)
    assert [there.positives_of(q).tolist() for q in range(3)] == [[0, 1], [], []]
    assert [there.ignored_of(q).tolist() for q in range(3)] == [[5], [], [0, 1]]
    assert there.n_gallery == 6
    assert there.skipped.tolist() == [1, 2]
    answers = np.array([[5, 0, 1], [0, 1, 5], [0, 1, 5]])
    assert results.live_quality(answers, there, ["mAP@3"]) == {"mAP@3": 1.0}, "2 of 2: the third is gone"


def test_answers_are_deep_enough_for_what_does_not_count() -> None:
    truth = GroundTruth.from_positives([[0], [1], [2]], [[1, 2], [], [3, 4, 5]], n_gallery=6)
    assert results.depth(["CMC@1", "mAP@5", "CMC@4"], truth) == 5 + 3
    with pytest.raises(InputError, match="metrics with a cutoff"):
        results.depth(["mAP@5", "mAP"], truth)


def test_the_mean_is_correctly_rounded() -> None:
    assert results.stable_mean(np.array([1e16, 1.0, -1e16])) == 1 / 3
    assert results.stable_mean(np.full(10, 0.1)) == 0.1
    assert results.stable_mean(np.array([1e16, 1.0, -1e16]), np.array([0.5, 1.0, 0.5])) == 1 / 2
    assert math.isnan(results.stable_mean(np.empty(0)))


def test_recall_by_hand() -> None:
    """The last item is NEW: the padding position -1 must not be taken for it."""
    state = np.array([OLD, OLD, NEW, NEW, NOWHERE, NEW], np.uint8)
    exact = np.array([[0, 2, 1], [3, 0, 5], [2, -1, -1]])
    live = np.array([[2, 0, 3], [1, 3, -1], [-1, -1, -1]])
    assert results.recall(live, exact, state, OLD) == 1 / 3, "of 0, 1 and 0 the first"
    assert results.recall(live, exact, state, NEW) == 2 / 4, "of 2, 3, 5 and 2 the first and second"
    only_old = np.array([[0, 1, -1]])
    assert results.recall(only_old, only_old, state, OLD) == 1.0
    assert math.isnan(results.recall(only_old, only_old, state, NEW))
