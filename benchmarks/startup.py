"""How long a user waits before anything happens: help, errors, imports, the smallest run.

python -m benchmarks.startup    (about two minutes on two cores)

Each row is the shortest of several starts of a process, beside ``python -c "import numpy, pandas"`` in the same run.
Elapsed times count; processor times are printed for machines that are busy.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ray_backfill as rb

_COMMAND = [sys.executable, "-c", "from ray_backfill.cli.main import main; main()"]
_BASE = [sys.executable, "-c", "import numpy, pandas"]
_FACE = [sys.executable, "-c", "import numpy, pandas, ray_backfill"]


def shortest(command: list[str], repeats: int, folder: Path, first_line: bool = False) -> tuple[float, float]:
    """Elapsed and processor seconds of a process, or until its first line of output; the shortest of several."""
    elapsed, cpu = [], []
    for number in range(repeats):
        words = [word.replace("OUT", str(folder / f"{abs(hash(tuple(command)))}-{number}")) for word in command]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if first_line:
                elapsed.append(time.perf_counter() - started)
            process.stdout.read()
        if not first_line:
            elapsed.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(elapsed), min(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        new = np.random.default_rng(0).normal(size=(500, 24))
        vectors = {"old": new[:, :16], "new": new, "label": np.arange(500) % 50}
        rb.write_folder(folder / "data", vectors)
        smallest = ["simulate", "--data", "data", "--out", "OUT", "--methods", "rm_naive", "--points", "3"]
        rows: list[tuple[str, list[str], float | None, bool]] = [
            ("import numpy, pandas", _BASE, None, False),
            ("ray-backfill --help", [*_COMMAND, "--help"], 1.5, False),
            ("ray-backfill simulate --help", [*_COMMAND, "simulate", "--help"], 1.5, False),
            ("import numpy, pandas, ray_backfill", _FACE, None, False),
            ("ray-backfill simulate --help heads", [*_COMMAND, "simulate", "--help", "heads"], None, False),
            ("an unknown option", [*_COMMAND, "simulate", "--nothing"], None, False),
            ("an unknown method", [*_COMMAND, "simulate", "--methods", "nothing"], None, False),
            ("the smallest run, first line", [*_COMMAND, *smallest], None, True),
            ("the smallest run", [*_COMMAND, *smallest], None, False),
        ]
        print(f"{os.cpu_count()} cores; the shortest of {repeats} starts")
        print(f"{'':<38}{'seconds':>9}{'CPU s':>9}{'ratio':>9}{'limit':>9}")
        base = 0.0
        for name, command, limit, first_line in rows:
            elapsed, cpu = shortest(command, repeats, folder, first_line)
            base = base or elapsed
            shown = f"{limit:9.2f}" if limit else ""
            print(f"{name:<38}{elapsed:9.2f}{cpu:9.2f}{elapsed / base:9.2f}{shown}", flush=True)


if __name__ == "__main__":
    main()
