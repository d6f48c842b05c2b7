"""Paths that cannot be used and settings that cannot work: one line, exit code 2, and nothing is left behind."""

import errno
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.cli import run_job
from ray_backfill.cli.main import main
from ray_backfill.core.run_lock import locked


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    columns = {"old": rng.normal(size=(20, 4)), "new": rng.normal(size=(20, 6)), "label": np.arange(20) % 4}
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", columns)


def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of error of this command line."""
    monkeypatch.setattr("sys.argv", ["ray-backfill", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", "--out", ""), "--out is empty; give a folder"),
        (("simulate", "--data", "DATA", "--out="), "--out is empty; give a folder"),
        (("drill", "--data", "", "--out", "TMP/out"), "--data is empty; give a folder"),
        (("simulate", "--data", "DATA", "--out", "/proc/none"), "--out /proc/none cannot be made: no such file or dir"),
        (
            ("fit", "--data", "DATA", "--out", "TMP/link"),
            "is a link to TMP/nowhere, which does not exist; mend the link",
        ),
        (("simulate", "--data", "DATA", "--out", "TMP/out", "--points", "65536"), "give at most --points "),
        (("reproduce", "--recipe", "landmarks", "--subgroups", "nope", "--out", "TMP/out"), "unknown recipe 'nope'"),
        (("reproduce", "--recipe", "landmarks", "--methods", "nope", "--out", "TMP/out"), "unknown method 'nope'"),
        (("reproduce", "--recipe", "omniglot", "--out", "TMP/out"), "this recipe needs --data-root"),
        (("embed", "--only", "TMP/sample.parquet", "--out", "TMP/out"), "is missing; run: ray-backfill sample DIR"),
        (("embed", "--only", "TMP/s", "--gallery", "old"), "by the new model; leave --gallery out"),
    ],
)
def test_bad_places_and_settings(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("ray_backfill.compare.evaluation.memory_bytes", lambda: 8 << 30)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    given = [word.replace("DATA", str(data)).replace("TMP", str(tmp_path)) for word in words]
    assert message.replace("TMP", str(tmp_path)) in error_of(monkeypatch, capsys, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_too_many_shards_are_refused_without_ray(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray_backfill.compare.run.read_folder", None)
    words = ("simulate", "--data", str(data), "--out", str(tmp_path / "out"), "--shards", "500")
    assert error_of(monkeypatch, capsys, *words).startswith(
        "--shards 500 needs 500 CPUs, but a Ray on this machine has "
    )


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
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_job(main)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    def main() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        run_job(main)


def test_a_folder_in_use_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path, "--out", "ray-backfill drill"):
        line = error_of(monkeypatch, capsys, "simulate", "--data", str(data), "--out", str(tmp_path))
        with pytest.raises(rb.InputError, match="in use by process"):
            rb.simulate(data, out=tmp_path)
    assert f"--out {tmp_path} is in use by process " in line
    assert line.endswith("(ray-backfill drill); wait until it ends, or give another folder")
