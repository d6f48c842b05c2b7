"""Comparisons need neither torch nor Ray where no network is trained and nothing is sharded; readers need no numba."""

import subprocess
import sys
from pathlib import Path

import pytest

import ray_backfill as rb
from ray_backfill import compare
from tests.compare.folder import labelled
from tests.compare.report.folder import write_results

# As in an environment that has none of them: neither modules nor versions.
WITHOUT = """
import importlib.metadata, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "faiss"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

known = importlib.metadata.version

def version(name):
    if name in ("torch", "ray"):
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

sys.meta_path.insert(0, Without())
importlib.metadata.version = version
"""


def without(code: str, *words: object) -> None:
    """Run code in a process that cannot import them."""
    result = subprocess.run([sys.executable, "-c", WITHOUT + code, *map(str, words)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.full
def test_formulas_are_compared(tmp_path: Path) -> None:
    columns = labelled(60, 4, new=4)
    data = rb.write_folder(tmp_path / "data", columns, train=columns)
    methods = ("rm_naive", "cascade@100", "procrustes_gallery", "ridge_query")
    main = "from ray_backfill.cli.main import main; main()"
    without(main, "simulate", "--data", data, "--out", tmp_path / "run", "--methods", *methods)
    results = rb.read_results(tmp_path / "run" / "results")
    assert set(methods) < set(results.methods)
    assert set(results.manifest.versions) == {"ray_backfill", "numpy", "pyarrow"}


def test_every_module_but_that_of_ray_can_be_imported() -> None:
    folder = Path(compare.__file__).parent
    files = [file.relative_to(folder).with_suffix("").parts for file in folder.rglob("*.py")]
    names = sorted(
        ".".join(("ray_backfill", "compare", *parts)).removesuffix(".__init__") for parts in files if parts[0] != "ray"
    )
    without(f"import importlib\nfor name in {names}: importlib.import_module(name)")


def test_readers_of_results_load_nothing_that_computes(tmp_path: Path) -> None:
    """What they load takes longer than what they do: rows are read, and only ``compute`` of an analysis needs more."""
    write_results(tmp_path)
    code = """
import sys
from pathlib import Path
import ray_backfill as rb
from ray_backfill.compare.report import write_report

def loaded(*names):
    return sorted(name for name in sys.modules if name.startswith(names))

results = rb.read_results(sys.argv[1])
print(loaded("numba", "sklearn", "scipy", "threadpoolctl", "PIL", "ray_backfill.engine", "ray_backfill.data"))
print(results.verdict, results)
write_report(Path(sys.argv[1]))
print(loaded("numba", "sklearn", "scipy"))"""
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "[]")
