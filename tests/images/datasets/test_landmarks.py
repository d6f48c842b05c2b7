import pickle
import time
from dataclasses import replace

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.landmarks import Settings, open_images, render
from ray_backfill.images.source import SPLITS, ImageSource
from tests.images.datasets import _landmark_numpy

TINY = Settings(landmarks=20, train_images=300, gallery_images=200, queries=50)
# Of the first eight images of each split of TINY.
KNOWN_SUMS = [4050620, 3435985, 3983570]


def read_one(source: ImageSource, split: str, row: int) -> np.ndarray:
    return source.read(split, np.array([row])).pixels_BSSC[0]


@pytest.mark.parametrize("size", [32, 19])
def test_pixels_do_not_depend_on_the_batch(size: int) -> None:
    source = open_images(replace(TINY, image_size=size))
    rows = np.random.default_rng(0).permutation(200)[:90]
    together = source.read("gallery", rows).pixels_BSSC
    for i in (0, 1, 31, 32, 89):
        np.testing.assert_array_equal(together[i], read_one(source, "gallery", int(rows[i])))
    np.testing.assert_array_equal(together[::-1], source.read("gallery", rows[::-1]).pixels_BSSC)


def test_an_image_is_the_same_in_a_larger_split() -> None:
    # One landmark, so that the label cannot change with the size of the split.
    small, large = (open_images(Settings(landmarks=1, gallery_images=count)) for count in (3, 1000))
    np.testing.assert_array_equal(read_one(small, "gallery", 2), read_one(large, "gallery", 2))


def test_known_pixels() -> None:
    """The renderer has not changed; if it has on purpose, raise _RENDERER_VERSION and write down the new sums."""
    source = open_images(TINY)
    sums = [int(source.read(split, np.arange(8)).pixels_BSSC.sum(dtype=np.int64)) for split in SPLITS]
    assert sums == KNOWN_SUMS


def test_views_of_a_landmark_resemble_each_other_more_than_other_landmarks() -> None:
    source = open_images(Settings(landmarks=8, gallery_images=160, difficulty=0.2, zipf=0.0))
    labels = source.items("gallery").labels_N
    pixels = source.read("gallery", np.arange(160)).pixels_BSSC.reshape(160, -1).astype(np.float64)
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    likeness = pixels @ pixels.T
    same = labels[:, None] == labels
    others = same & ~np.eye(160, dtype=bool)
    assert likeness[others].mean() > likeness[~same].mean() + 0.15


def test_images_use_the_whole_range_and_differ() -> None:
    pixels = open_images(TINY).read("gallery", np.arange(200)).pixels_BSSC
    assert len({image.tobytes() for image in pixels}) == 200
    assert pixels.min() < 10
    assert pixels.max() > 245
    assert np.median(pixels.reshape(200, -1).std(axis=1)) > 25


def test_splits_share_no_id_and_no_image() -> None:
    source = open_images(TINY)
    ids = np.concatenate([source.items(split).ids_N for split in SPLITS])
    assert len(np.unique(ids)) == 300 + 200 + 50
    images = {image.tobytes() for s in SPLITS for image in source.read(s, np.arange(50)).pixels_BSSC}
    assert len(images) == 150


@pytest.mark.parametrize(("gallery", "queries"), [(200, 50), (7, 50), (200, 3)])
def test_every_query_has_its_landmark_in_the_gallery(gallery: int, queries: int) -> None:
    source = open_images(replace(TINY, gallery_images=gallery, queries=queries))
    assert len(source.items("queries")) == queries
    assert set(source.items("queries").labels_N.tolist()) <= set(source.items("gallery").labels_N.tolist())


def test_the_tail_is_long_and_nobody_is_missing() -> None:
    source = open_images(Settings())
    for split in ("train", "gallery"):
        sizes = np.bincount(source.items(split).labels_N, minlength=200)
        assert sizes.min() >= 4
        assert sizes.max() > 15 * sizes.min()
    # The large classes are not the first ones: a class split by number must be fair.
    first, second = (part.sum() for part in np.split(np.bincount(source.items("train").labels_N), 2))
    assert 0.6 < first / second < 1.6


def test_labels_come_in_no_order() -> None:
    labels = open_images(Settings(zipf=0.0)).items("gallery").labels_N
    assert abs(np.corrcoef(np.arange(len(labels)), labels)[0, 1]) < 0.05
    assert abs(np.corrcoef(labels[1:], labels[:-1])[0, 1]) < 0.05


def test_a_million_items_are_quick() -> None:
    source = open_images(Settings(landmarks=5000, gallery_images=1_000_000))
    start = time.process_time()
    assert len(source.items("gallery")) == 1_000_000
    assert time.process_time() - start < 2  # 0.1 s measured; a Python loop takes longer than this
    assert read_one(source, "gallery", 999_999).shape == (32, 32, 3)


def test_pickle_carries_no_rows() -> None:
    source = open_images(Settings(gallery_images=100_000))
    source.items("gallery")
    data = pickle.dumps(source)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data).items("gallery").labels_N, source.items("gallery").labels_N)


@pytest.mark.parametrize("change", [{"seed": 1}, {"difficulty": 0.5}])
def test_settings_change_pixels(change: dict[str, float]) -> None:
    one, other = open_images(TINY), open_images(replace(TINY, **change))  # type: ignore[arg-type]
    assert not np.array_equal(read_one(one, "gallery", 0), read_one(other, "gallery", 0))


@pytest.mark.parametrize("difficulty", [0.0, 3.0])
def test_extreme_difficulties_still_give_pictures(difficulty: float) -> None:
    with np.errstate(all="raise"):
        pixels = open_images(replace(TINY, difficulty=difficulty)).read("gallery", np.arange(60)).pixels_BSSC
    assert np.median(pixels.reshape(60, -1).std(axis=1)) > 15


@pytest.mark.parametrize("wrong", [{"landmarks": 0}, {"difficulty": 9}])
def test_settings_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        open_images(replace(TINY, **wrong))


@pytest.mark.parametrize(("size", "difficulty", "images"), [(32, 1.0, 600), (33, 3.0, 60), (16, 0.0, 60), (1, 1.0, 20)])
def test_compiled_loops_paint_what_numpy_paints(size: int, difficulty: float, images: int) -> None:
    rng = np.random.default_rng(size)
    ids, labels = rng.integers(0, 1 << 42, images), rng.integers(0, 10_000, images)
    painted = render(7, ids, labels, size, difficulty)
    np.testing.assert_array_equal(painted, _landmark_numpy.render(7, ids, labels, size, difficulty))
