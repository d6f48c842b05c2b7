"""Watches and ends a command with all processes that it starts, found by a mark in their environment. Linux only."""

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MARK = "RAY_BACKFILL_BENCHMARK"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """Usage at one moment. pss_mb: by kind of process; shared pages are divided among their users, so that sums are
    right. cpu_s: by kind, of all processes so far. done: a count by the caller.
    """

    elapsed_s: float
    pss_mb: dict[str, float]
    cpu_s: dict[str, float]
    done: int


class Family:
    """A running command with all its descendants, even if detached from the process tree."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        with log.open("ab") as output:
            self.main = subprocess.Popen(
                command, env=os.environ | {name: value}, stdout=output, stderr=output, start_new_session=True
            )
        self._cpu_s: dict[tuple[int, str], float] = {}
        self.started, self.started_at = time.perf_counter(), time.time()

    def members(self) -> list[int]:
        """Ids of the running processes that this command has started."""
        found, mark = [], self._mark.encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if mark in (folder / "environ").read_bytes():
                        found.append(int(folder.name))
                except OSError:  # the process has ended, or belongs to another user
                    continue
        return found

    def sample(self, done: int) -> Sample:
        """Sample all processes. Cost: some milliseconds of CPU time per process, more for large ones."""
        memory: dict[str, float] = {}
        for pid in self.members():
            try:
                kind = _kind(pid, self.main.pid)
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            kilobytes = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
            memory[kind] = memory.get(kind, 0.0) + kilobytes / 1024
            self._cpu_s[pid, kind] = (int(after_name[11]) + int(after_name[12])) / _TICKS
        cpu: dict[str, float] = {}
        for (_, kind), seconds in self._cpu_s.items():
            cpu[kind] = cpu.get(kind, 0.0) + seconds
        return Sample(time.perf_counter() - self.started, memory, cpu, done)

    def kill(self) -> int:
        """SIGKILL to every process of the family, until none is left; returns how many there were."""
        killed: set[int] = set()
        while members := self.members():
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    continue
            self.main.poll()
            time.sleep(0.1)
        self.main.wait()
        return len(killed)


def watch(family: Family, every_s: float, count: Callable[[], int], stop: Callable[[int], bool]) -> list[Sample]:
    """Sample until the command ends or ``stop(count())`` is true, which is checked ten times per second."""
    samples: list[Sample] = []
    ended = threading.Event()

    def take() -> None:
        while not ended.wait(every_s):
            samples.append(family.sample(count()))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        while family.main.poll() is None and not stop(count()):
            time.sleep(0.1)
    finally:
        ended.set()
        thread.join()
    return samples


def _kind(pid: int, main: int) -> str:
    """The kind of a process: driver, actors (that do the work), or Ray's own."""
    if pid == main:
        return "driver"
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return "actors" if command.startswith(b"ray::") and b"Embedder" in command else "Ray"
