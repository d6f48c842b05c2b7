"""Which classes each model learns, by protocol."""

import json
import pickle
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.class_split import Divided, Protocol, split_classes, validation_mask
from ray_backfill.images.datasets import landmarks, open_images

LABELS = np.repeat(np.arange(10) * 3, 2)


def test_extended_class_the_new_model_learns_all() -> None:
    old, new = split_classes(LABELS, Protocol("extended"))
    assert old == [0, 3, 6, 9, 12]
    assert new == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]


def test_open_class_the_new_model_learns_the_others() -> None:
    old, new = split_classes(LABELS, Protocol("open", old_share=0.3, seed=1))
    assert len(old) == 3
    assert sorted(old + new) == sorted(set(LABELS.tolist()))
    assert old == sorted(old)
    draws = {tuple(split_classes(LABELS, Protocol("open", 0.3, seed))[0]) for seed in range(5)}
    assert len(draws) > 1


def test_the_open_draw_is_disjoint_complete_and_thirty_per_cent() -> None:
    labels = np.random.default_rng(3).integers(0, 81_313, 200_000)  # some classes are missing, others have many images
    classes = set(labels.tolist())
    old, new = split_classes(labels, Protocol("open", 0.3, seed=5))
    assert not set(old) & set(new)
    assert set(old) | set(new) == classes
    assert len(old) == round(0.3 * len(classes))
    assert len(old) + len(new) == len(classes)
    assert split_classes(np.sort(labels)[::-1], Protocol("open", 0.3, seed=5)) == (old, new)  # any image order
    # Another seed gives an independent draw, which contains about 30 % of the classes of the first.
    other, _ = split_classes(labels, Protocol("open", 0.3, seed=6))
    assert 0.28 < len(set(old) & set(other)) / len(old) < 0.32


def test_the_draws_never_change() -> None:
    """Expected values are literal: a different draw would silently change the experiments of the published recipes."""
    old, new = split_classes(LABELS, Protocol("open", old_share=0.3, seed=0))
    assert (old, new) == ([6, 12, 18], [0, 3, 9, 15, 21, 24, 27])
    assert split_classes(LABELS, Protocol("open", old_share=0.3, seed=1))[0] == [12, 21, 24]
    twenty = np.arange(20)
    old, new = split_classes(twenty, Protocol("biased", seed=0, old_counts=(2, 4), new_counts=(6, 6)), 1 * (twenty > 7))
    assert old == [2, 4, 10, 11, 14, 18]
    assert new == [0, 2, 3, 4, 5, 6, 8, 10, 11, 12, 14, 18]
    halves = 1 * (twenty > 9)
    assert split_classes(twenty, Protocol("biased", old_share=0.2, seed=1), halves)[0] == [4, 8, *range(10, 20)]


