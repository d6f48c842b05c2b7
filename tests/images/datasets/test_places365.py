import shutil
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.folders import Places365Settings as Settings
from ray_backfill.images.datasets.folders import open_places365 as open_images
from tests.images.datasets._published import jpeg, places_easy


@pytest.mark.parametrize("inner", ["", "places365_standard"])
def test_labels_and_pixels(tmp_path: Path, inner: str) -> None:
    source = open_images(Settings(str(places_easy(tmp_path) / inner), image_size=16))
    assert source.splits == ("train", "gallery")
    assert source.items("train").labels_N.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.items("gallery").labels_N.tolist() == [0, 0, 2, 2]
    assert source.names("gallery", np.array([3, 0])) == [
        "val/zen_garden/Places365_val_00000002.jpg",
        "val/airfield/Places365_val_00000001.jpg",
    ]
    pixels = source.read("gallery", np.array([3, 0])).pixels_BSSC
    np.testing.assert_allclose(pixels[:, 8, 8], [[80, 20, 90], [20, 20, 90]], atol=4)


def test_nested_classes_and_a_class_with_one_image(tmp_path: Path) -> None:
    folder = places_easy(tmp_path) / "places365_standard"
    for split in ("train", "val"):
        (folder / split / "apartment" / "outdoor").mkdir(parents=True)
        (folder / split / "apartment" / "outdoor" / "00000001.jpg").write_bytes(jpeg((100,), "L"))
    source = open_images(Settings(str(tmp_path), image_size=16))
    # airfield, apartment/outdoor, apartment_building-outdoor, zen_garden
    assert source.items("train").labels_N.tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert source.items("gallery").labels_N.tolist() == [0, 0, 1, 3, 3]
    pixels = source.read("gallery", np.array([2])).pixels_BSSC
    np.testing.assert_allclose(pixels[0, 8, 8], [100, 100, 100], atol=2)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    shutil.rmtree(places_easy(tmp_path) / "places365_standard" / "val")
    with pytest.raises(InputError, match=r"there is no folder val \(in .*places365_standard'\)"):
        open_images(Settings(str(tmp_path)))
