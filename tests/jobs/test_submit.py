"""The main job through `ray job submit` on a head of its own gives what it gives locally."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.jobs.conftest import ROOT, TINY

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a client of a running head, protected by a token."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "HOME": str(tmp_path),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
    }
    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], env=environment, capture_output=True, check=True)
    dashboard = free_port()
    command = [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats"]
    command += [f"--port={free_port()}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    # The agent that starts jobs has a fixed port, which the Ray of other tests holds.
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--node-ip-address=127.0.0.1", f"--temp-dir=/tmp/rb{os.getpid()}"]
    with (tmp_path / "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            time.sleep(0.2)
        yield environment | {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    finally:
        head.terminate()
        try:
            head.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait(10)


def submit(environment: dict[str, str], *entrypoint: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "ray"), "job", "submit", "--working-dir", str(ROOT), "--", *entrypoint]
    deadline = time.monotonic() + 60
    while True:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False
        )
        # The dashboard answers some seconds before the agent that starts jobs is there.
        if "No available agent to submit job" not in result.stderr or time.monotonic() > deadline:
            return result
        time.sleep(1)


def test_a_submitted_job_gives_the_same_result(finished: Path, cluster: dict[str, str], tmp_path: Path) -> None:
    relative = submit(cluster, "python", "jobs/simulate_gldv2.py", "--out", "runs/demo")
    assert relative.returncode == 1
    assert "error: --out runs/demo is relative; a submitted job needs an absolute path" in relative.stdout

    out = tmp_path / "submitted"
    result = submit(cluster, "python", "jobs/simulate_gldv2.py", "--out", str(out), *TINY)
    assert result.returncode == 0, result.stdout[-3000:]
    local, submitted = (pd.read_parquet(folder / "results" / "curves.parquet") for folder in (finished, out))
    pd.testing.assert_frame_equal(local, submitted)
