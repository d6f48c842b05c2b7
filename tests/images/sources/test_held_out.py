"""A validation split, taken from train: no image is in both, and nothing else changes."""

import pickle

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import Divided, landmarks, open_images

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
