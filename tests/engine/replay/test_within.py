"""Numbers of items within a cut-off, against a loop over every pair at every moment."""

import math

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.engine.replay import count_within, segment_of_item, within
from ray_backfill.engine.systems import RetrievalSystem
from tests.engine.replay.cases import gains_of, random_pair, random_truth, weights_of
from tests.engine.replay.test_filtered import ignoring_others, invented
from tests.reference import distances

POINTS = 5


def counted(
    system: RetrievalSystem, truth: rb.GroundTruth, cutoffs: np.ndarray, orders: np.ndarray, distance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Backfilled and waiting items, as ``Within`` has them: pair by pair, moment by moment."""
    d, gains, weights = distances(system.query, system.gallery, distance), gains_of(truth), weights_of(truth)
    shape = (2, 2, len(orders), POINTS, len(cutoffs))
    found = np.zeros(shape)
    for r, order in enumerate(orders):
        for i in range(POINTS):
            done = set(order[: math.floor(i * len(order) / (POINTS - 1))].tolist())
            for q, g in np.ndindex(*d.shape):
                if not (gains[q] > 0).any() or np.isnan(gains[q, g]):
                    continue
                for k, cutoff in enumerate(cutoffs):
                    if d[q, g] <= cutoff:
                        side = 0 if g in done else 1
                        found[side, 0, r, i, k] += weights[q]
                        found[side, 1, r, i, k] += weights[q] * (gains[q, g] > 0)
    backfilled, waiting = found / weights[np.setdiff1d(np.arange(len(weights)), truth.skipped)].max()
    return backfilled, waiting


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_pairs_within_each_cutoff_are_counted_at_every_moment(
    distance: str, tied: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(within, "_BLOCK_QUERIES", 3)  # several blocks
    rng = np.random.default_rng(5)
    system = random_pair(rng, 8, 23, tied).forward
    truth = random_truth(rng, 8, 23, weighted=weighted)
    assert len(truth.ignored)
    some = np.unique(distances(system.query, system.gallery, distance))
    farthest = np.finfo(np.float32).max
    cutoffs = np.concatenate([rng.choice(some, 4, replace=False), [-farthest, farthest]]).astype(np.float32)
    orders = np.stack([rng.permutation(23) for _ in range(2)])
    segments = np.stack([segment_of_item(order, POINTS, "progressively") for order in orders])
    found = count_within(system, truth, cutoffs, segments, POINTS, distance)
    backfilled, waiting = counted(system, truth, found.cutoffs, orders, distance)
    assert backfilled.any()
    assert not backfilled[..., 0].any(), "nothing is within the smallest cut-off"
    np.testing.assert_allclose(found.backfilled, backfilled, rtol=1e-14)
    np.testing.assert_allclose(found.waiting, waiting, rtol=1e-14)


def test_an_item_exactly_at_a_cutoff_is_within_and_the_next_number_is_not() -> None:
    query, gallery = np.array([[1.0, 0.0]]), np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
    truth = rb.GroundTruth.from_positives([[0]], n_gallery=3)
    at = np.float32(1) - np.float32(0.6)
    cutoffs = np.array([np.nextafter(at, np.float32(0)), at], np.float32)
    segments = np.stack([segment_of_item(np.arange(3), 2, "progressively")])
    found = count_within(RetrievalSystem(query, gallery), truth, cutoffs, segments, 2, "cosine")
    assert found.waiting[:, 0, 0].tolist() == [[1, 2], [0, 1]]
    assert found.backfilled[:, 0, 1].tolist() == [[1, 2], [0, 1]]


def test_queries_without_a_right_answer_are_not_counted() -> None:
    rng = np.random.default_rng(1)
    system = random_pair(rng, 3, 6, tied=True).backward
    truth = rb.GroundTruth.from_positives([[], [0], []], n_gallery=6)
    segments = np.stack([segment_of_item(rng.permutation(6), 3, "at_end")])
    found = count_within(system, truth, np.array([2.0], np.float32), segments, 3, "cosine")
    assert found.waiting[0, 0, :, 0].tolist() == [6, 6, 0]
    assert found.backfilled[0, 0, :, 0].tolist() == [0, 0, 6]
    assert found.waiting[1, 0, :, 0].tolist() == [1, 1, 0]


def test_moments_after_each_other_give_equal_sums_to_the_last_bit() -> None:
    rng = np.random.default_rng(2)
    system = random_pair(rng, 40, 50, tied=False).forward
    truth = random_truth(rng, 40, 50).with_weights(rng.uniform(0.1, 3, 40))
    segments = np.stack([segment_of_item(rng.permutation(50), 7, "progressively") for _ in range(3)])
    found = count_within(system, truth, np.array([0.3, 0.9, 1.4], np.float32), segments, 7, "cosine")
    assert (found.waiting[:, :, 0] == found.backfilled[:, :, -1]).all()
    assert (found.waiting[:, :1, 0] == found.waiting[:, :, 0]).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_filter_counts_pairs_of_one_part_only(weighted: bool) -> None:
    rng = np.random.default_rng(2)
    old, _, truth, found = invented(2)
    truth = truth.with_weights(rng.uniform(1, 3, truth.n_queries)) if weighted else truth
    segments = rng.integers(0, 4, (2, 90)).astype(np.uint16)
    cutoffs = np.array([1, 4, 9], np.float32)
    filtered, wanted = (
        count_within(old, each, cutoffs, segments, 5, "l2")
        for each in (truth.with_filter(found), ignoring_others(truth, found).with_weights(truth.weights))
    )
    np.testing.assert_allclose(filtered.backfilled, wanted.backfilled, rtol=1e-12)
    np.testing.assert_allclose(filtered.waiting, wanted.waiting, rtol=1e-12)
    assert wanted.waiting.any()
