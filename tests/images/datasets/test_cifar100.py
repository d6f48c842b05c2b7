import hashlib
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import cifar100, download
from ray_backfill.images.datasets.cifar100 import Settings, open_images
from ray_backfill.images.decode import decode
from tests.images.datasets._pictures import encode, write_tree
from tests.images.datasets._published import CIFAR_TEST, cifar_binary

ALL = {"train": np.arange(5), "gallery": np.arange(4)}


def test_labels_and_pixels(tmp_path: Path) -> None:
    cifar_binary(tmp_path)
    source = open_images(Settings(str(tmp_path)))
    assert source.splits == ("train", "gallery")
    assert source.items("train").labels_N.tolist() == [19, 29, 0, 99, 0]
    assert source.items("gallery").labels_N.tolist() == [49, 0, 99, 0]
    assert source.items("gallery").ids_N.tolist() == [5, 6, 7, 8]
    pixels = source.read("gallery", np.array([2, 0])).pixels_BSSC
    assert pixels.shape == (2, 32, 32, 3)
    for image, number in ((0, 103), (1, 101)):
        for row in range(32):
            for column in range(32):
                assert pixels[image, row, column].tolist() == [row, 2 * column, number]


@pytest.mark.parametrize("size", [5, 16, 48])
def test_other_sizes_are_made_as_those_of_image_files(tmp_path: Path, size: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = cifar_binary(tmp_path) / "train.bin"
    file.write_bytes(bytes([19, 99]) + image.transpose(2, 0, 1).tobytes())
    pixels = open_images(Settings(str(tmp_path), size)).read("train", np.array([0])).pixels_BSSC
    np.testing.assert_array_equal(pixels, [decode(encode(Image.fromarray(image)), size, 3)])


def test_the_root_may_be_the_inner_folder(tmp_path: Path) -> None:
    assert len(open_images(Settings(str(cifar_binary(tmp_path)))).items("train")) == 5


def test_a_pickled_source_is_small_and_reads_the_same(tmp_path: Path) -> None:
    cifar_binary(tmp_path)
    source = open_images(Settings(str(tmp_path)))
    before = source.fingerprint()
    sent = pickle.dumps(source)
    assert len(sent) < 2000  # the images have 9 x 3072 bytes
    again = pickle.loads(sent)
    assert again.fingerprint() == before
    np.testing.assert_array_equal(again.read("train", ALL["train"]).pixels_BSSC[4, 0, 0], [0, 0, 5])


@pytest.mark.parametrize("position", [1, 2, -1])
def test_the_fingerprint_follows_every_byte_that_counts(tmp_path: Path, position: int) -> None:
    file = cifar_binary(tmp_path) / "test.bin"
    before = open_images(Settings(str(tmp_path))).fingerprint()
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    assert open_images(Settings(str(tmp_path))).fingerprint() != before


def test_the_fingerprint_tells_train_from_gallery(tmp_path: Path) -> None:
    folder = cifar_binary(tmp_path)
    before = open_images(Settings(str(tmp_path))).fingerprint()
    train, test = (folder / "train.bin").read_bytes(), (folder / "test.bin").read_bytes()
    (folder / "train.bin").write_bytes(train + test[:3074])
    (folder / "test.bin").write_bytes(test[3074:])
    assert open_images(Settings(str(tmp_path))).fingerprint() != before


@pytest.mark.parametrize("length", [0, 3074 * 3 - 1, 3073 * 2])
def test_a_truncated_binary_file(tmp_path: Path, length: int) -> None:
    file = cifar_binary(tmp_path) / "test.bin"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(InputError, match=rf"test\.bin is truncated.*{length} bytes.*download it again"):
        open_images(Settings(str(tmp_path)))


def test_records_of_another_kind(tmp_path: Path) -> None:
    file = cifar_binary(tmp_path) / "train.bin"
    file.write_bytes(bytes([4, 100]) + bytes(3072))
    with pytest.raises(InputError, match=r"train\.bin is not CIFAR-100: it has labels outside 0 to 99"):
        open_images(Settings(str(tmp_path)))


@pytest.mark.parametrize("names", [["cifar-100-python/train"], ["cifar-100-python.tar.gz"], ["train", "test", "meta"]])
def test_the_python_version_is_refused_with_the_remedy(tmp_path: Path, names: list[str]) -> None:
    write_tree(tmp_path, dict.fromkeys(names, b""))
    remedy = r"add --download, or unpack cifar-100-binary\.tar\.gz there.* Where to get it: .*kriz/cifar\.html"
    with pytest.raises(InputError, match=f"this is the Python version, but only the binary version is read: {remedy}"):
        open_images(Settings(str(tmp_path)))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the files are missing"):
        open_images(Settings(str(tmp_path)))
    (cifar_binary(tmp_path) / "test.bin").unlink()
    with pytest.raises(InputError, match=r"cifar-100-binary/test\.bin is missing"):
        open_images(Settings(str(tmp_path)))


def test_an_archive_that_is_there_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as members:
        members.add(cifar_binary(tmp_path / "made"), "cifar-100-binary")
    settings = Settings(str(tmp_path))
    with pytest.raises(InputError, match=rf"{archive.name} is not unpacked: add --download"):
        open_images(settings)
    with pytest.raises(InputError, match=f"instead of {cifar100.ARCHIVE.md5}"):
        download(settings)  # it is not the true one
    # Taken for the true one; there is no network.
    true = replace(
        cifar100.ARCHIVE, md5=hashlib.md5(archive.read_bytes()).hexdigest(), url=f"http://127.0.0.1:9/{archive.name}"
    )
    monkeypatch.setattr(cifar100, "ARCHIVE", true)
    download(settings)
    assert open_images(settings).items("gallery").labels_N.tolist() == [fine for _, fine in CIFAR_TEST]
    archive.unlink()
    download(settings)  # nothing to do: neither archive nor network is needed


def test_without_a_root_nothing_is_downloaded() -> None:
    with pytest.raises(InputError, match="no root is given; set it to the folder to download to"):
        download(Settings(""))
