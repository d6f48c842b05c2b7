"""One process at a time works in the folder of a run, and folders that cannot be used are named before any work."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.run_lock import LOCK, locked
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, write_json

HOLDER = """
import sys, time
from pathlib import Path
from ray_backfill.core.run_lock import locked
with locked(Path(sys.argv[1]), "--out", "ray-backfill simulate --data mine"):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_other_process_is_named_and_its_claim_ends_when_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(InputError) as error, locked(tmp_path, "--out", "mine"):
                pass
        finally:
            holder.kill()
    said = str(error.value)
    assert said.startswith(f"--out {tmp_path} is in use by process {holder.pid} on {os.uname().nodename} since 20")
    assert "(ray-backfill simulate --data mine)" in said
    with locked(tmp_path, "--out", "mine"):
        assert f'"pid": {os.getpid()}' in (tmp_path / LOCK).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wrong"), locked(tmp_path / "runs" / "mine", "--out", ""):
        raise InputError("wrong")
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "runs" / "mine", "--out", ""):
        (tmp_path / "runs" / "mine" / "table").write_text("")
    assert [path.name for path in (tmp_path / "runs" / "mine").iterdir()] == ["table"]


def test_a_disk_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path, "--out", ""), locked(tmp_path, "--out", ""):
        (tmp_path / "table").write_text("")
    assert (tmp_path / "table").exists()


def test_a_lock_file_that_its_owner_deleted_is_not_taken_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, list[int]()

    def lock_late(file: int, how: int) -> None:
        lock(file, how)
        if not taken:  # the owner ended between our open and our lock
            (tmp_path / LOCK).unlink()
        taken.append(file)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with locked(tmp_path, "--out", ""):
        assert len(taken) == 2
        assert (tmp_path / LOCK).exists()


def test_folders_that_cannot_be_made_are_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder, reason in [
        (tmp_path / "file", "is a file; give a folder"),
        (tmp_path / "file" / "run", f"{tmp_path / 'file'} is a file; give a folder"),
        (tmp_path / "link", f"is a link to {tmp_path / 'nowhere'}, which does not exist"),
        (tmp_path / "link" / "run", f"{tmp_path / 'link'} is a link to {tmp_path / 'nowhere'}, which does not exist"),
        (Path("/proc/none"), "cannot be made: no such file or directory; give another folder"),
        (Path("/proc"), "is not writable: "),
        (tmp_path / ("x" * 300), "file name too long; give another folder"),
    ]:
        with pytest.raises(InputError) as error, locked(folder, "--out", ""):
            pass
        assert reason in str(error.value), folder
        assert str(error.value).startswith(f"--out {folder} ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be written, also for root."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    really_open = os.open

    def refuse(path: Any, flags: int, *more: int, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("read_only")
def test_only_finished_stages_may_lie_on_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is not writable: read-only file system"), locked(tmp_path, "--out", ""):
        pass
    with monkeypatch.context() as writable:
        writable.undo()
        begin_stage(tmp_path / "results", RunKey("simulation", {}))
        finish_stage(tmp_path / "results")
    with locked(tmp_path, "--out", ""):
        pass


def test_a_stage_that_cannot_be_continued_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "results")
    with pytest.raises(InputError, match="results is not writable; make it writable"), locked(tmp_path, "--out", ""):
        pass
    write_json(tmp_path / "results" / "manifest.json", {"finished": True})
    with locked(tmp_path, "--out", ""):
        pass
