import os
import pickle
from pathlib import Path

import pytest

from ray_backfill.datasets._files import Listing, list_images, list_zips
from ray_backfill.errors import InputError
from tests.datasets._pictures import plain, write_tree, write_zip

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def names(listing: Listing) -> list[str]:
    return [f"{file.folder}/{file.name}" for file in listing.files]


def test_a_tree_is_sorted_and_nested(tmp_path: Path) -> None:
    write_tree(tmp_path, {"b/2.png": RED, "b/1.JPG": BLUE, "a/x/1.png": RED, "a/x/notes.txt": b"", "readme.md": b""})
    listing = list_images(str(tmp_path))
    assert names(listing) == ["a/x/1.png", "b/1.JPG", "b/2.png"]
    assert listing.read(1) == BLUE


def test_hidden_files_are_not_there(tmp_path: Path) -> None:
    files = {"cat/1.png": RED, "cat/._1.png": b"", "cat/.2.png": RED, ".git/3.png": RED, "__MACOSX/cat/._1.png": b""}
    write_tree(tmp_path / "tree", files)
    write_zip(tmp_path / "zip.zip", files)
    assert names(list_images(str(tmp_path / "tree"))) == ["cat/1.png"]
    assert names(list_images(str(tmp_path / "zip.zip"))) == ["cat/1.png"]


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    write_tree(tmp_path / "elsewhere", {"1.png": RED})
    write_tree(tmp_path / "tree", {"cat/1.png": RED})
    (tmp_path / "tree/dog").symlink_to(tmp_path / "elsewhere")
    assert names(list_images(str(tmp_path / "tree"))) == ["cat/1.png", "dog/1.png"]


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


def test_handles_are_lazy_and_not_pickled(tmp_path: Path) -> None:
    listing = list_zips([write_zip(tmp_path / "a.zip", {"cat/1.png": RED, "dog/1.png": BLUE})])
    assert not listing._handles
    assert listing.read(1) == BLUE
    assert [pid for pid, _ in listing._handles] == [os.getpid()]
    copy = pickle.loads(pickle.dumps(listing))
    assert not copy._handles
    assert copy.read(1) == BLUE


def test_a_forked_process_opens_its_own_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_zips([write_zip(tmp_path / "a.zip", {"cat/1.png": RED})])
    listing.read(0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    listing.read(0)
    assert len(set(map(id, listing._handles.values()))) == 2


def test_digest_of_a_tree(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", {"cat/1.png": RED, "dog/1.png": RED})
    before = list_images(str(tmp_path / "tree")).digest()
    assert list_images(str(tmp_path / "tree")).digest() == before
    write_tree(tmp_path / "tree", {"cat/1.png": RED + b"x"})
    changed = list_images(str(tmp_path / "tree")).digest()
    (tmp_path / "tree/cat").rename(tmp_path / "tree/cow")
    assert len({before, changed, list_images(str(tmp_path / "tree")).digest()}) == 3


def test_digest_of_a_zip_follows_its_content_not_its_place(tmp_path: Path) -> None:
    same = [list_zips([write_zip(tmp_path / f"{n}.zip", {"cat/1.png": RED})]).digest() for n in range(2)]
    other = list_zips([write_zip(tmp_path / "3.zip", {"cat/1.png": BLUE})]).digest()
    assert same[0] == same[1] != other


@pytest.mark.parametrize("root", ["", "nowhere"])
def test_missing_root(tmp_path: Path, root: str) -> None:
    with pytest.raises(InputError, match="no folder or zip file at"):
        list_images(root and str(tmp_path / root))


def test_no_images(tmp_path: Path) -> None:
    write_tree(tmp_path, {"cat/notes.txt": b""})
    with pytest.raises(InputError, match="no images in"):
        list_images(str(tmp_path))


def test_empty_classes_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", {"cat/1.png": RED, "birds/owl/notes.txt": b"", "birds/jay/1.png": RED})
    (tmp_path / "tree/dog/big").mkdir(parents=True)
    with pytest.raises(InputError, match=r"an empty class in .*: no images in 'birds/owl', 'dog/big';") as caught:
        list_images(str(tmp_path / "tree"))
    assert "\n" not in str(caught.value)
    path = write_zip(tmp_path / "a.zip", {"top/cat/1.png": RED, "top/dog/": b""})
    with pytest.raises(InputError, match="no images in 'dog';"):
        list_images(str(path))


@pytest.mark.parametrize("data", [b"", b"PK\3\4 cut short"])
def test_corrupt_zip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"cannot read zip file .*a\.zip"):
        list_images(str(tmp_path))
