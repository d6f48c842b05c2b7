"""Benchmarks still run; their numbers are in docs/results."""

import subprocess
import sys

from tests.test_structure import ROOT


def test_the_replay_equals_sorting_in_its_benchmark() -> None:
    command = [sys.executable, "benchmarks/replay.py", "--scale", "0.02", "--only", "exactness"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "largest difference of any query to sorting | 0.00 | at most 1e-12 | holds" in done.stdout
