"""One process at a time works in a folder of a bucket, whatever ends it, cuts it off or loses its answers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core import run_lock
from ray_backfill.core.errors import InputError
from ray_backfill.core.run_lock import LOCK, locked
from ray_backfill.core.store_path import path_of
from tests.bad_folder import SPLITS, write_split
from tests.command import Command
from tests.faulty_store import Faults

# How often a lock is renewed, how long that may take, and when it counts as left, in these tests, in seconds.
RENEWED_S, PATIENCE_S, GONE_S = 0.4, 2.5, 5.0
START = f"""
import os, sys, time
from ray_backfill.cli import interruptible, run_job
from ray_backfill.core import run_lock
from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
run_lock._RENEWED_S, run_lock._PATIENCE_S, run_lock._GONE_S = {RENEWED_S}, {PATIENCE_S}, {GONE_S}
folder = path_of(sys.argv[1])
"""
HOLDER = f"""{START}
if sys.argv[2:]:
    run_lock._pids = lambda: sys.argv[2]
def main():
    with interruptible(), run_lock.locked(folder, "--out", "ray-backfill simulate --data theirs"):
        print("locked", flush=True)
        time.sleep(60)
run_job(main)
"""
TEN = f"""{START}
import boto3, obstore
waiting, start = os.pipe()
for number in range(10):
    if os.fork() == 0:
        os.close(start)
        os.read(waiting, 1)  # returns for all when the only writer closes it
        try:
            with run_lock.locked(folder, "--out", f"number {{number}}"):
                os.write(1, b"won\\n")
                time.sleep(5)
        except InputError as error:
            os.write(1, b"lost\\n" if " is in use by process " in str(error) else b"error\\n")
        os._exit(0)
os.close(start)
for _ in range(10):
    os.wait()
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_RENEWED_S", RENEWED_S)
    monkeypatch.setattr(run_lock, "_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(run_lock, "_GONE_S", GONE_S)


@contextmanager
def holder(folder: str, *pids: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked this folder; it is killed at the end of the block."""
    words = [sys.executable, "-c", HOLDER, folder, *pids]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def owner(folder: str) -> Any:
    return json.loads((path_of(folder) / LOCK).read_bytes())["pid"]


def test_the_second_command_names_the_first(store: str, tmp_path: Path, command: Command) -> None:
    for split, columns in SPLITS.items():
        write_split(tmp_path, split, columns)
    with holder(f"{store}/run") as first:
        started = time.monotonic()
        line = command("simulate", "--data", tmp_path, "--out", f"{store}/run").error
        assert time.monotonic() - started < 12  # mostly imports
        assert line.startswith(f"--out {store}/run is in use by process {first.pid} on {os.uname().nodename} since 20")
        assert "(ray-backfill simulate --data theirs); wait until it ends" in line
        assert [str(path) for path in path_of(store).rglob("*")] == [f"{store}/run/{LOCK}"]


def test_a_killed_process_of_this_host_is_taken_over_at_once(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_lock, "_GONE_S", 60)
    with holder(f"{store}/run") as first:
        first.kill()
        first.wait()
        with locked(path_of(f"{store}/run"), "--out", ""):
            assert owner(f"{store}/run") == os.getpid()
    assert "is gone; this one continues" in capsys.readouterr().err
    assert not path_of(f"{store}/run").exists()


@pytest.mark.full
def test_a_process_of_another_host_is_taken_over_when_it_does_not_renew(store: str) -> None:
    with holder(f"{store}/run", "numbers of another host") as first:
        with (
            pytest.raises(InputError, match=f"is in use by process {first.pid} "),
            locked(path_of(f"{store}/run"), "", ""),
        ):
            pass
        first.kill()
        first.wait()
        started = time.monotonic()
        with locked(path_of(f"{store}/run"), "--out", ""):
            assert time.monotonic() - started >= GONE_S
            assert owner(f"{store}/run") == os.getpid()


@pytest.mark.full
def test_who_was_cut_off_for_too_long_ends_and_names_the_other(
    store: str, s3_server: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(f"{store}/run") as cut_off:  # by the proxy
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)  # this process has another way
        faults.always("hang")
        with locked(path_of(f"{store}/run"), "--out", "mine"):
            faults.always("")
            _, said = cut_off.communicate(timeout=30)
            assert owner(f"{store}/run") == os.getpid()
    assert cut_off.returncode == 2
    assert said.splitlines()[-1].startswith(
        f"error: --out {store}/run was out of reach too long, and is now in use by process {os.getpid()} "
    )
    assert said.count("error") == 1


@pytest.mark.full
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)  # the proxy answers
@pytest.mark.parametrize("fault", ["denied", "hang", "reset after"])
def test_who_is_cut_off_for_a_while_keeps_the_lock(store: str, faults: Faults, fault: str) -> None:
    folder = path_of(f"{store}/run")
    with locked(folder, "--out", ""):
        before = len(faults.seen)
        faults.always(fault, "PUT")
        time.sleep(4 * RENEWED_S)
        faults.always(fault)
        time.sleep(4 * RENEWED_S)
        assert any(fault == seen for _, _, seen in faults.seen[before:])
        faults.always("")
        renewals = json.loads((folder / LOCK).read_bytes())["renewals"]
        time.sleep(6 * RENEWED_S)
        assert json.loads((folder / LOCK).read_bytes())["renewals"] > renewals
    assert not folder.exists()


def test_an_answer_that_is_lost_is_no_other_process(store: str, faults: Faults) -> None:
    lost: list[str] = []

    def first_of_two(method: str, path: str) -> str:
        if method == "PUT":
            lost.append(path)
        return "reset after" if method == "PUT" and len(lost) % 2 else ""

    faults.rule = first_of_two
    with locked(path_of(f"{store}/run"), "--out", ""):
        time.sleep(5 * RENEWED_S)
        assert owner(f"{store}/run") == os.getpid()
    assert len(lost) >= 4
    assert not path_of(f"{store}/run").exists()


def test_a_lock_that_somebody_deletes_is_made_again(store: str) -> None:
    lock = path_of(f"{store}/run") / LOCK
    with locked(lock.parent, "--out", ""):
        lock.unlink()
        time.sleep(4 * RENEWED_S)
        assert owner(f"{store}/run") == os.getpid()


@pytest.mark.full
@pytest.mark.parametrize("fault", ["", "unconditional"])
def test_a_store_that_ignores_conditions_is_named(
    store: str, faults: Faults, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    faults.always(fault, "PUT")
    with locked(path_of(store) / "run", "--out", "mine"):
        pass
    told = "this store ignores the conditions of PUT, so two commands could write here; run one at a time"
    assert (f"{store}/run: {told}" in capsys.readouterr().err) == bool(fault)


def test_of_ten_that_start_together_one_wins(store: str) -> None:
    ended = subprocess.run([sys.executable, "-c", TEN, f"{store}/run"], capture_output=True, text=True, timeout=60)
    assert sorted(ended.stdout.split()) == [*9 * ["lost"], "won"], ended
    assert not path_of(f"{store}/run").exists()


def test_ctrl_c_ends_the_lock(store: str) -> None:
    with holder(f"{store}/run") as process:
        process.send_signal(2)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert said.endswith("stopped; the same command continues where it was\n")
    assert not path_of(f"{store}/run").exists()
