"""Ray's own log lines do not reach the terminal."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from ray_backfill.workers.session import session
from ray_backfill.workers.watchdog import rays_notices_as_lines

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("logger", "line", "level"),
    [
        ("ray._private.worker", "Started a local Ray instance.", logging.INFO),
        ("ray._private.worker", "Connecting to existing Ray cluster at address: ...", logging.INFO),
        ("ray._private.services", "WARNING: The object store is using /tmp/ray instead of /dev/shm", logging.WARNING),
    ],
)
def test_lines_of_ray_are_not_written(
    logger: str, line: str, level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    logging.getLogger("ray").setLevel(logging.INFO)  # as Ray does when it is imported
    with session():
        logging.getLogger(logger).log(level, line)
        logging.getLogger(logger).error("what is wrong is told")
    assert set(caplog.messages) == {"what is wrong is told"}


DEAD = (
    "The node with node id: 423b03713c2aa247b264f6a3a504 and address: 192.0.2.2 and node name: 192.0.2.2 has been "
    "marked dead because the detector has missed too many heartbeats from it. This can happen when a "
    "\t(1) raylet crashes unexpectedly (OOM, etc.) \n\t(2) raylet has lagging heartbeats due to slow network."
)
MEMORY = (
    "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed at node (ID: 42, IP: 192.0.2.3)"
)
OTHER = "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user"


def test_notices_of_rays_servers_are_our_lines(ray_session: None, capsys: pytest.CaptureFixture[str]) -> None:
    for notice in (OTHER, DEAD, MEMORY, DEAD):
        # As Ray's thread does with what a server publishes.
        ray._private.worker.print_to_stdstream(
            {"lines": [notice], "pid": "raylet", "is_err": False}, ignore_prefix=False
        )
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "node 192.0.2.2 (423b0371) of the Ray cluster died",
        "node 192.0.2.3 of the Ray cluster is short of memory: Ray ended processes on it",
    ]


def test_rays_own_print_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ray._private.worker.print_to_stdstream
    with rays_notices_as_lines():
        assert ray._private.worker.print_to_stdstream is not before
    assert ray._private.worker.print_to_stdstream is before


def test_no_call_starts_a_ray_beside_the_session() -> None:
    code = "import ray_backfill.workers.session, ray; ray.put(1)"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=alone, timeout=100
    )
    assert done.returncode == 1
    assert "Started a local Ray instance" not in done.stderr
    assert "ray.init" in done.stderr.splitlines()[-1]
