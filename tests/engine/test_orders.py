"""Orders: scores by hand, stability, and the contract of every order in the table."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.orders import GalleryColumns, all_orders, check_order, make_order

GALLERY = GalleryColumns(
    old=np.array([[1, 0], [0, 2], [3, 0.1], [1, 1]], np.float32),
    columns={
        "label": np.array([0, 1, 0, 1]),
        "old_score": np.array([0.9, 0.2, 0.2, 0.5]),
        "old_entropy": np.array([0.1, 1.3, 0.7, 0.7]),
        "old_margin": np.array([0.8, 0.1, 0.3, 0.3]),
        "class_means": np.array([[2, 0], [0, 3.0]]),
        "sigma": np.array([0.3, 0.9, 0.3, 0.1]),
        "true_loss": np.array([0.1, 0.2, 0.9, 0.4]),
        "mapped_cosine": np.array([0.9, 0.2, 0.8, 0.4]),
        "mapped_confidence": np.array([0.5, 0.9, 0.1, 0.5]),
        "popularity": np.array([5, 0, 7, 5.0]),
        "first_retrieved": np.array([2.0, 0, 3, 1]),
        "order_score": np.array([3.0, 1.0, 2.0, 0.0]),
        "changed_at": np.array([0, 0.5, 0, 0.25]),
    },
)


@pytest.mark.parametrize("name", all_orders())
def test_every_order_is_a_seeded_permutation(name: str) -> None:
    order = make_order(name, GALLERY, seed=3)
    check_order(order, 4)
    np.testing.assert_array_equal(order, make_order(name, GALLERY, seed=3))


def test_low_scores_come_first_and_ties_keep_the_gallery_order() -> None:
    assert make_order("classifier_score", GALLERY).tolist() == [1, 2, 3, 0]
    assert make_order("given", GALLERY).tolist() == [3, 1, 2, 0]


def test_what_is_uncertain_far_or_popular_comes_first() -> None:
    assert make_order("least_confidence", GALLERY).tolist() == make_order("classifier_score", GALLERY).tolist()
    assert make_order("entropy", GALLERY).tolist() == [1, 2, 3, 0]
    assert make_order("margin", GALLERY).tolist() == [1, 2, 3, 0]
    assert make_order("sigma", GALLERY).tolist() == [1, 0, 2, 3]
    assert make_order("oracle_loss", GALLERY).tolist() == [2, 3, 1, 0]
    assert make_order("mapped_class_mean_distance", GALLERY).tolist() == [1, 3, 2, 0]
    assert make_order("mapped_least_confidence", GALLERY).tolist() == [2, 0, 3, 1]
    assert make_order("popularity", GALLERY).tolist() == [2, 0, 3, 1]
    # The class means lie on the two axes; item 3 lies between them, item 2 close to one.
    assert make_order("class_mean_distance", GALLERY).tolist() == [3, 2, 0, 1]


def test_the_old_classifiers_prediction_takes_precedence_over_labels() -> None:
    guessed = GalleryColumns(GALLERY.old, {**GALLERY.columns, "old_class": np.zeros(4, int)})
    whole = GALLERY.old.sum(axis=0)
    cosines = [g @ whole / np.linalg.norm(g) for g in GALLERY.old]
    assert make_order("centroid_cosine", guessed).tolist() == np.argsort(cosines).tolist()


def test_centroid_cosine_by_hand() -> None:
    """The centroid of class 0 is (4, 0.1): item 2 is closer than item 0. Class 1: (1, 3), item 1, then item 3."""
    cosines = {
        0: 4 / np.hypot(4, 0.1),
        1: 3 / np.hypot(1, 3),
        2: (3 * 4 + 0.1 * 0.1) / (np.hypot(3, 0.1) * np.hypot(4, 0.1)),
        3: 4 / (np.hypot(1, 1) * np.hypot(1, 3)),
    }
    assert make_order("centroid_cosine", GALLERY).tolist() == sorted(cosines, key=lambda i: cosines[i])


def test_random_depends_on_the_seed() -> None:
    many = GalleryColumns(old=np.ones((50, 2), np.float32))
    assert make_order("random", many, 0).tolist() != make_order("random", many, 1).tolist()


def test_missing_columns_unknown_names_and_nan_are_named() -> None:
    bare = GalleryColumns(old=GALLERY.old)
    with pytest.raises(InputError, match="needs the gallery column 'old_score'"):
        make_order("classifier_score", bare)
    with pytest.raises(InputError, match="needs a method with uncertainty among --methods"):
        make_order("sigma", bare)
    with pytest.raises(InputError, match="unknown order 'alphabetical'; known: random"):
        make_order("alphabetical", bare)
    with pytest.raises(InputError, match="row 2 is NaN"):
        make_order("given", GalleryColumns(GALLERY.old, {"order_score": np.array([1, 2, np.nan, 3])}))


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1], [1, 2, 3], [0, -1, 2]])
def test_other_arrays_than_permutations_are_refused(order: list[int]) -> None:
    with pytest.raises(InputError):
        check_order(np.array(order), 3)


def test_stale_items_come_next_and_no_change_is_known_before() -> None:
    """With four items, a quarter of the backfill is one item: item 3 is the second at the latest, item 1 the third."""
    for seed in range(20):
        at_random = np.random.default_rng(seed).permutation(4).tolist()
        left, expected = at_random.copy(), []
        for stale in (None, 3, 1, None):
            item = stale if stale in left else left[0]
            left.remove(item)
            expected.append(item)
        assert make_order("stale_first", GALLERY, seed).tolist() == expected
