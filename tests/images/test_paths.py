import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import Bucket
from ray_backfill.images.datasets import landmarks
from ray_backfill.images.paths import Paths
from ray_backfill.images.source import FileSource, Items
from tests.images.datasets._pictures import plain, write_tree

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def paths(root: str | Path, *names: str) -> Paths:
    return Paths(str(root), pa.array(names))


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Object stores without a network: bucket B is the folder tmp_path/B. Returns what has been read."""
    read: list[str] = []

    def from_folder(bucket: Bucket, key: str) -> tuple[bytes, None]:
        read.append(bucket.uri(key))
        return (tmp_path / bucket.name / key).read_bytes(), None

    monkeypatch.setattr(Bucket, "read", from_folder)
    return read


@pytest.mark.parametrize("name", ["a b.png", "x/1,2.png", 'quo"te.png', "100%.png", "what?.png", "é漢.png", "a#b.png"])
def test_a_local_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path, {name: RED})
    uri = (tmp_path / name).as_uri()  # percent signs where a URI needs them
    root_uri = tmp_path.as_uri()
    for files in (paths(tmp_path, name), paths("", str(tmp_path / name)), paths("", uri), paths(root_uri, name)):
        assert files.read(0) == RED
        assert files.where(0) == str(tmp_path / name)
        assert not files.remote
    assert paths(tmp_path, name).name(0) == name


def test_absolute_paths_and_uris_stand_for_themselves(tmp_path: Path) -> None:
    write_tree(tmp_path, {"here/1.png": RED, "there/2.png": BLUE})
    there = tmp_path / "there/2.png"
    files = paths(tmp_path / "here", "1.png", str(there), there.as_uri(), "../there/2.png")
    assert [files.read(i) for i in range(4)] == [RED, BLUE, BLUE, BLUE]


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("s3://bucket/deep", "a b%20.png"),
        ("s3://bucket/deep/", "./a b%20.png"),
        ("s3://bucket", "deep/a b%20.png"),
        ("", "s3://bucket/deep/a b%20.png"),
        ("/somewhere/else", "gs://bucket/deep/a b%20.png"),
        ("s3://other/prefix", "s3://bucket/deep/a b%20.png"),
    ],
)
def test_keys_of_object_stores_are_taken_as_they_are(tmp_path: Path, stores: list[str], root: str, name: str) -> None:
    write_tree(tmp_path, {"bucket/deep/a b%20.png": RED})
    files = paths(root, name)
    assert files.remote
    assert files.read(0) == RED
    assert [files.where(0)] == stores == [f"{'gs' if 'gs:' in name else 's3'}://bucket/deep/a b%20.png"]
    assert pickle.loads(pickle.dumps(files)).read(0) == RED


def test_a_question_mark_below_a_remote_root_is_part_of_the_key(tmp_path: Path, stores: list[str]) -> None:
    write_tree(tmp_path, {"bucket/what?.png": RED})
    assert paths("s3://bucket", "what?.png").read(0) == RED
    assert stores == ["s3://bucket/what?.png"]


def test_absolute_paths_are_local_below_a_remote_root(tmp_path: Path, stores: list[str]) -> None:
    write_tree(tmp_path, {"1.png": RED})
    assert paths("s3://bucket", str(tmp_path / "1.png")).read(0) == RED
    assert not stores


def test_other_addresses_are_refused(tmp_path: Path) -> None:
    for address, said in {
        "https://example.org/a.png": "https://example.org is neither on a disk nor in object storage; give a path, s3://",
        "ftp://host/a.png": "ftp://host is neither",
        "s3://bucket/a.png?region=eu-west-1": "an address has no options",
        "s3://KEY:SECRET@bucket/a.png": "credentials come from the environment, never from an address",
    }.items():
        for root, name in ((str(tmp_path), address), (address.removesuffix("/a.png"), "a.png")):
            with pytest.raises(InputError) as caught:
                paths(root, "a.png", name)
            assert said in str(caught.value)
            assert "SECRET" not in str(caught.value)


def test_digest(tmp_path: Path) -> None:
    write_tree(tmp_path, {"1.png": RED, "2.png": RED})
    before = paths(tmp_path, "1.png", "2.png").digest()
    assert paths(tmp_path, "1.png", "2.png").digest() == before
    assert paths(tmp_path, "2.png", "1.png").digest() != before
    write_tree(tmp_path, {"2.png": RED + b"x"})
    longer = paths(tmp_path, "1.png", "2.png").digest()
    (tmp_path / "2.png").unlink()
    assert len({before, longer, paths(tmp_path, "1.png", "2.png").digest()}) == 3


def test_digest_of_remote_files_asks_nothing(stores: list[str]) -> None:
    before = paths("s3://bucket", "1.png", "2.png").digest()
    assert not stores
    assert paths("s3://elsewhere/deep", "1.png", "2.png").digest() == before  # the same images in another place
    assert paths("s3://bucket", "1.png", "3.png").digest() != before
    assert not stores


def source_of(files: Any) -> FileSource:
    rows = np.arange(len(files))
    return FileSource("test", landmarks.Settings(image_size=4), files, {"train": Items(rows, rows)})


class Slow:
    """A remote place where each file takes a while; counts how many are asked for at once."""

    remote, most, now = True, 0, 0

    def __init__(self, count: int) -> None:
        self.count, self.lock = count, threading.Lock()

    def __len__(self) -> int:
        return self.count

    def read(self, position: int) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1
        if position == 3:
            raise OSError("gone")
        return plain((0, position, 0))

    def name(self, position: int) -> str:
        return str(position)

    where = name

    def digest(self) -> str:
        return ""


def test_remote_files_are_fetched_together_and_stay_in_order() -> None:
    files = Slow(40)
    pixels = source_of(files).read("train", np.arange(40)[::-1])
    assert pixels.pixels_BSSC[:, 0, 0, 1].tolist() == [0 if i == 3 else i for i in range(40)][::-1]
    assert pixels.broken == {36: "3: gone"}
    assert files.most == 16


def test_a_missing_file_is_one_broken_image_and_a_missing_bucket_ends_the_run(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in {"a b%20,é.png": RED, "2.png": BLUE}.items():
        (path_of(store) / "deep" / name).write_bytes(data)
    source = source_of(paths(f"{store}/deep", "a b%20,é.png", "2.png", "3.png"))
    pixels = source.read("train", np.array([1, 0, 2]))
    assert pixels.pixels_BSSC[:2, 0, 0].tolist() == [[0, 0, 255], [255, 0, 0]]
    assert list(pixels.broken) == [2]
    assert pixels.broken[2].startswith(f"{store}/deep/3.png: ")
    with pytest.raises(InputError, match="there is no such bucket"):
        source_of(paths("s3://nobody-has-this", "1.png")).read("train", np.array([0]))
