"""Paths in object storage, against two servers of S3 and plain pathlib."""

import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import obstore
import pytest

from ray_backfill.core import stages
from ray_backfill.core.copies import cache_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import ABSENT, SCHEMES, Bucket
from tests.object_store import google_like

NAMES = ["plain.txt", "with space", "per%20cent", "hash#1", "ä-é.txt", "a+b=c&d", "deep/er/file.bin", ".hidden", "x/y"]


@pytest.fixture(params=SCHEMES)
def store(request: pytest.FixtureRequest, store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same bucket by s3:// and, translated, by gs://."""
    if request.param == "s3":
        yield store
        return
    with google_like(os.environ["AWS_ENDPOINT_URL"]) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        yield store.replace("s3://", "gs://")


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_as_they_are(store: str, name: str) -> None:
    path = path_of(store) / "run" / name
    assert not path.exists()
    path.write_bytes(b"content")
    assert (path.is_file(), path.is_dir(), path.stat().st_size) == (True, False, 7)
    assert [str(found) for found in path.parent.iterdir()] == [str(path)]
    assert list(path.parent.sizes().items()) == [(path, 7)]  # type: ignore[attr-defined]
    assert path.read_bytes() == Path(os.fspath(path)).read_bytes() == path.open("rb").read() == b"content"
    assert pickle.loads(pickle.dumps(path)) == path == path_of(str(path)) == path_of(Path(str(path)))


def test_folders_are_listed_as_on_a_disk(store: str, tmp_path: Path) -> None:
    local, remote = tmp_path / "tree", path_of(store) / "tree"
    for name in ("a.txt", "b.parquet", "sub/c.txt", "sub/d.parquet", "sub/deep/e.txt", ".hidden", "sub.txt/f.txt"):
        for root in (local, remote):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
    for pattern in ("*.txt", "*.parquet", "*", "sub/*.txt", "*/*.parquet", ".*", "[!.]*", "nothing*"):
        assert relative(local.glob(pattern), local) == relative(remote.glob(pattern), remote), pattern
    files = (path for path in local.rglob("*.txt") if path.is_file())  # a store has no folders
    assert relative(files, local) == relative(remote.rglob("*.txt"), remote)
    assert relative(local.iterdir(), local) == relative(remote.iterdir(), remote)
    for name in ("sub", "sub/deep", "nothing", "su", "a.txt"):
        assert ((local / name).is_dir(), (local / name).exists()) == (
            (remote / name).is_dir(),
            (remote / name).exists(),
        )
    assert sorted(os.listdir(remote)) == sorted(os.listdir(local))  # noqa: PTH208 - libraries ask so
    with pytest.raises(FileNotFoundError):
        os.fspath(remote / "nothing")


def relative(paths: object, root: Path) -> set[str]:
    return {"/".join(path.parts[len(root.parts) :]) for path in paths}  # type: ignore[attr-defined]


def test_a_copy_is_as_new_as_the_object(store: str) -> None:
    path = path_of(store) / "a.txt"
    path.write_text("one")
    copy = Path(os.fspath(path))
    path.write_text("two")  # as long, within the same second
    assert copy.read_text() == "one"
    assert Path(os.fspath(path)).read_text() == "two"
    copy.write_text("bad")  # a copy that anybody has changed
    assert Path(os.fspath(path)).read_text() == "two"
    path.unlink()
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        path.open()
    with pytest.raises(FileNotFoundError):
        path.unlink()


def test_large_objects_arrive_in_pieces(store: str) -> None:
    content = os.urandom((40 << 20) + 1)
    path = path_of(store) / "large.bin"
    stages.write_whole(path, lambda temporary: temporary.write_bytes(content))
    assert Path(os.fspath(path)).read_bytes() == content
    shutil.rmtree(cache_folder())
    assert Path(os.fspath(path)).read_bytes() == content
    assert not list(cache_folder().rglob("*.tmp"))


def test_copies_stay_below_their_bound(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_CACHE_GB", "0.003")
    monkeypatch.setattr("ray_backfill.core.stores._IN_USE_S", -1)
    paths = [path_of(store) / f"{i}.bin" for i in range(8)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * 1_000_000)
    opened = []
    for path in paths:
        opened.append(path.open("rb"))
        assert sum(copy.stat().st_size for copy in cache_folder().rglob("*.bin")) <= 3_000_000
    assert cache_folder().stat().st_mode & 0o077 == 0  # what a bucket hides from other users
    for i, file in enumerate(opened):  # what was deleted meanwhile stays readable
        assert file.read() == bytes([i]) * 1_000_000
        file.close()


def test_a_stage_is_begun_continued_and_finished(store: str) -> None:
    folder, key = path_of(store) / "stage", RunKey("stage", {"a": 1})
    assert stages.begin_stage(folder, key) is False
    for name in ("one.parquet", "parts/two.parquet", ".hidden"):
        stages.write_whole(folder / name, lambda temporary: temporary.write_bytes(b"12345"))
    assert stages.begin_stage(folder, key) is False
    stages.finish_stage(folder, {"fact": 3})
    assert stages.begin_stage(folder, key) is True
    assert stages.manifest_of(folder)["files"] == {"one.parquet": 5, "parts/two.parquet": 5}
    with pytest.raises(stages.OtherSettingsError):
        stages.begin_stage(folder, RunKey("stage", {"a": 2}))
    (folder / "one.parquet").write_bytes(b"1234")  # not what the manifest says
    assert stages.begin_stage(folder, key) is False
    assert relative(folder.glob("*"), folder) >= {"parts", "manifest.json"}
    assert not (folder / "one.parquet").exists()
    assert stages.begin_stage(folder, RunKey("stage", {"a": 2}), overwrite=True) is False
    assert relative(folder.rglob("*"), folder) == {"manifest.json", ".key.json"}


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in relative(folder.rglob("*"), folder)}


@contextmanager
def dying_at(number: int) -> Iterator[list[int]]:
    """Within the block, the process dies at this request that writes, from 0. Yields how many there were."""
    writing, real, count = (obstore.put, obstore.copy, obstore.delete), Bucket._ask, [0]

    def ask(self: Bucket, key: str, request: Any, *more: Any, **named: Any) -> Any:
        if request in writing:
            if count[0] == number:
                raise KeyboardInterrupt
            count[0] += 1
        return real(self, key, request, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "_ask", ask)
        yield count


def test_a_folder_is_replaced_whole_wherever_the_process_dies(store: str) -> None:
    ours, number, has_died = ("manifest.json", "ours.txt", "gone.txt", "more.txt"), 0, True
    while has_died:
        folder, has_died = path_of(store) / f"{number}" / "results", False
        for name in ("manifest.json", "ours.txt", "gone.txt", "theirs.txt"):
            (folder / name).write_text("old")
        before = contents(folder)
        after = dict.fromkeys(("manifest.json", "ours.txt", "more.txt"), "new") | {"theirs.txt": "old"}
        with dying_at(number):
            try:
                with stages.replaced_whole(folder, ours) as new:
                    for name in ("ours.txt", "more.txt", "manifest.json"):
                        stages.write_whole(new / name, lambda temporary: temporary.write_text("new"))
            except KeyboardInterrupt:
                has_died = True
        there = contents(folder)
        if "manifest.json" in there:  # a reader takes it for finished
            assert {name: there[name] for name in there if name != "gone.txt"} in (
                {name: before[name] for name in before if name != "gone.txt"}, after,
            )  # fmt: skip
        stages.settle(folder, ours)
        assert contents(folder) in (before, after)
        assert has_died or contents(folder) == after
        assert relative(folder.parent.iterdir(), folder.parent) == {"results"}
        number += 1
    assert number > 10


def test_a_folder_that_is_half_deleted_is_not_finished(store: str) -> None:
    for number in range(3):
        folder, key = path_of(store) / f"{number}", RunKey("stage", {"a": 1})
        stages.begin_stage(folder, key)
        stages.write_whole(folder / "a.txt", lambda temporary: temporary.write_text("1"))
        stages.finish_stage(folder)
        with dying_at(number + 1), suppress(KeyboardInterrupt):
            stages.remove_folder(folder)
        assert not stages.is_finished(folder)
        assert not (folder / "manifest.json").exists()


def test_copies_in_use_stay_above_the_bound(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_CACHE_GB", "0.003")
    paths = [path_of(store) / f"{i}.bin" for i in range(5)]
    for path in paths:
        path.write_bytes(b"1" * 1_000_000)
    copies = [Path(os.fspath(path)) for path in paths]
    assert all(copy.exists() for copy in copies)
    os.utime(copies[1], (0, copies[1].stat().st_mtime))  # used long ago
    (path_of(store) / "more.bin").write_bytes(b"1" * 1_000_000)
    os.fspath(path_of(store) / "more.bin")
    assert [copy.exists() for copy in copies] == [True, False, True, True, True]


def test_one_of_several_writers_succeeds(store: str) -> None:
    bucket = (path_of(store) / "lock").bucket  # type: ignore[attr-defined]
    first = bucket.put("lock", b"1", only_if=ABSENT)
    with pytest.raises(FileExistsError):
        bucket.put("lock", b"2", only_if=ABSENT)
    second = bucket.put("lock", b"3", only_if=first)
    with pytest.raises(FileExistsError):
        bucket.put("lock", b"4", only_if=first)
    content, read = bucket.read("lock")
    assert (content, read.mark, read.version) == (b"3", second.mark, second.version)
    assert bucket.put("lock", b"5", only_if=read).mark == bucket.head("lock").mark


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://", "needs a bucket"),
        ("s3://KEY:SECRET@bucket/x", "credentials come from the environment"),
        ("s3://bucket/../x", "no options and no .."),
        ("s3://bucket/x?region=a", "no options and no .."),
        ("abfss://host/x", "neither on a disk nor in object storage"),
        ("https://host/x", "neither on a disk nor in object storage"),
    ],
)
def test_other_addresses_are_refused(address: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        path_of(address)
    assert "SECRET" not in str(refused.value)
