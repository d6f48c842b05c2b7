import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.folders import ImageNetSettings as Settings
from ray_backfill.images.datasets.folders import open_imagenet as open_images
from ray_backfill.images.source import ImageSource
from tests.images.datasets._pictures import encode, names, noisy_jpeg
from tests.images.datasets._published import (
    GOLDFISH,
    TENCH,
    TISSUE,
    imagenet_flat,
    imagenet_folders,
    imagenet_kaggle,
    jpeg,
    write_devkit,
)

DEVKIT = "ILSVRC2012_devkit_t12/data"
GROUND_TRUTH = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt"


def opened(root: Path) -> ImageSource:
    return open_images(Settings(str(root), image_size=16))


def labels_by_name(source: ImageSource, split: str) -> dict[str, int]:
    labels = source.items(split).labels_N.tolist()
    return {name.rsplit("/", 1)[1]: label for name, label in zip(names(source, split), labels, strict=True)}


def middle(source: ImageSource, split: str, name: str) -> list[int]:
    """The colour in the middle of an image."""
    row = list(labels_by_name(source, split)).index(name)
    return source.read(split, np.array([row])).pixels_BSSC[0, 8, 8].tolist()


@pytest.mark.parametrize("write", [imagenet_folders, imagenet_flat, imagenet_kaggle])
def test_every_layout_gives_the_same_images_and_labels(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = opened(write(tmp_path))
    assert source.splits == ("train", "gallery")
    assert labels_by_name(source, "train") == {
        "n01440764_10026.JPEG": 0,
        "n01440764_10027.JPEG": 0,
        "n01443537_10.JPEG": 1,
        "n01443537_9.JPEG": 1,
        "n15075141_5.JPEG": 2,
    }
    assert labels_by_name(source, "gallery") == {
        "ILSVRC2012_val_00000001.JPEG": 2,
        "ILSVRC2012_val_00000002.JPEG": 1,
        "ILSVRC2012_val_00000003.JPEG": 1,
        "ILSVRC2012_val_00000004.JPEG": 0,
    }
    for number in (1, 2, 3, 4):
        colour = middle(source, "gallery", f"ILSVRC2012_val_0000000{number}.JPEG")
        np.testing.assert_allclose(colour, [50 * number, 20, 90], atol=4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{TENCH}_10026.JPEG", [200, 60, 20]),
        (f"{TENCH}_10027.JPEG", [130, 130, 130]),  # grey
        (f"{GOLDFISH}_9.JPEG", [255, 0, 0]),  # CMYK
        (f"{GOLDFISH}_10.JPEG", [10, 220, 30]),  # a PNG under that name
    ],
)
def test_pictures_of_every_kind_become_rgb(tmp_path: Path, name: str, expected: list[int]) -> None:
    np.testing.assert_allclose(middle(opened(imagenet_folders(tmp_path)), "train", name), expected, atol=4)