def test_same_classes_and_errors() -> None:
    old, new = split_classes(LABELS, Protocol("same"))
    assert old == new
    with pytest.raises(InputError, match="unknown protocol 'closed'; known: extended, open, same"):
        split_classes(LABELS, Protocol("closed"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave 1 for the old model"):
        split_classes(np.arange(3), Protocol("extended", old_share=0.3))


def test_biased_learns_few_classes_of_the_first_subgroup_and_all_of_the_others() -> None:
    labels = np.repeat(np.arange(20), 3)
    groups = (labels >= 10).astype(np.int64)
    old, new = split_classes(labels, Protocol("biased", old_share=0.2, seed=1), groups)
    assert new == list(range(20))
    assert [c for c in old if c >= 10] == list(range(10, 20))
    assert len([c for c in old if c < 10]) == 2
    assert split_classes(labels, Protocol("biased", old_share=0.2, seed=1), groups)[0] == old
    with pytest.raises(InputError, match="needs a data set with subgroups"):
        split_classes(labels, Protocol("biased"))


def test_biased_by_counts_as_in_fastfill() -> None:
    """50 of the first subgroup and 500 of the second for the old model, 2183 of each for the new one, nested."""
    classes = np.arange(8631)
    groups = (np.random.default_rng(0).random(8631) < 0.6).astype(np.int64)
    labels_N, groups_N = np.repeat(classes, 2), np.repeat(groups, 2)
    protocol = Protocol("biased", seed=4, old_counts=(50, 500), new_counts=(2183, 2183))
    old, new = split_classes(labels_N, protocol, groups_N)
    assert np.bincount(groups[old]).tolist() == [50, 500]
    assert np.bincount(groups[new]).tolist() == [2183, 2183]
    assert set(old) < set(new)
    assert (old, new) == (sorted(old), sorted(new))
    assert split_classes(labels_N, protocol, groups_N) == (old, new)
    assert split_classes(labels_N, replace(protocol, seed=5), groups_N)[0] != old
    _, everybody = split_classes(labels_N, replace(protocol, new_counts=()), groups_N)
    assert everybody == classes.tolist()
    assert json.loads(json.dumps(asdict(protocol)))["old_counts"] == [50, 500]


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [
        ({"old_counts": (5,)}, r"old_counts must give one .* each of 2 subgroups, at most 10, 10; got 5"),
        ({"old_counts": (5, 11)}, r"old_counts .* at most 10, 10; got 5, 11"),
        ({"old_counts": (5, -1)}, r"old_counts"),
        ({"old_counts": (5, 6), "new_counts": (7, 5)}, r"old_counts .* at most 7, 5; got 5, 6"),
        ({"new_counts": (12, 5)}, r"new_counts .* at most 10, 10; got 12, 5"),
        ({"old_counts": (1, 0)}, r"leave 1 for the old model"),
        ({"kind": "open", "old_counts": (5, 5)}, r"need the protocol 'biased', not 'open'"),
    ],
)
def test_counts_that_do_not_fit(counts: dict[str, Any], complaint: str) -> None:
    labels = np.arange(20)
    with pytest.raises(InputError, match=complaint):
        split_classes(labels, Protocol(**{"kind": "biased", **counts}), labels // 10)


def test_images_of_each_class_are_held_out_where_the_gallery_shows_known_classes() -> None:
    labels = np.repeat([0, 3, 7], [10, 5, 1])[np.random.default_rng(0).permutation(16)]
    held = validation_mask(labels, Protocol("extended", validation=0.2))
    assert np.bincount(labels[held], minlength=8).tolist() == [2, 0, 0, 1, 0, 0, 0, 0]
    assert validation_mask(np.array([4, 4, 9]), Protocol("same", validation=0.9)).sum() == 1, "a class keeps an image"
    draws = {tuple(validation_mask(labels, Protocol("same", validation=0.2, seed=seed))) for seed in range(4)}
    assert len(draws) > 1
    assert not validation_mask(labels, Protocol("extended")).any()


def test_images_of_each_class_are_held_out_under_the_open_protocol() -> None:
    """Its gallery shows the classes of both models. Whole classes chose settings for classes that it hardly shows."""
    labels = np.random.default_rng(1).integers(0, 50, 1000)
    held = validation_mask(labels, Protocol("open", validation=0.1, seed=2))
    assert set(labels[held]) <= set(labels[~held])
    assert len(set(labels[held])) > 45
    assert validation_mask(labels, Protocol("open", validation=0.1, seed=3)).tolist() != held.tolist()


def test_whole_classes_are_held_out_where_the_gallery_shows_none_of_them() -> None:
    labels = np.random.default_rng(1).integers(0, 50, 1000)
    held = validation_mask(labels, Protocol("biased", validation=0.1, seed=2), whole_classes=True)
    assert len(set(labels[held])) == 5
    assert not set(labels[held]) & set(labels[~held])


def test_the_draw_of_the_validation_split_never_changes() -> None:
    held = validation_mask(LABELS, Protocol("open", validation=0.3, seed=0), whole_classes=True)
    assert sorted(set(LABELS[held].tolist())) == [3, 9, 27]
    held = validation_mask(LABELS, Protocol("extended", validation=0.5))
    assert np.flatnonzero(held).tolist() == [0, 3, 5, 7, 9, 11, 13, 15, 17, 18]


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"--protocol\.validation must be at least 0 and below 1, got"):
        Protocol(validation=share)


IMAGES = landmarks.Settings(image_size=8, landmarks=20, train_images=100, gallery_images=40, queries=10)
KINDS = ("open", "extended")


@pytest.mark.parametrize("kind", KINDS)
def test_train_and_validation_divide_the_train_images(kind: str) -> None:
    whole = open_images(IMAGES)
    source = open_images(Divided(IMAGES, Protocol(kind, validation=0.2)))  # type: ignore[arg-type]
    assert source.splits == ("train", "gallery", "queries", "validation")
    train, validation = source.items("train"), source.items("validation")
    assert len(train)
    assert len(validation)
    assert sorted([*train.ids_N, *validation.ids_N]) == whole.items("train").ids_N.tolist()
    assert set(validation.labels_N.tolist()) <= set(train.labels_N.tolist()), "the gallery shows known landmarks"
    for split in ("gallery", "queries"):
        np.testing.assert_array_equal(source.items(split).ids_N, whole.items(split).ids_N)


def test_pixels_are_those_of_the_same_images() -> None:
    whole, source = open_images(IMAGES), open_images(Divided(IMAGES, Protocol("extended", validation=0.2)))
    for split in ("validation", "train", "gallery"):
        ids = source.items(split).ids_N[[4, 2]]
        there = whole.items("gallery" if split == "gallery" else "train").ids_N
        expected = whole.read("gallery" if split == "gallery" else "train", np.searchsorted(there, ids))
        np.testing.assert_array_equal(source.read(split, np.array([4, 2])).pixels_BSSC, expected.pixels_BSSC)


def test_what_was_held_out_is_part_of_the_fingerprint_and_survives_pickling() -> None:
    wanted = [Protocol("extended", validation=v, seed=s) for v, s in ((0.0, 0), (0.2, 0), (0.3, 0), (0.2, 1))]
    sources = [open_images(Divided(IMAGES, protocol)) for protocol in wanted]
    assert len({str(source.fingerprint()) for source in sources}) == 4
    assert sources[0].fingerprint() == open_images(IMAGES).fingerprint(), "nothing is held out"
    again = pickle.loads(pickle.dumps(sources[1]))
    np.testing.assert_array_equal(again.items("validation").ids_N, sources[1].items("validation").ids_N)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(InputError, match="has no split 'nowhere'"):
        open_images(Divided(IMAGES, Protocol(validation=0.2))).items("nowhere")
