"""Validation of systems, and the two ways to build the ground truth."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

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
        (np.ones((2, 3), np.int64), np.ones((2, 3), np.float32), "2-D float array, one row an item, got integers"),
        (np.ones(3, np.float32), np.ones((2, 3), np.float32), "2-D float array, one row an item, got numbers of shape"),
        (np.full((2, 3), "a"), np.ones((2, 3), np.float32), "2-D float array, one row an item, got text of shape"),
        ([[1.0], [1.0, 2.0]], np.ones((2, 1)), "query embeddings cannot be made a numpy array: its rows have diff"),
        (None, np.ones((2, 1)), "2-D float array, one row an item, got Python objects of shape"),
        (pd.DataFrame({"a": [1.0], "b": ["x"]}), np.ones((2, 2)), "got Python objects of shape"),
        (np.ones((0, 3), np.float32), np.ones((2, 3), np.float32), "empty"),
        (np.ones((2, 3), np.float32), np.array([[1, 1, 1], [1, np.nan, 1]], np.float32), "first in row 1"),
        (np.array([[np.inf, 1]], np.float32), np.ones((2, 2), np.float32), "first in row 0"),
    ],
)
def test_bad_embeddings_are_refused(query: Any, gallery: Any, message: str) -> None:
    with pytest.raises(rb.InputError, match=message) as error:
        rb.RetrievalSystem(query, gallery)
    assert "\n" not in str(error.value)
    assert not any(code in str(error.value) for code in ("int64", "<U", "dtype('O')"))


VECTORS = np.array([[1, 2], [3, 4], [5, 7]], np.float32)


@pytest.mark.parametrize(
    "given",
    [
        VECTORS.tolist(),
        [[1, 2], [3, 4], [5, 7]],
        list(VECTORS),
        torch.tensor(VECTORS, requires_grad=True),
        torch.tensor(VECTORS).to(torch.bfloat16),
        [torch.tensor(row) for row in VECTORS],
        pd.DataFrame(VECTORS),
        pd.Series(list(VECTORS)),
        pa.array(VECTORS.tolist()),
    ],
)
def test_lists_tensors_and_frames_are_vectors(given: Any) -> None:
    system = rb.RetrievalSystem(given, given)
    np.testing.assert_array_equal(system.query, VECTORS)
    assert isinstance(system.gallery, np.ndarray)


def test_values_show_themselves_in_one_line_and_can_be_compared() -> None:
    system = rb.RetrievalSystem(VECTORS, VECTORS)
    pair = rb.UpgradePair(system, rb.RetrievalSystem(VECTORS.copy(), VECTORS))
    truth = rb.GroundTruth.from_labels([1, 2, 1], [1, 2, 1], exclude_self=True)
    assert repr(system) == "RetrievalSystem(3 queries, 3 gallery items, 2 dimensions)"
    assert repr(pair) == (
        "UpgradePair(3 queries, 3 gallery items, 2 dimensions backward, 2 forward, switches progressively)"
    )
    assert repr(truth) == "GroundTruth(3 queries, 3 gallery items, 2 positives, 3 ignored)"
    columns = rb.GalleryColumns(VECTORS)
    merge = rb.fit_merge("quantile", pair, None, "l2")
    for value in (system, pair, truth, columns, merge):
        assert value == value
        assert len({value, value}) == 1
    assert pair.forward != pair.backward
    assert truth != rb.GroundTruth.from_labels([1], [1])
    assert merge != rb.fit_merge("quantile", pair, None, "l2")


def test_labels_may_be_text_lists_and_categories() -> None:
    truth = rb.GroundTruth.from_labels(["dog", "eel"], pd.Categorical(["cat", "dog", "dog"]))
    assert [truth.positives_of(q).tolist() for q in range(2)] == [[1, 2], []]
    truth = rb.GroundTruth.from_labels(
        torch.tensor([4]), [4, 4, 9], query_cameras=["north"], gallery_cameras=["north", "south", "north"]
    )
    assert truth.positives_of(0).tolist() == [1]
    with pytest.raises(rb.InputError, match="query labels are text but gallery labels are numbers; use one type"):
        rb.GroundTruth.from_labels(["dog"], [1, 2])
    with pytest.raises(rb.InputError, match="gallery labels must be a 1-D array of integers or text, got numbers of"):
        rb.GroundTruth.from_labels([1], [0.5])
    with pytest.raises(rb.InputError, match="positives and ignored items are lists of gallery positions, as integers"):
        rb.GroundTruth.from_positives([["a"]], n_gallery=3)  # type: ignore[list-item]


def test_a_ground_truth_without_some_pairs() -> None:
    truth = rb.GroundTruth.from_positives([[0, 2], [1], []], [[3], [], [1]], n_gallery=4)
    less = truth.without(np.array([1, 0, 2, 0]), np.array([1, 2, 0, 3]))
    assert [less.positives_of(q).tolist() for q in range(3)] == [[0], [], []]
    assert [less.ignored_of(q).tolist() for q in range(3)] == [[2, 3], [1], [0, 1]]
    assert less.n_gallery == 4
    assert truth.positives_of(0).tolist() == [0, 2]


def test_a_pair_needs_the_same_items_on_both_sides() -> None:
    small = rb.RetrievalSystem(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises(rb.InputError, match="backward system has 2 query rows, the forward system 1"):
        rb.UpgradePair(small, rb.RetrievalSystem(np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)))


def test_grades_follow_their_positives() -> None:
    """Lists in any order, an item twice, one that is also ignored, and items that are left out later."""
    truth = rb.GroundTruth.from_positives(
        [[7, 3, 5, 3], [], [1]], [[5], [], []], n_gallery=9, grades=[[0.5, 2, 1, 2], [], [4]]
    )
    assert truth.positives.tolist() == [3, 7, 1]
    np.testing.assert_array_equal(truth.grades, [2, 0.5, 4])
    fewer = truth.with_weights([1, 2, 3]).without(np.array([0, 1]), np.array([3, 8]))
    assert [fewer.positives_of(q).tolist() for q in range(3)] == [[7], [], [1]]
    np.testing.assert_array_equal(fewer.grades, [0.5, 4])
    np.testing.assert_array_equal(fewer.weights, [1, 2, 3])
    alive = truth.only(np.arange(9) != 7)
    assert alive.positives.tolist() == [3, 1]
    np.testing.assert_array_equal(alive.grades, [2, 4])


@pytest.mark.parametrize(
    ("grades", "message"),
    [
        ([[1]], "got 2 lists of positives but 1 of grades"),
        ([[1], [1]], r"query 0 has 2 positives but grades as integers of shape \(1,\)"),
        ([[1, 0], [1]], "grades must be finite and above 0, but entry 1 is 0"),
        ([[1, np.nan], [1]], "grades must be finite and above 0, but entry 1 is nan"),
        ([["a", "b"], ["c"]], "grades must be a number for each of 3 right answers, got text"),
    ],
)
def test_grades_that_fit_nothing_are_refused(grades: Any, message: str) -> None:
    with pytest.raises(rb.InputError, match=message):
        rb.GroundTruth.from_positives([[0, 1], [2]], n_gallery=3, grades=grades)
    with pytest.raises(rb.InputError, match="the positives of query 0 list an item twice, with different grades"):
        rb.GroundTruth.from_positives([[1, 1]], n_gallery=3, grades=[[1, 2]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "weights must be a number for each of 3 queries, got integers of shape"),
        ([1, -1, 2], "weights must be finite and above 0, but entry 1 is -1"),
        ([1, 1, np.inf], "entry 2 is inf"),
        (["a", "b", "c"], "got text"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: Any, message: str) -> None:
    truth = rb.GroundTruth.from_labels([1, 2, 3], [1, 2, 3])
    with pytest.raises(rb.InputError, match=message):
        truth.with_weights(weights)
    assert truth.with_weights(None).weights is None