def test_rotated_truncated_and_missing_files(tmp_path: Path) -> None:
    imagenet_folders(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6  # the left column is the top row
    halves = Image.new("RGB", (40, 40), (255, 0, 0))
    halves.paste((0, 0, 255), (0, 0, 20, 40))
    folder = tmp_path / "train" / TENCH
    (folder / "a.JPEG").write_bytes(encode(halves, "JPEG", exif=exif, quality=95))
    (folder / "b.JPEG").write_bytes(noisy_jpeg()[:-600])
    (folder / "c.JPEG").write_bytes(jpeg((1, 2, 3)))
    source = opened(tmp_path)
    (folder / "c.JPEG").unlink()
    rows = [list(labels_by_name(source, "train")).index(f"{name}.JPEG") for name in "abc"]
    pixels = source.read("train", np.array(rows))
    assert sorted(pixels.broken) == [1, 2]
    assert f"{TENCH}/b.JPEG: " in pixels.broken[1]
    assert "truncated" in pixels.broken[1]
    assert "No such file" in pixels.broken[2]
    np.testing.assert_allclose(pixels.pixels_BSSC[0, 2, 8], [0, 0, 255], atol=4)
    np.testing.assert_allclose(pixels.pixels_BSSC[0, 13, 8], [255, 0, 0], atol=4)


@pytest.mark.parametrize("place", ["", "data", "ILSVRC2012_devkit_t12", "devkit/data"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_development_kit_may_stand_in_many_places(tmp_path: Path, place: str, end: str) -> None:
    imagenet_flat(tmp_path)
    shutil.rmtree(tmp_path / "ILSVRC2012_devkit_t12")
    write_devkit(tmp_path / "kit", end)
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for file in (tmp_path / "kit").iterdir():
        file.rename(tmp_path / place / file.name)
    assert list(labels_by_name(opened(tmp_path), "gallery").values()) == [2, 1, 1, 0]


def test_the_table_may_come_from_windows(tmp_path: Path) -> None:
    table = imagenet_kaggle(tmp_path) / "LOC_val_solution.csv"
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes().replace(b"\n", b"\r\n"))
    assert list(labels_by_name(opened(tmp_path), "gallery").values()) == [2, 1, 1, 0]


def test_the_fingerprint_follows_the_ground_truth(tmp_path: Path) -> None:
    imagenet_flat(tmp_path)
    before = opened(tmp_path).fingerprint()
    assert opened(tmp_path).fingerprint() == before
    (tmp_path / GROUND_TRUTH).write_text("1\n3\n2\n2\n")
    assert opened(tmp_path).fingerprint() != before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\n3\n3\n", r"lists the classes of 3 images, but .*/val has 4"),
        ("1\n3\n3\n2\n2\n", r"lists the classes of 5 images"),
        ("1\n3\n4\n2\n", r"gives image 3 the class '4', but meta\.mat has 1 to 3"),
        ("1\n3\n1001\n2\n", r"gives image 3 the class '1001'"),  # a class above others has no images
        ("1\n3\n0\n2\n", r"gives image 3 the class '0'"),
        ("1\nx\n3\n2\n", r"gives image 2 the class 'x'"),
        ("1\n3.0\n3\n2\n", r"gives image 2 the class '3\.0'"),
    ],
)
def test_another_ground_truth_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (imagenet_flat(tmp_path) / GROUND_TRUTH).write_text(text)
    with pytest.raises(InputError, match=problem):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("ILSVRC2012_val_00000004", "ILSVRC2012_val_00000005"), "does not list all images from number 1 on"),
        (("ILSVRC2012_val_00000004", "ILSVRC2012_val_00000003"), "image 'ILSVRC2012_val_00000003': expected each"),
        (("ILSVRC2012_val_00000004", "ILSVRC2012_test_00000004"), "image 'ILSVRC2012_test_00000004'"),
        ((f",{TENCH} 111", ",111"), "image 'ILSVRC2012_val_00000004': expected each"),
        (("ImageId", "Image"), "image '': expected each"),
        ((f",{TENCH}", ",n09999999"), "solution.csv has the class 'n09999999', which train lacks"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    table = imagenet_kaggle(tmp_path) / "LOC_val_solution.csv"
    table.write_text(table.read_text().replace(*change))
    with pytest.raises(InputError, match=problem):
        opened(tmp_path)


def test_a_damaged_kit_is_named(tmp_path: Path) -> None:
    meta = imagenet_flat(tmp_path) / DEVKIT / "meta.mat"
    whole = meta.read_bytes()
    meta.write_bytes(whole[:300])
    with pytest.raises(InputError, match=r"meta\.mat cannot be read"):
        opened(tmp_path)
    savemat(meta, {"other": np.zeros(3)})
    with pytest.raises(InputError, match=r"meta\.mat cannot be read \(KeyError"):
        opened(tmp_path)
    meta.unlink()
    with pytest.raises(InputError, match=r"meta\.mat is missing; copy it from the development kit"):
        opened(tmp_path)
    meta.write_bytes(whole)
    (tmp_path / GROUND_TRUTH).write_bytes(b"\xff\xfe1\n")
    with pytest.raises(InputError, match=r"ground_truth\.txt cannot be read"):
        opened(tmp_path)


def test_a_flat_val_needs_a_ground_truth(tmp_path: Path) -> None:
    shutil.rmtree(imagenet_flat(tmp_path) / "ILSVRC2012_devkit_t12")
    with pytest.raises(
        InputError, match=r"val has no class folders, and there is neither.*Where to get it: https://image-net"
    ):
        opened(tmp_path)


def test_other_names_and_gaps_in_a_flat_val(tmp_path: Path) -> None:
    val = imagenet_flat(tmp_path) / "val"
    (val / "ILSVRC2012_val_00000002.JPEG").rename(val / "ILSVRC2012_val_00000007.JPEG")
    with pytest.raises(InputError, match="validation image 2 is missing"):
        opened(tmp_path)
    (val / "ILSVRC2012_val_00000007.JPEG").rename(val / "holiday.JPEG")
    with pytest.raises(InputError, match=r"val/holiday\.JPEG is not named like ILSVRC2012_val_00000001\.JPEG"):
        opened(tmp_path)


def test_a_class_of_val_that_train_lacks(tmp_path: Path) -> None:
    for number, write in enumerate((imagenet_flat, imagenet_folders)):
        root = write(tmp_path / str(number))
        shutil.rmtree(root / "train" / TISSUE)
        with pytest.raises(InputError, match=f"has the class '{TISSUE}', which train lacks"):
            opened(root)


def test_folders_with_other_names(tmp_path: Path) -> None:
    imagenet_folders(tmp_path)
    (tmp_path / "train" / TISSUE).rename(tmp_path / "train" / "tissue")
    with pytest.raises(InputError, match=r"train/tissue is not named by a WordNet id.*image_folder"):
        opened(tmp_path)


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_image_outside_of_the_class_folders(tmp_path: Path, split: str) -> None:
    imagenet_folders(tmp_path)
    (tmp_path / split / "stray.JPEG").write_bytes(jpeg((1, 2, 3)))
    with pytest.raises(InputError, match=rf"{split}/stray\.JPEG is in no class folder"):
        opened(tmp_path)
