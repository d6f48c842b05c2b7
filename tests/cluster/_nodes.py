"""A cluster of several nodes on this machine, beside whatever Ray the tests use, and drivers of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

ROOT = Path(__file__).parents[2]


@dataclass
class Nodes:
    """A head and other nodes."""

    cluster: Cluster

    @property
    def head(self) -> str:
        """Its id."""
        return str(self.cluster.head_node.node_id)

    def kill(self, node_id: str, leaves_orphans: bool = False) -> None:
        """Kill a node and everything that runs on it, as if its machine lost power.

        leaves_orphans: only Ray's own process dies, and what it started has to notice.
        """
        (node,) = (node for node in self.cluster.list_all_nodes() if node.node_id == node_id)
        pids = [info.process.pid for each in node.all_processes.values() for info in each]
        below = [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        if leaves_orphans:
            below = []
        for process in [*map(psutil.Process, pids), *below]:
            process.send_signal(signal.SIGKILL)
        for each in node.all_processes.values():
            for info in each:
                info.process.wait()

    def start(self, program: str, *arguments: str) -> "subprocess.Popen[str]":
        """A Python program that RAY_ADDRESS connects to this cluster."""
        # A Ray of the tests may have set the mode, before these nodes were started.
        kept = {name: value for name, value in os.environ.items() if name[:4] != "RAY_" or name == "RAY_AUTH_MODE"}
        environment = kept | {"RAY_ADDRESS": self.cluster.address, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
        )


@contextmanager
def started_nodes(number: int, cpus: float) -> Iterator[Nodes]:
    """This many nodes, each with this many CPUs."""
    settings = {"num_cpus": cpus, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=settings))
    try:
        for _ in range(number - 1):
            _patiently(lambda: cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20))
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


def _patiently(start: Callable[[], Any]) -> Any:
    """Ray gives a node 30 s to start, which a busy machine exceeds: it is tried again."""
    for last in range(5):
        try:
            return start()
        except Exception as error:  # of no type of its own
            if "timed out during startup" not in str(error) or last == 4:
                raise


def wait_until(is_so: Callable[[], object], seconds: float, driver: "subprocess.Popen[str] | None" = None) -> None:
    """Returns when it is so. driver: must be running meanwhile."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"
        assert driver is None or driver.poll() is None, driver.communicate()[1][-3000:]
        time.sleep(0.1)
