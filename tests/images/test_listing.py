import gc
import hashlib
import os
import pickle
import random
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images import listing as module
from ray_backfill.images.listing import Listing, ZipListing, list_folders, list_images, list_zips
from tests.images.datasets._pictures import plain, write_tree, write_zip

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def names(listing: Listing) -> list[str]:
    return [listing.name(position) for position in range(len(listing))]


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


def test_empty_classes_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", {"cat/1.png": RED, "birds/owl/notes.txt": b"", "birds/jay/1.png": RED})
    (tmp_path / "tree/dog/big").mkdir(parents=True)
    with pytest.raises(InputError, match=r"empty class in .*: no images in 'birds/owl', 'dog/big';") as caught:
        list_images(str(tmp_path / "tree"))
    assert "\n" not in str(caught.value)
    path = write_zip(tmp_path / "a.zip", {"top/cat/1.png": RED, "top/dog/": b""})
    with pytest.raises(InputError, match="no images in 'dog';"):
        list_images(str(path))


def random_tree(root: Path, rng: random.Random) -> list[tuple[str, str]]:
    """Files with awkward names and their (folder, name)s, sorted as Python sorts."""
    letters = "ab-!z.é漢🐱Z0 "
    made = set()
    for _ in range(rng.randint(1, 40)):
        *folders, name = ["q" + "".join(rng.choices(letters, k=rng.randint(0, 2))) for _ in range(rng.randint(1, 4))]
        made.add(("/".join(folders), name + rng.choice([".jpg", ".PNG"])))
    write_tree(root, {f"{folder}/{name}".lstrip("/"): RED[: rng.randint(0, 9)] for folder, name in made})
    return sorted(made)


@pytest.mark.parametrize("seed", range(30))
def test_order_and_digest_are_those_of_plain_loops(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    expected = random_tree(tmp_path, rng)
    monkeypatch.setattr(module, "CHUNK", rng.choice([1, 2, 3, 65_536]))
    listing = list_images(str(tmp_path))
    assert [(listing.folder(i), listing.names[i].as_py()) for i in range(len(listing))] == expected
    assert listing.folders == sorted({folder for folder, _ in expected})
    assert (np.diff(listing.folder_N) >= 0).all()
    hasher = hashlib.sha256()
    for folder, name in expected:
        status = (tmp_path / folder / name).stat()
        hasher.update(f"{folder}/{name}\0{status.st_size}:{status.st_mtime_ns}\n".encode())
    assert listing.digest() == hasher.hexdigest()
    assert [listing.where(i) for i in range(len(listing))] == [str(tmp_path / f / n) for f, n in expected]


def test_a_digest_is_made_once(tmp_path: Path) -> None:
    """It asks the disk about every file, so the listing keeps it, also when it travels to another process."""
    listing = list_images(str(write_tree(tmp_path, {"cat/1.png": RED})))
    before = listing.digest()
    (tmp_path / "cat/1.png").write_bytes(b"")
    assert listing.digest() == before == pickle.loads(pickle.dumps(listing)).digest()
    assert list_images(str(tmp_path)).digest() != before


def test_only_the_folders_asked_for_are_walked(tmp_path: Path) -> None:
    files = ["train/cat/1.png", "val/2.png", "traintoo/3.png", "other/4.png", "5.png", "val/deep/6.png"]
    root = str(write_tree(tmp_path, dict.fromkeys(files, RED)))
    (tmp_path / "empty").mkdir()
    assert names(list_folders(root, ("train", "val", "not there"))) == [
        "train/cat/1.png",
        "val/2.png",
        "val/deep/6.png",
    ]
    assert names(list_folders(root, ("val/deep",))) == ["val/deep/6.png"]
    with pytest.raises(InputError, match=r"no images in .* \(in tain, vla\)"):
        list_folders(root, ("tain", "vla"))


@pytest.mark.parametrize("bad", [b"cat/\xe9.png", b"\xe9/1.png"])
def test_names_that_are_not_utf8_are_refused(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / os.fsdecode(bad)
    try:
        path.parent.mkdir()
        path.write_bytes(RED)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(InputError, match=r"the name b'.xe9(\.png)?' in .* is not UTF-8: rename it") as caught:
        list_images(str(tmp_path))
    assert str(caught.value).isprintable()


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, {"cat/1.png": RED, "dog/1.png": RED})
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"cannot read folder .*/dog: Permission denied"):
        list_images(str(tmp_path))


class Entry:
    """What os.scandir yields."""

    def __init__(self, name: str, folder: bool) -> None:
        self.name, self.path, self.folder = name, name, folder

    def is_dir(self) -> bool:
        return self.folder

    def is_symlink(self) -> bool:
        return False


@contextmanager
def large_tree(path: Path) -> Iterator[Iterator[Entry]]:
    """os.scandir of a tree of 50 folders with 2,000 images each, which costs no disk access."""
    if path.name.startswith("n0"):
        yield (Entry(f"image{(i * 7919) % 10007:05d}.jpg", False) for i in range(2000))
    else:
        yield (Entry(f"n0{i:02d}", True) for i in range(50))


@pytest.mark.full
def test_a_listing_holds_no_object_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 files: their names' bytes and some numbers, not 100,000 objects; nor while they are listed."""
    monkeypatch.setattr(os, "scandir", large_tree)
    monkeypatch.setattr(module, "CHUNK", 1000)
    list_images(str(tmp_path))  # whatever is loaded at the first time
    gc.collect()
    before = sys.getallocatedblocks()
    tracemalloc.start()
    listing = list_images(str(tmp_path))
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.collect()
    assert len(listing) == 100_000
    assert sys.getallocatedblocks() - before < 5000
    # Of Python's memory (Arrow's, with the names, is apart): 4 bytes a file for the folders' numbers, and what sorts
    # them meanwhile. A list of the names alone would be 70 bytes a file.
    assert kept < 6 * 100_000
    assert most < 40 * 100_000
    assert listing.names.nbytes < (14 + 8 + 1) * 100_000


def test_a_link_to_a_folder_above_it_is_refused(tmp_path: Path) -> None:
    """It would list each image forty times, as often as the system follows links."""
    write_tree(tmp_path, {"root/a/1.jpg": b"", "elsewhere/2.jpg": b""})
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    assert names(list_folders(str(tmp_path / "root"))) == ["a/1.jpg", "b/2.jpg"]
    (tmp_path / "root" / "a" / "up").symlink_to("..")
    with pytest.raises(InputError, match=r"the link .*/a/up leads to a folder above it"):
        list_images(str(tmp_path / "root"))


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
