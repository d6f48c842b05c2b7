from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.image_folder import Settings, open_images
from ray_backfill.images.source import FileSource, ImageSource
from tests.images.datasets._pictures import noisy_jpeg, plain, write_tree, write_zip

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def paths(source: ImageSource, split: str) -> list[str]:
    """Folder and name of each row of a split."""
    assert isinstance(source, FileSource)
    return [source.listing.name(i) for i in source.items(split).ids_N.tolist()]


def ten_of_each(root: Path) -> Path:
    return write_tree(root, {f"{name}/{i}.png": RED for name in ("cat", "dog", "birds/owl") for i in range(10)})


def test_own_splits_share_their_labels(tmp_path: Path) -> None:
    files = ["train/dog/1.png", "train/cat/1.png", "test/dog/2.png", "test/ant/1.png", "query/cat/9.png"]
    source = open_images(Settings(str(write_tree(tmp_path, dict.fromkeys(files, RED)))))
    assert source.splits == ("train", "gallery", "queries")
    assert paths(source, "train") == ["train/cat/1.png", "train/dog/1.png"]
    assert source.items("train").labels_N.tolist() == [1, 2]  # ant, cat, dog
    assert paths(source, "gallery") == ["test/ant/1.png", "test/dog/2.png"]
    assert source.items("gallery").labels_N.tolist() == [0, 2]
    assert source.items("queries").labels_N.tolist() == [1]


def test_gallery_goes_before_val_before_test(tmp_path: Path) -> None:
    write_tree(tmp_path, dict.fromkeys(["train/cat/1.png", "val/cat/1.png", "test/cat/1.png"], RED))
    assert paths(open_images(Settings(str(tmp_path))), "gallery") == ["val/cat/1.png"]
    write_tree(tmp_path, {"gallery/cat/1.png": RED})
    assert paths(open_images(Settings(str(tmp_path))), "gallery") == ["gallery/cat/1.png"]


def test_splits_in_zips_of_their_own(tmp_path: Path) -> None:
    write_zip(tmp_path / "train.zip", {"train/cat/1.png": RED})
    write_zip(tmp_path / "val.zip", {"val/cat/1.png": BLUE})
    source = open_images(Settings(str(tmp_path)))
    assert source.splits == ("train", "gallery")
    assert source.read("gallery", np.array([0])).pixels_BSSC[0, 0, 0].tolist() == [0, 0, 255]


def test_a_plain_tree_is_divided_class_by_class(tmp_path: Path) -> None:
    source = open_images(Settings(str(ten_of_each(tmp_path)), train_fraction=0.6))
    assert source.splits == ("train", "gallery")
    assert np.bincount(source.items("train").labels_N).tolist() == [6, 6, 6]
    assert np.bincount(source.items("gallery").labels_N).tolist() == [4, 4, 4]
    both = paths(source, "train") + paths(source, "gallery")
    assert len(set(both)) == 30
    for split in source.splits:
        names = ["birds/owl", "cat", "dog"]
        assert [names[label] for label in source.items(split).labels_N] == [p[:-6] for p in paths(source, split)]


def test_the_division_is_seeded_and_does_not_follow_the_names(tmp_path: Path) -> None:
    settings = Settings(str(ten_of_each(tmp_path)))
    first = paths(open_images(settings), "train")
    assert paths(open_images(settings), "train") == first
    assert paths(open_images(replace(settings, seed=1)), "train") != first
    cats, dogs = ([p[-5] for p in first if p.startswith(name)] for name in ("cat", "dog"))
    assert cats != dogs
    assert cats != list("012345")
    # Another class changes nothing for those that were there.
    write_tree(tmp_path, {"ant/1.png": RED, "ant/2.png": RED})
    assert [p for p in paths(open_images(settings), "train") if not p.startswith("ant")] == first


@pytest.mark.parametrize(
    ("count", "fraction", "train"), [(1, 0.1, 1), (2, 0.99, 1), (2, 0.01, 1), (5, 0.5, 2), (5, 0.7, 4)]
)
def test_small_classes(tmp_path: Path, count: int, fraction: float, train: int) -> None:
    write_tree(tmp_path, {f"cat/{i}.png": RED for i in range(count)})
    source = open_images(Settings(str(tmp_path), train_fraction=fraction))
    assert (len(source.items("train")), len(source.items("gallery"))) == (train, count - train)


def test_broken_images_are_reported_and_zero(tmp_path: Path) -> None:
    cut = noisy_jpeg()[:1500]
    write_tree(tmp_path / "t", {"train/a/1.png": RED, "val/a/1.jpg": cut, "val/a/2.png": BLUE, "val/a/3.png": b"no"})
    source = open_images(Settings(str(tmp_path / "t"), image_size=8))
    (tmp_path / "t/train/a/1.png").unlink()
    pixels = source.read("gallery", np.array([1, 2, 0]))
    assert sorted(pixels.broken) == [1, 2]
    assert pixels.broken[1] == f"{tmp_path}/t/val/a/3.png: not an image of a known format"
    assert "truncated" in pixels.broken[2]
    assert not pixels.pixels_BSSC[1:].any()
    assert pixels.pixels_BSSC[0, 4, 4].tolist() == [0, 0, 255]
    assert "1.png" in source.read("train", np.array([0])).broken[0]  # deleted after it was listed


def test_a_damaged_zip_member_is_reported(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"train/a/1.png": RED, "val/a/1.png": RED, "val/b/1.png": BLUE})
    data = bytearray(path.read_bytes())
    at = data.index(RED) + 50  # stored uncompressed: the first copy is the training image
    data[at] ^= 0xFF
    path.write_bytes(data)
    source = open_images(Settings(str(path)))
    assert "CRC" in source.read("train", np.array([0])).broken[0]
    assert not source.read("gallery", np.array([0, 1])).broken


def test_one_channel(tmp_path: Path) -> None:
    source = open_images(Settings(str(ten_of_each(tmp_path)), image_size=5, channels=1))
    pixels = source.read("train", np.array([3, 4])).pixels_BSSC
    assert pixels.shape == (2, 5, 5, 1)
    assert np.unique(pixels).tolist() == [76]  # 0.299 * 255


@pytest.mark.parametrize("files", [["1.png", "cat/1.png"], ["train/1.png", "train/cat/1.png", "val/cat/1.png"]])
def test_an_image_in_no_class(tmp_path: Path, files: list[str]) -> None:
    write_tree(tmp_path, dict.fromkeys(files, RED))
    with pytest.raises(InputError, match=r"1\.png is in no class folder: move it"):
        open_images(Settings(str(tmp_path)))


@pytest.mark.parametrize("name", ["list.csv", "images.parquet"])
def test_a_list_of_images_belongs_to_the_other_recipe(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("path,label\n")
    with pytest.raises(InputError, match=rf"{name} is a file; use --recipe manifest for a .csv or .parquet file that"):
        open_images(Settings(str(tmp_path / name)))
