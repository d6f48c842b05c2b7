from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.class_split import Divided, Protocol
from ray_backfill.images.datasets import open_images as open_any
from ray_backfill.images.datasets.omniglot import Settings, open_images
from ray_backfill.images.source import FileSource, ImageSource
from tests.images.datasets._pictures import drawing, omniglot_zips, plain, write_zip

REAL = Path(__file__).parents[4] / "shared" / "data"
needs_the_images = pytest.mark.skipif(not REAL.is_dir(), reason="the Omniglot images are not on this machine")


def drawers(source: ImageSource, split: str) -> set[int]:
    assert isinstance(source, FileSource)
    return {int(source.listing.name(i)[-6:-4]) for i in source.items(split).ids_N.tolist()}


def test_drawers_divide_the_images_and_shared_alphabets_count_once(tmp_path: Path) -> None:
    source = open_images(Settings(str(omniglot_zips(tmp_path)), train_drawers=15))
    assert source.splits == ("train", "gallery")
    assert np.bincount(source.items("train").labels_N).tolist() == [15, 15, 15]
    assert np.bincount(source.items("gallery").labels_N).tolist() == [5, 5, 5]
    assert drawers(source, "train") == set(range(1, 16))
    assert drawers(source, "gallery") == {16, 17, 18, 19, 20}


def test_unseen_characters_are_left_to_the_gallery(tmp_path: Path) -> None:
    source = open_images(Settings(str(omniglot_zips(tmp_path)), train_drawers=15, unseen=0.5, groups=True))
    train, gallery = source.items("train"), source.items("gallery")
    # Of Greek's two characters one is unseen; half of Latin's only one rounds to none.
    assert len(np.unique(gallery.labels_N)) == 1
    assert gallery.groups_N is not None
    assert set(gallery.groups_N) == {0}
    assert len(gallery) == 20
    assert drawers(source, "gallery") == set(range(1, 21))
    assert not set(train.labels_N) & set(gallery.labels_N)
    assert (len(train), len(np.unique(train.labels_N))) == (30, 2)
    assert (
        open_images(Settings(str(tmp_path), unseen=0.5)).fingerprint()
        != open_images(Settings(str(tmp_path))).fingerprint()
    )
    with pytest.raises(InputError, match=r"unseen 0\.1 is less than one character of each half"):
        open_images(Settings(str(tmp_path), unseen=0.1))


def test_validation_of_unseen_characters_holds_out_whole_characters(tmp_path: Path) -> None:
    images = Settings(str(omniglot_zips(tmp_path)), unseen=0.5)
    source = open_any(Divided(images, Protocol("extended", validation=0.5)))
    train, validation = (set(source.items(split).labels_N.tolist()) for split in ("train", "validation"))
    assert len(train) == len(validation) == 1
    assert train != validation
    known = open_any(Divided(replace(images, unseen=0), Protocol("extended", validation=0.5)))
    assert set(known.items("train").labels_N) == set(known.items("validation").labels_N)


def test_strokes_are_bright_on_dark_and_averaged(tmp_path: Path) -> None:
    source = open_images(Settings(str(omniglot_zips(tmp_path)), image_size=7))
    # Drawer 1's bar covers rows 4 to 18 of 105, and each of our 7 rows averages 15: 11/15 and 4/15 of full white.
    pixels = source.read("train", np.array([0])).pixels_BSSC[0, :, :, 0]
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.tile(np.array([[187, 68, 0, 0, 0, 0, 0]]).T, (1, 7)))


def test_classes_are_sorted_by_alphabet_then_character(tmp_path: Path) -> None:
    # As plain strings "Latin(old)/..." would stand before "Latin/...", since "(" sorts before "/".
    names = ["top/Latin/character01/0001_01.png", "top/Latin(old)/character01/0002_01.png"]
    for number in (1, 2):
        write_zip(tmp_path / f"omniglot_small{number}.zip", dict.fromkeys(names, drawing(0)))
    source = open_images(Settings(str(tmp_path)))
    assert isinstance(source, FileSource)
    by_label = {int(label): source.listing.name(i).rpartition("/")[0] for i, label in zip(*_rows(source), strict=True)}
    assert by_label == {0: "Latin/character01", 1: "Latin(old)/character01"}


def _rows(source: ImageSource) -> tuple[list[int], list[int]]:
    items = source.items("train")
    return items.ids_N.tolist(), items.labels_N.tolist()


def test_the_authors_file_names_are_known(tmp_path: Path) -> None:
    omniglot_zips(tmp_path)
    for number in (1, 2):
        (tmp_path / f"omniglot_small{number}.zip").rename(tmp_path / f"images_background_small{number}.zip")
    assert len(open_images(Settings(str(tmp_path))).items("train")) == 3 * 12


def test_other_images_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        write_zip(tmp_path / f"omniglot_small{number}.zip", {"top/cat/1.png": plain(), "top/dog/1.png": plain()})
    with pytest.raises(InputError, match=r"1\.png is not alphabet/character/NNNN_DD\.png"):
        open_images(Settings(str(tmp_path)))


@pytest.mark.parametrize("folder", ["cat", "deep/cat/more"])
def test_drawings_at_another_depth_are_refused(tmp_path: Path, folder: str) -> None:
    members = dict.fromkeys([f"top/{folder}/0001_01.png", "top/Latin/character01/0001_01.png"], drawing(0))
    for number in (1, 2):
        write_zip(tmp_path / f"omniglot_small{number}.zip", members)
    with pytest.raises(InputError, match=rf"{folder}/0001_01\.png is not alphabet/character/NNNN_DD\.png"):
        open_images(Settings(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "value"), [("train_drawers", 0), ("train_drawers", 20), ("unseen", 1.0), ("unseen", -0.1)]
)
def test_settings_out_of_range(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(InputError, match=name):
        open_images(Settings(str(tmp_path), **{name: value}))  # type: ignore[arg-type]


@needs_the_images
def test_two_subgroups_are_halves_of_the_alphabets() -> None:
    source = open_images(Settings(str(REAL), groups=True))
    train, gallery = source.items("train"), source.items("gallery")
    assert train.groups_N is not None
    assert gallery.groups_N is not None
    group_of_class = dict(zip(train.labels_N.tolist(), train.groups_N.tolist(), strict=True))
    assert [group_of_class[label] for label in gallery.labels_N.tolist()] == gallery.groups_N.tolist()
    first, second = (sum(g == group for g in group_of_class.values()) for group in (0, 1))
    assert first + second == 242
    assert min(first, second) > 80
    # Labels number alphabets in their order, and a subgroup holds whole alphabets.
    assert sorted(group_of_class.items()) == sorted(group_of_class.items(), key=lambda pair: (pair[1], pair[0]))


@needs_the_images
def test_the_real_images() -> None:
    source = open_images(Settings(str(REAL)))
    assert np.bincount(source.items("train").labels_N).tolist() == [12] * 242
    assert np.bincount(source.items("gallery").labels_N).tolist() == [8] * 242
    assert drawers(source, "gallery") == set(range(13, 21))
    pixels = source.read("gallery", np.arange(0, 1936, 20))
    assert not pixels.broken
    assert pixels.pixels_BSSC.shape == (97, 28, 28, 1)
    # Thin bright strokes on black: every drawing has some of both.
    assert (pixels.pixels_BSSC.reshape(97, -1).max(axis=1) > 150).all()
    assert np.median(pixels.pixels_BSSC) == 0
