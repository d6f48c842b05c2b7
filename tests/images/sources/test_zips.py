import hashlib
import os
import pickle
import zlib
from pathlib import Path

import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.sources.zips import ZipListing, list_images, list_zips
from tests.images.datasets._pictures import write_tree, write_zip
from tests.images.sources.test_folders import BLUE, RED, names


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (["top/cat/1.png", "top/dog/1.png"], ["cat/1.png", "dog/1.png"]),
        (["cat/1.png", "dog/1.png"], ["cat/1.png", "dog/1.png"]),
        (["cat/1.png", "cat/2.png"], ["cat/1.png", "cat/2.png"]),  # the only folder is the class
        (["train/cat/1.png", "train/dog/1.png"], ["train/cat/1.png", "train/dog/1.png"]),  # a split, not a wrapping
        (["top/train/cat/1.png", "top/val/cat/2.png"], ["train/cat/1.png", "val/cat/2.png"]),
        (["./cat/1.png", "./dog/1.png"], ["cat/1.png", "dog/1.png"]),
    ],
)
def test_the_top_folder_of_a_zip(tmp_path: Path, members: list[str], expected: list[str]) -> None:
    path = write_zip(tmp_path / "a.zip", dict.fromkeys(members, RED))
    assert names(list_images(str(path))) == expected


def test_a_class_in_two_zips_counts_once_from_the_first(tmp_path: Path) -> None:
    write_zip(tmp_path / "b.zip", {"two/cat/1.png": BLUE, "two/cat/2.png": BLUE, "two/owl/1.png": BLUE})
    write_zip(tmp_path / "a.zip", {"one/cat/1.png": RED, "one/cat/2.png": RED, "one/dog/1.png": RED})
    listing = list_images(str(tmp_path))
    assert names(listing) == ["cat/1.png", "cat/2.png", "dog/1.png", "owl/1.png"]
    assert [listing.read(i) for i in range(4)] == [RED, RED, RED, BLUE]
    assert listing.where(3) == f"{tmp_path}/b.zip!two/owl/1.png"


def test_a_class_spread_over_two_zips_is_not_lost_in_silence(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"top/cat/1.png": RED, "top/dog/1.png": RED})
    write_zip(tmp_path / "b.zip", {"top/cat/2.png": RED, "top/dog/1.png": RED})
    with pytest.raises(InputError, match=r"class 'cat' has other images in .*b\.zip than in .*a\.zip"):
        list_images(str(tmp_path))


def test_a_tree_beside_zips_is_a_tree(tmp_path: Path) -> None:
    write_tree(tmp_path, {"cat/1.png": RED})
    write_zip(tmp_path / "a.zip", {"dog/1.png": RED})
    assert names(list_images(str(tmp_path))) == ["cat/1.png"]


def test_each_process_opens_a_zip_when_it_first_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_zips([write_zip(tmp_path / "a.zip", {"cat/1.png": RED, "dog/1.png": BLUE})])
    assert isinstance(listing, ZipListing)
    assert not listing._opened
    assert listing.read(1) == BLUE
    copy = pickle.loads(pickle.dumps(listing))
    assert not copy._opened
    assert copy.read(1) == BLUE
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a fork
    listing.read(0)
    assert len(set(map(id, listing._opened.values()))) == 2


@pytest.mark.parametrize("root", ["", "nowhere"])
def test_missing_root(tmp_path: Path, root: str) -> None:
    with pytest.raises(InputError, match="no folder or zip file at"):
        list_images(root and str(tmp_path / root))


@pytest.mark.parametrize("data", [b"", b"PK\3\4 cut short"])
def test_corrupt_zip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"cannot read zip file .*a\.zip"):
        list_images(str(tmp_path))


def test_the_digest_of_zips_is_that_of_plain_loops(tmp_path: Path) -> None:
    """Members in no order, in two files: each keeps its own size and checksum."""
    members = {"z/b.png": RED, "z/a.png": BLUE + b"1", "m/9.png": RED + b"23", "m/10.png": b""}
    others = {"a/x.png": BLUE + b"456"}
    listing = list_zips([write_zip(tmp_path / "1.zip", members), write_zip(tmp_path / "2.zip", others)])
    hasher = hashlib.sha256()
    for name, data in sorted((members | others).items()):
        hasher.update(f"{name}\0{len(data)}:{zlib.crc32(data):08x}\n".encode())
    assert listing.digest() == hasher.hexdigest()
