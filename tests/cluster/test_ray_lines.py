"""Ray's own log lines do not reach the terminal."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from ray_backfill.cluster.session import session

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


@pytest.mark.slow
def test_no_call_starts_a_ray_beside_the_session() -> None:
    code = "import ray_backfill.cluster.session, ray; ray.put(1)"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=alone, timeout=100
    )
    assert done.returncode == 1
    assert "Started a local Ray instance" not in done.stderr
    assert "ray.init" in done.stderr.splitlines()[-1]
