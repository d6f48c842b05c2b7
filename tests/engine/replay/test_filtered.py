"""A query that finds only items of its own part: as if all other items were left out of its ranking."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay import NOTHING, Served, find_first, replay, replay_pairs
from ray_backfill.engine.systems import Filter, GroundTruth, RetrievalSystem, UpgradePair
from tests.engine.replay.test_cascade import invented

METRICS = ("mAP", "CMC@1", "nDCG@3", "recall@5")
CUT = ("CMC@1", "mAP@4")


def ignoring_others(truth: GroundTruth, found: Filter) -> GroundTruth:
    """The same without a filter: every query ignores all items of other parts."""
    positives, ignored, grades = [], [], []
    for q in range(truth.n_queries):
        others = np.flatnonzero(found.of_item != found.of_query[q])
        right = truth.positives_of(q)
        first = truth.positive_starts[q]
        given = np.ones(len(right)) if truth.grades is None else truth.grades[first : first + len(right)]
        ignored.append(np.union1d(truth.ignored_of(q), others))
        positives.append(right)
        grades.append(given)
    return GroundTruth.from_positives(
        positives, ignored, n_gallery=truth.n_gallery, grades=None if truth.grades is None else grades
    )


def parts(rng: np.random.Generator, truth: GroundTruth, number: int) -> Filter:
    """Part 1 has no queries, and the last part no items."""
    of_query = rng.choice(np.setdiff1d(np.arange(number + 1), [1]), truth.n_queries)
    return Filter(of_query, rng.integers(0, number, truth.n_gallery))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled"])
@pytest.mark.parametrize("metrics", [METRICS, CUT], ids=["whole", "cut"])
def test_it_equals_ignoring_the_items_of_other_parts(seed: int, switch: str, metrics: tuple[str, ...]) -> None:
    rng = np.random.default_rng(seed)
    n_gallery = 900 if metrics is CUT else 80
    old, new, truth = invented(seed, n_gallery)
    truth = truth.with_weights(rng.uniform(1, 3, truth.n_queries))
    found = parts(rng, truth, int(rng.integers(2, 5)))
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    pair = UpgradePair(old, new, switch)  # type: ignore[arg-type]
    filtered = replay(pair, truth.with_filter(found), orders, 6, metrics, "l2")
    ignoring = ignoring_others(truth, found).with_weights(truth.weights)
    wanted = replay(pair, ignoring, orders, 6, metrics, "l2")
    for order in orders:
        assert filtered[order].n_skipped == wanted[order].n_skipped
        np.testing.assert_array_equal(filtered[order].scored, wanted[order].scored)
        np.testing.assert_array_equal(filtered[order].top1_correct, wanted[order].top1_correct)
        for metric in metrics:
            np.testing.assert_array_equal(filtered[order].per_query[metric], wanted[order].per_query[metric])
            np.testing.assert_array_equal(filtered[order].values(metric), wanted[order].values(metric))


@pytest.mark.parametrize("merge", ["raw", "rrf"])
def test_cascades_and_fusions_stay_in_their_part(merge: str) -> None:
    rng = np.random.default_rng(5)
    old, new, truth = invented(5, 90)
    found = parts(rng, truth, 3)
    recalls = 8 if merge == "raw" else 0
    order: dict[str, NDArray[np.int64]] = {"a": rng.permutation(90)}
    if recalls:
        served = Served(0, 1, order, "at_end", recalls=recalls)
        (filtered,), (wanted,) = (
            replay_pairs([old, new], [served], each, 5, METRICS, "l2")
            for each in (truth.with_filter(found), ignoring_others(truth, found))
        )
        assert filtered["a"].embedded is not None
        np.testing.assert_array_equal(filtered["a"].embedded, wanted["a"].embedded)
    else:
        filtered, wanted = (
            replay(UpgradePair(old, new), each, order, 5, METRICS, "l2", merge=merge)
            for each in (truth.with_filter(found), ignoring_others(truth, found))
        )
        # A fusion counts the ranks of the items that a query can find; ignored items do not take a rank either.
    for metric in METRICS:
        np.testing.assert_array_equal(filtered["a"].per_query[metric], wanted["a"].per_query[metric])


@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled"])
def test_first_items_stay_in_their_part(switch: str) -> None:
    rng = np.random.default_rng(9)
    old, new, truth = invented(9, 90)
    found = parts(rng, truth, 3)
    served = Served(0, 1, {"a": rng.permutation(90)}, switch)  # type: ignore[arg-type]
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.with_filter(found).skipped)
    filtered, wanted = (
        find_first([old, new], served, each, scored, 6, "l2")["a"]
        for each in (truth.with_filter(found), ignoring_others(truth, found))
    )
    np.testing.assert_array_equal(filtered.item, wanted.item)
    np.testing.assert_array_equal(filtered.is_right, wanted.is_right)
    there = filtered.item != NOTHING
    np.testing.assert_array_equal(filtered.is_forward[there], wanted.is_forward[there])


def test_without_a_right_answer_in_any_part_there_is_nothing_to_measure() -> None:
    system = RetrievalSystem(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
    truth = GroundTruth.from_positives([[1], [0]], n_gallery=2)
    found = truth.with_filter(Filter(np.array([0, 1]), np.array([0, 1])))
    assert found.skipped.tolist() == [0, 1]
    with pytest.raises(InputError, match="in its part of the gallery"):
        replay(UpgradePair(system, system), found, "random", 2)
