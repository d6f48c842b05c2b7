"""A query that finds only items of its own part: as if all other items were left out of its ranking."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay import Served, find_first, replay, replay_moment
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import Filter, GroundTruth, RetrievalSystem, UpgradePair
from tests.engine.replay.cases import assert_same, assert_same_lists, random_parts, random_truth

METRICS = ("mAP", "CMC@1", "nDCG@3", "recall@5")


def invented(seed: int) -> tuple[RetrievalSystem, RetrievalSystem, GroundTruth, Filter]:
    """Many ties, which positions decide, and three parts."""
    rng = np.random.default_rng(seed)
    old, new = (RetrievalSystem(rng.integers(-3, 4, (9, 3)) * 1.0, rng.integers(-3, 4, (90, 3)) * 1.0) for _ in "ab")
    truth = random_truth(rng, 9, 90, graded=bool(seed % 2))
    return old, new, truth, random_parts(rng, truth, 3)


def ignoring_others(truth: GroundTruth, found: Filter) -> GroundTruth:
    """The same without a filter: every query ignores all items of other parts."""
    others = found.of_query[:, None] != found.of_item
    return truth.without(*np.nonzero(others))


def test_fusions_stay_in_their_part() -> None:
    """A fusion counts the ranks of the items that a query can find; ignored items do not take a rank either."""
    old, new, truth, found = invented(5)
    filtered, wanted = (
        replay(UpgradePair(old, new), each, "random", 5, METRICS, "l2", merge="rrf")
        for each in (truth.with_filter(found), ignoring_others(truth, found))
    )
    assert_same(filtered, wanted, METRICS)


@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled"])
def test_first_items_stay_in_their_part(switch: str) -> None:
    rng = np.random.default_rng(9)
    old, new, truth, found = invented(9)
    served = Served(0, 1, {"a": rng.permutation(90)}, switch)  # type: ignore[arg-type]
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.with_filter(found).skipped)
    filtered, wanted = (
        find_first([old, new], served, each, scored, 6, "l2")["a"]
        for each in (truth.with_filter(found), ignoring_others(truth, found))
    )
    assert_same_lists(filtered, wanted)


def test_lists_of_one_moment_stay_in_their_part() -> None:
    old, new, truth, found = invented(3)
    order = np.random.default_rng(3).permutation(90)
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.with_filter(found).skipped)
    for there in (0, 31, 90):
        filtered, wanted = (
            lists_at(UpgradePair(old, new), each, scored, order, there, 20, "l2")
            for each in (truth.with_filter(found), ignoring_others(truth, found))
        )
        assert_same_lists(filtered, wanted)


def test_a_moment_of_any_items_stays_in_its_part() -> None:
    old, new, truth, found = invented(4)
    is_backfilled = np.random.default_rng(4).random(90) < 0.4
    filtered, wanted = (
        replay_moment(UpgradePair(old, new), each, is_backfilled, METRICS, "l2")
        for each in (truth.with_filter(found), ignoring_others(truth, found))
    )
    np.testing.assert_equal(filtered, wanted)


def test_without_a_right_answer_in_any_part_there_is_nothing_to_measure() -> None:
    system = RetrievalSystem(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
    truth = GroundTruth.from_positives([[1], [0]], n_gallery=2)
    found = truth.with_filter(Filter(np.array([0, 1]), np.array([0, 1])))
    assert found.skipped.tolist() == [0, 1]
    with pytest.raises(InputError, match="in its part of the gallery"):
        replay(UpgradePair(system, system), found, "random", 2)
    with pytest.raises(InputError, match="in its part of the gallery"):
        replay_moment(UpgradePair(system, system), found, np.array([True, False]), "mAP")
