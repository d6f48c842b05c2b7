"""Validation of systems, and the two ways to build the ground truth."""

import numpy as np
import pytest

import ray_backfill as rb


def test_labels_give_all_items_of_the_class() -> None:
    truth = rb.GroundTruth.from_labels(np.array([2, 7, 1]), np.array([1, 2, 1, 2, 3]))
    assert [truth.positives_of(q).tolist() for q in range(3)] == [[1, 3], [], [0, 2]]
    assert truth.skipped.tolist() == [1]
    assert truth.ignored.size == 0


def test_exclude_self_drops_and_ignores_the_query_itself() -> None:
    labels = np.array([5, 3, 5, 5])
    truth = rb.GroundTruth.from_labels(labels, labels, exclude_self=True)
    assert [truth.positives_of(q).tolist() for q in range(4)] == [[2, 3], [], [0, 3], [0, 2]]
    assert [truth.ignored_of(q).tolist() for q in range(4)] == [[0], [1], [2], [3]]


def test_items_of_the_same_camera_are_ignored() -> None:
    """Market-1501: a match from the query's own camera proves nothing."""
    truth = rb.GroundTruth.from_labels(
        np.array([4]), np.array([4, 4, 9, 4]), query_cameras=np.array([1]), gallery_cameras=np.array([1, 2, 1, 3])
    )
    assert truth.positives_of(0).tolist() == [1, 3]
    assert truth.ignored_of(0).tolist() == [0]


def test_an_item_in_both_lists_counts_as_ignored() -> None:
    truth = rb.GroundTruth.from_positives([[3, 1, 1], []], [[1], [0]], n_gallery=4)
    assert truth.positives_of(0).tolist() == [3]
    assert truth.ignored_of(0).tolist() == [1]
    assert truth.skipped.tolist() == [1]


@pytest.mark.parametrize("positives", [[[4]], [[-1]]])
def test_positions_outside_the_gallery_are_refused(positives: list[list[int]]) -> None:
    with pytest.raises(rb.InputError, match=r"query 0 include a position outside 0\.\.3"):
        rb.GroundTruth.from_positives(positives, n_gallery=4)


def test_exclude_self_needs_the_same_items() -> None:
    with pytest.raises(rb.InputError, match="got 2 queries and 3 items"):
        rb.GroundTruth.from_labels(np.zeros(2, int), np.zeros(3, int), exclude_self=True)
    with pytest.raises(rb.InputError, match="same labels"):
        rb.GroundTruth.from_labels(np.array([0, 1]), np.array([1, 0]), exclude_self=True)


@pytest.mark.parametrize(
    ("query", "gallery", "message"),
    [
        (np.ones((2, 3), np.float32), np.ones((2, 4), np.float32), "3 dimensions, gallery embeddings 4"),
        (np.ones((2, 3), np.int64), np.ones((2, 3), np.float32), "2-D float array, got int64 values of shape"),
        (np.ones(3, np.float32), np.ones((2, 3), np.float32), "2-D float array, got float32 values of shape"),
        (np.full((2, 3), "a"), np.ones((2, 3), np.float32), "2-D float array, got strings of shape"),
        (np.ones((0, 3), np.float32), np.ones((2, 3), np.float32), "empty"),
        (np.ones((2, 3), np.float32), np.array([[1, 1, 1], [1, np.nan, 1]], np.float32), "first in row 1"),
        (np.array([[np.inf, 1]], np.float32), np.ones((2, 2), np.float32), "first in row 0"),
    ],
)
def test_bad_embeddings_are_refused(query: np.ndarray, gallery: np.ndarray, message: str) -> None:
    with pytest.raises(rb.InputError, match=message):
        rb.RetrievalSystem(query, gallery)


def test_a_pair_needs_the_same_items_on_both_sides() -> None:
    small = rb.RetrievalSystem(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises(rb.InputError, match="backward system has 2 query rows, the forward system 1"):
        rb.UpgradePair(small, rb.RetrievalSystem(np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)))
