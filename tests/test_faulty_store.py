"""A store that fails now and then changes nothing; one that refuses ends a command, which continues later."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ray_backfill.core import run_lock, stages
from ray_backfill.core.copies import cache_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.store_path import path_of
from tests.bad_folder import SPLITS, write_split
from tests.command import Command
from tests.faulty_store import PASSING, WRITES, Faults

METHODS = ("--methods", "old", "rm_naive", "procrustes_query", "--merges", "raw", "--metrics", "CMC@1")
OPTIONS = (*METHODS, "--orders", "random", "--points", "3")
pytestmark = pytest.mark.full
ONE_SERVER = pytest.mark.parametrize("s3_server", ["moto"], indirect=True)  # what is tested is said by the proxy


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for split, columns in SPLITS.items():
        write_split(tmp_path / "data", split, columns)
    return tmp_path / "data"


def tables(folder: Path) -> Mapping[str, bytes]:
    """Every table of a run but that of what it took."""
    names = {path: "/".join(path.parts[len(folder.parts) :]) for path in folder.rglob("*.parquet")}
    return {name: path.read_bytes() for path, name in names.items() if "costs" not in name}


def test_two_of_a_hundred_requests_fail_and_every_byte_is_the_same(
    store: str, faults: Faults, data: Path, tmp_path: Path, command: Command
) -> None:
    assert command("simulate", "--data", data, "--out", tmp_path / "out", *OPTIONS).code == 0
    for file in data.iterdir():
        (path_of(store) / "data" / file.name).write_bytes(file.read_bytes())
    faults.some(0.02, 3, *PASSING)
    ended = command("simulate", "--data", f"{store}/data", "--out", f"{store}/out", *OPTIONS)
    assert ended.code == 0, ended
    assert sum(fault != "" for _, _, fault in faults.seen) >= 2
    faults.always("")
    assert tables(path_of(f"{store}/out")) == tables(tmp_path / "out")
    assert len(tables(tmp_path / "out")) > 5


@ONE_SERVER
def test_bytes_that_were_cut_off_are_in_no_copy_and_no_object(store: str, faults: Faults, tmp_path: Path) -> None:
    content = os.urandom((17 << 20) + 5)
    paths = [path_of(store) / f"{number}.bin" for number in range(3)]
    faults.every(3, "truncated", "reset", "reset after")
    for path in paths:
        (tmp_path / "content").write_bytes(content)
        path.bucket.put(path.key, tmp_path / "content")  # type: ignore[attr-defined]
    assert sum(fault != "" for _, _, fault in faults.seen) >= 4
    assert [Path(os.fspath(path)).read_bytes() == content for path in paths] == 3 * [True]
    faults.always("truncated", "GET")
    (path_of(store) / "small.bin").write_bytes(content[:1000])
    for name in ("0.bin", "small.bin"):
        (cache_folder() / path_of(store).name / name).unlink(missing_ok=True)
        os.environ["RAY_BACKFILL_CACHE"] = str(tmp_path / "others")
        with pytest.raises(InputError, match=r"no answer to use \(body error\)"):
            os.fspath(path_of(store) / name)
    assert [path for path in (tmp_path / "others").rglob("*") if path.is_file()] == []


@ONE_SERVER
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("undeletable", "the store refuses this (AccessDenied); give these credentials the right to delete it"),
        ("denied", "the store refuses this (AccessDenied); give these credentials the right to write it"),
        ("full", "the store is full (InsufficientStorage); free some space"),
    ],
)
def test_a_run_whose_store_refuses_continues_when_it_is_mended(
    store: str, faults: Faults, data: Path, command: Command, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_RENEWED_S", 0.3)
    monkeypatch.setattr(run_lock, "_GONE_S", 3)  # a lock that could not be deleted
    out = f"{store}/out"
    faults.rule = lambda method, path: (
        fault if (method == "POST" if fault == "undeletable" else method in WRITES and "results" in path) else ""
    )
    ended = command("simulate", "--data", data, "--out", out, *OPTIONS)
    *steps, line = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert line.startswith("error: ")
    assert said in line
    assert not [step for step in steps if "error" in step]
    maps = path_of(out).bucket.below("out/maps")  # type: ignore[attr-defined]
    assert [entry for entry in maps if entry.key.endswith("/manifest.json")]
    faults.always("")
    assert command("simulate", "--data", data, "--out", out, *OPTIONS).code == 0
    assert path_of(out).bucket.below("out/maps") == maps  # type: ignore[attr-defined]
    assert not [path for path in path_of(out).iterdir() if path.name.startswith(".")]
    # What is finished can be shown by who may only read.
    faults.always("denied", *WRITES)
    assert "results/report.html" in command("simulate", "--data", data, "--out", out, *OPTIONS).out
    assert command("report", out).code == 0


@ONE_SERVER
@pytest.mark.parametrize("fault", ["reset", "denied"])
def test_what_a_store_does_not_tell_is_neither_unfinished_nor_damaged(store: str, faults: Faults, fault: str) -> None:
    folder, key = path_of(store) / "stage", RunKey("stage", {"a": 1})
    stages.begin_stage(folder, key)
    stages.write_whole(folder / "a.txt", lambda temporary: temporary.write_text("1"))
    stages.finish_stage(folder)
    for ask in (
        lambda: stages.is_finished(folder),
        lambda: stages.manifest_of(folder)["finished"],
        lambda: stages.is_whole(folder / "a.txt"),
        lambda: stages.begin_stage(folder, key),
    ):
        faults.always("")
        assert ask() is True
        faults.always(fault)
        with pytest.raises(InputError, match=r"no answer to use|the store refuses this") as caught:
            ask()
        assert not isinstance(caught.value, stages.OtherSettingsError | stages.UnreadableError)
