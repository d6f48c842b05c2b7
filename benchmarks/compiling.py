"""CPU seconds that the first comparison of an installation compiles for, of one thread, and the slowest loops.

python -m benchmarks.compiling [FOLDER]     # a minute; FOLDER: another checkout to compare with, each twice in turn
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# What compiles in the first ``simulate`` of the vectors of the README: prints the seconds, the number of functions,
# and of each its name and the seconds without those of functions that it calls.
_CODE = """
import sys, time
from pathlib import Path
import numpy as np
import ray_backfill as rb
from numba.core import event
from ray_backfill.cli.main import main

class Listener(event.Listener):
    depth, own, children = [], {}, []

    def on_start(self, happening):
        self.depth.append((time.thread_time(), happening.data["dispatcher"].py_func))
        self.children.append(0.0)

    def on_end(self, happening):
        began, function = self.depth.pop()
        spent, of_children = time.thread_time() - began, self.children.pop()
        name = f"{function.__module__}.{function.__name__}"
        self.own[name] = self.own.get(name, 0.0) + spent - of_children
        if self.children:
            self.children[-1] += spent

def embeddings(items, seed):
    rng, label = np.random.default_rng(seed), np.arange(items) % 50
    signal = np.random.default_rng(0).normal(size=(50, 64))[label]
    old = signal[:, :32] + 1.5 * rng.normal(size=(items, 32))
    return {"old": old, "new": signal + rng.normal(size=(items, 64)), "label": label}

folder, listener = Path(sys.argv[1]), Listener()
event.register("numba:compile", listener)
rb.write_folder(folder / "data", embeddings(2000, 1), embeddings(200, 2), embeddings(2000, 3))
sys.argv = ["", "simulate", "--data", f"{folder}/data", "--out", f"{folder}/out"]
sys.argv += ["--methods", "rm_naive", "ridge_gallery"]
main()
print("COMPILED", sum(listener.own.values()), len(listener.own))
for name, spent in sorted(listener.own.items(), key=lambda row: -row[1])[:15]:
    print("COMPILED", f"{spent:.2f}", name)
"""


def compiled(tree: Path) -> list[str]:
    """The lines that ``_CODE`` prints in a process with an empty cache that imports the package from ``tree``."""
    with tempfile.TemporaryDirectory() as folder:
        told = {"NUMBA_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _CODE, folder]
        process = subprocess.run(command, env=os.environ | told, cwd=folder, capture_output=True, text=True, check=True)
    return [line.removeprefix("COMPILED ") for line in process.stdout.splitlines() if line.startswith("COMPILED ")]


def main() -> None:
    here = Path(__file__).parents[1]
    trees = [*map(Path, sys.argv[1:]), here]
    for tree in trees * 2:
        lines = compiled(tree.resolve())
        spent, functions = lines[0].split()
        print(f"{'here' if tree == here else tree}: {float(spent):.1f} s of CPU, {functions} functions", flush=True)
    print("\n".join(lines[1:]))


if __name__ == "__main__":
    main()
