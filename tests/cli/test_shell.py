"""Paths that cannot be used and settings that cannot work: one line, exit code 2, and nothing is left behind."""

import errno
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.cli import run_job
from ray_backfill.core.run_lock import locked
from tests.command import Command, ended_by


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    columns = {"old": rng.normal(size=(20, 4)), "new": rng.normal(size=(20, 6)), "label": np.arange(20) % 4}
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", columns)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", "--out", ""), "--out is empty; give a folder"),
        (("simulate", "--data", "DATA", "--out="), "--out is empty; give a folder"),
        (("drill", "--data", "", "--out", "TMP/out"), "--data is empty; give a folder"),
        (("simulate", "--data", "DATA", "--out", "TMP/out", "--points", "65536"), "give at most --points "),
        (("reproduce", "--recipe", "landmarks", "--subgroups", "nope", "--out", "TMP/out"), "unknown recipe 'nope'"),
        (("reproduce", "--recipe", "landmarks", "--methods", "nope", "--out", "TMP/out"), "unknown method 'nope'"),
        (("reproduce", "--recipe", "omniglot", "--out", "TMP/out"), "this recipe needs --data-root"),
        (("embed", "--only", "TMP/sample.parquet", "--out", "TMP/out"), "is missing; run: ray-backfill sample DIR"),
        (("embed", "--only", "TMP/s", "--gallery", "old"), "by the new model; leave --gallery out"),
    ],
)
def test_bad_places_and_settings(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("ray_backfill.compare.evaluation.memory_bytes", lambda: 8 << 30)
    given = [word.replace("DATA", str(data)).replace("TMP", str(tmp_path)) for word in words]
    assert message in command(*given).error
    assert not list(tmp_path.iterdir())


def test_too_many_shards_are_refused_without_ray(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray_backfill.compare.run.read_folder", None)
    line = command("simulate", "--data", data, "--out", tmp_path / "out", "--shards", 500).error
    assert line.startswith("--shards 500 needs 500 CPUs, but a Ray on this machine has ")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/gallery.parquet"),
         "/data/gallery.parquet: Permission denied; give this user access to it"),
        (OSError(errno.EROFS, "Read-only file system", "/mnt/run"),
         "/mnt/run: Read-only file system; choose a place that can be written"),
        (PermissionError(errno.EACCES, "Failed to open local file '/data/x'"),
         "[Errno 13] Failed to open local file '/data/x'; give this user access to it"),
    ],
)  # fmt: skip
def test_what_the_machine_refuses_is_one_line(error: OSError, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended_by(error, capsys).error == line


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    def main() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        run_job(main)


def test_a_folder_in_use_is_refused(data: Path, tmp_path: Path, command: Command) -> None:
    with locked(tmp_path, "--out", "ray-backfill drill"):
        line = command("simulate", "--data", data, "--out", tmp_path).error
        with pytest.raises(rb.InputError, match="in use by process"):
            rb.simulate(data, out=tmp_path)
    assert f"--out {tmp_path} is in use by process " in line
    assert line.endswith("(ray-backfill drill); wait until it ends, or give another folder")
