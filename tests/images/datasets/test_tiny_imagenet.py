import zipfile
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.folders import TinyImageNetSettings as Settings
from ray_backfill.images.datasets.folders import open_tiny_imagenet as open_images
from tests.images.datasets._pictures import encode_photo, names, tiny_imagenet_zip, write_tree, write_zip

REAL = Path(__file__).parents[4] / "shared" / "data"
needs_the_images = pytest.mark.skipif(
    not (REAL / "tiny_imagenet.zip").is_file(), reason="tiny_imagenet.zip is not on this machine"
)


def unpacked(root: Path) -> Path:
    with zipfile.ZipFile(tiny_imagenet_zip(root / "zip") / "tiny_imagenet.zip") as archive:
        archive.extractall(root)
    return root


@pytest.mark.parametrize("make", [tiny_imagenet_zip, unpacked])
def test_labels_and_pixels(make: object, tmp_path: Path) -> None:
    assert callable(make)
    source = open_images(Settings(str(make(tmp_path)), image_size=8))
    assert source.splits == ("train", "gallery")
    assert source.items("train").labels_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.items("gallery").labels_N.tolist() == [0, 0, 1, 1]
    assert names(source, "gallery")[1:3] == ["gallery/n01/0007.jpg", "gallery/n02/0003.jpg"]
    pixels = source.read("gallery", np.array([2, 0])).pixels_BSSC
    np.testing.assert_allclose(pixels[:, 4, 4], [[200, 70, 9], [100, 30, 9]], atol=4)


def test_some_photographs_of_each_class_can_be_queries(tmp_path: Path) -> None:
    root = str(tiny_imagenet_zip(tmp_path))
    whole, source = open_images(Settings(root, image_size=8)), open_images(Settings(root, image_size=8, queries=1))
    assert source.splits == ("train", "gallery", "queries")
    assert source.items("queries").labels_N.tolist() == source.items("gallery").labels_N.tolist() == [0, 1]
    both = [*source.items("queries").ids_N, *source.items("gallery").ids_N]
    assert sorted(both) == whole.items("gallery").ids_N.tolist()
    for wrong in (2, -1):
        with pytest.raises(InputError, match=r"--images\.queries must be at least 0 and less than 2"):
            open_images(Settings(root, queries=wrong))


def test_a_class_that_train_lacks_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "tiny_imagenet.zip", {f"{s}/0.jpg": encode_photo(9) for s in ("train/n01", "gallery/n02")})
    with pytest.raises(InputError, match="gallery has the class 'n02', which train lacks"):
        open_images(Settings(str(tmp_path)))


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "tiny_imagenet.zip", {f"top/{s}/0.jpg": encode_photo(9) for s in ("train/n01", "val/n01")})
    with pytest.raises(InputError, match=r"no folder gallery with class folders \(in .*tiny_imagenet\.zip'?\)"):
        open_images(Settings(str(tmp_path)))


def test_photographs_beside_class_folders_are_refused(tmp_path: Path) -> None:
    write_tree(unpacked(tmp_path) / "tiny_imagenet" / "train", {"stray.jpg": encode_photo(9)})
    with pytest.raises(InputError, match=r"stray\.jpg is in no class folder"):
        open_images(Settings(str(tmp_path)))


@needs_the_images
def test_the_real_photographs() -> None:
    source = open_images(Settings(str(REAL)))
    assert np.bincount(source.items("train").labels_N).tolist() == [150] * 200
    assert np.bincount(source.items("gallery").labels_N).tolist() == [50] * 200
    pixels = source.read("gallery", np.arange(0, 10_000, 200))
    assert not pixels.broken
    assert pixels.pixels_BSSC.shape == (50, 64, 64, 3)
    assert 60 < pixels.pixels_BSSC.mean() < 180
