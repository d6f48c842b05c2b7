"""A Ray head of its own for a test: a child process with its own ports, home and token."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

BIN = Path(sys.executable).parent
_TRIES = 5


class Head(NamedTuple):
    address: str
    dashboard: str
    temp_dir: Path
    environment: dict[str, str]
    """For its clients."""


def servers_of(head: str | Path, *names: str) -> list[psutil.Process]:
    """Those of the head's servers: gcs_server, raylet. head: its ``temp_dir``."""
    words = ((process, process.info["cmdline"] or [""]) for process in psutil.process_iter(["cmdline"]))
    return [each for each, of in words if Path(of[0]).name in names and any(f"{head}/" in word for word in of)]


def kill_servers(head: str | Path, *names: str) -> None:
    """See ``servers_of``."""
    for process in servers_of(head, *names):
        process.kill()


def free_port() -> int:
    """A port that is free on every address: drivers connect on the machine's, where another Ray may hold a port that
    is free on 127.0.0.1. It is below the ports that the kernel gives out and above those of Ray's workers.
    """
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", random.SystemRandom().randrange(20_000, 32_768)))
            return int(listener.getsockname()[1])


def answers(port: int, timeout_s: float = 150.0) -> bool:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.2)
    return False


@contextmanager
def running_head(home: Path, cpus: int = 4, has_dashboard: bool = True, **more: str) -> Iterator[Head]:
    """A head protected by a token, once it has started and its dashboard answers. more: of its environment.

    cpus: what Ray counts, whatever the machine has. has_dashboard: it takes ten processes, which not all tests need.

    Ray gives itself 30 s to start, which a busy machine exceeds after the dashboard has answered: it is tried again.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") or k == "RAY_worker_niceness"}
    environment = kept | more
    environment |= {"HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], env=environment, capture_output=True, check=True)
    for last in range(_TRIES):
        with _head(home / "head.log", environment, cpus, has_dashboard) as head:
            if head:
                yield head
                return
        assert last < _TRIES - 1, (home / "head.log").read_text()


@contextmanager
def _head(log: Path, environment: dict[str, str], cpus: int, has_dashboard: bool) -> Iterator[Head | None]:
    """A head, or None if it did not start."""
    port, dashboard = free_port(), free_port()
    temp_dir = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))  # sockets lie in it: their paths must be short
    command = [str(BIN / "ray"), "start", "--head", "--block", f"--num-cpus={cpus}"]
    command += [f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    command += ["--disable-usage-stats", f"--include-dashboard={has_dashboard}"]
    # The agent that starts jobs has a fixed port, which the Ray of other tests holds.
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--node-ip-address=127.0.0.1", f"--temp-dir={temp_dir}"]
    with log.open("wb") as written:
        head = subprocess.Popen(command, env=environment, stdout=written, stderr=written, start_new_session=True)
    try:
        while head.poll() is None and "Ray runtime started" not in log.read_text():
            time.sleep(0.2)
        has_started = head.poll() is None and answers(dashboard if has_dashboard else port)
        yield Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", temp_dir, environment) if has_started else None
    finally:
        head.terminate()
        try:
            head.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also where pytest's own timeout strikes in here
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait(10)
            shutil.rmtree(temp_dir, ignore_errors=True)
