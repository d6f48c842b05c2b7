"""A node or a cluster with other versions is one line, before any work."""

from pathlib import Path

import pytest

from ray_backfill.core import __version__
from tests.cluster._nodes import Nodes, started_nodes

SESSION = """
import os, sys
import ray
os.chdir("/")  # Ray adds a driver's folder to the path of its workers
ray.__version__ = sys.argv[1] if sys.argv[1:] else ray.__version__
from ray_backfill.cli import run_job
from ray_backfill.workers import versions
from ray_backfill.workers.session import session
versions._PATIENCE_S = 300.0  # a busy machine

def main():
    with session():
        print("connected")

run_job(main)
"""


def outcome(nodes: Nodes, *arguments: str) -> tuple[int, str, list[str]]:
    """Exit code and output of a driver, and the lines that it said."""
    with nodes.start(SESSION, *arguments) as driver:
        out, said = driver.communicate(timeout=500)
    return driver.returncode, out, said.splitlines()


@pytest.mark.heavy
@pytest.mark.cluster
def test_other_versions_are_one_line_and_equal_ones_pass(tmp_path: Path) -> None:
    with started_nodes(1, 1) as nodes:
        assert outcome(nodes)[:2] == (0, "connected\n")
        # Only this driver has another version: Ray itself refuses it.
        code, out, (*_, last) = outcome(nodes, "1.2.3")
        assert (code, out) == (2, "")
        assert last.startswith("error: the cluster has Ray 2."), last
        assert "but this command has Ray 1.2.3 and Python 3." in last
        has = {}
        for name, version in {"older": "__version__ = '0.0.9'", "none": "raise ImportError", "bad": "1 / 0"}.items():
            (package := tmp_path / name / "ray_backfill" / "core").mkdir(parents=True)
            (package.parent / "__init__.py").touch()
            (package / "__init__.py").write_text(version)
            node = nodes.cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path / name)})
            has[name] = f"({node.node_id[:8]}) has ray_backfill "
            bad = f"({node.node_id[:8]}) did not say which versions it has (RayTaskError(ZeroDivisionError))"
        code, out, (*others, last) = outcome(nodes)
        assert (code, out) == (2, "")
        assert f"{has['older']}0.0.9; " in last
        assert f"{has['none']}(not installed); " in last
        assert f"; but this command has ray_backfill {__version__}, Ray 2." in last
        assert last.count("node ") == 2, "the head has the same"
        assert sum(bad in line for line in others) == 1
        assert last.endswith("and run the same command again")
