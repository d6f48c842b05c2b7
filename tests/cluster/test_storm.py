"""Kills at random moments of a driver, a shard, a node under the embedding, and a head: the same command goes on.

Afterwards results equal the undisturbed ones, and what was finished before a kill is still the same file.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_backfill.core.stages import is_finished
from tests.cluster._nodes import ROOT, Nodes, started_nodes
from tests.cluster.drill._drill import write_folder
from tests.head import kill_servers, running_head, servers_of

pytestmark = [pytest.mark.cluster, pytest.mark.heavy]
KILLS = int(os.environ.get("KILLS", "10"))

FIT = ["fit", "--methods", "fct", "rqt", "ridge_gallery", "--transforms.epochs", "40", "--transforms.hidden", "64"]
SIMULATE = ["simulate", "--methods", "rm_naive", "ridge_gallery", "procrustes_query", "--shards", "2", "--points", "5"]
EMBED = ["embed", "--old", "python:tests.encode._models:slow_old", "--new", "python:tests.encode._models:slow_new"]
EMBED += ["--items.part-rows", "16", "--items.draw-queries", "20", "--items.draw-train", "40"]


def write_texts(path: Path) -> Path:
    lines = [{"id": i, "text": f"word{i % 17} and word{i % 5} of item {i}", "label": i % 17} for i in range(400)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def what_counts(out: Path) -> dict[str, str]:
    """What a run computes below a folder of finished stages and parts: file -> hash."""
    names = [path.parent for path in out.rglob("manifest.json") if is_finished(path.parent)]
    found = [path for folder in names for path in folder.glob("*.safetensors")]
    found += [path for name in ("curves", "summary", "differences") for path in out.glob(f"results/{name}.parquet")]
    found += out.glob("embeddings/*.parquet/*.parquet")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Which files those are: inode and time."""
    return {name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) for name in what_counts(out)}


@dataclass
class Storm:
    """A command that is killed again and again. environment: of its cluster, which a new head replaces."""

    arguments: list[str]
    out: Path
    environment: Mapping[str, str]
    reference: dict[str, str] = field(default_factory=dict)
    takes_s: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    finished: int = 0
    said: list[str] = field(default_factory=list)

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ray_backfill", *self.arguments, "--out", str(self.out)]
        return subprocess.Popen(
            command, env=dict(self.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip

    def undisturbed(self) -> None:
        began = time.monotonic()
        with self.start() as driver:
            _, err = driver.communicate(timeout=600)
        assert driver.returncode == 0, err
        self.takes_s = time.monotonic() - began
        self.reference = what_counts(self.out)
        assert self.reference
        shutil.rmtree(self.out)

    def kill_once(self, victim: Callable[["subprocess.Popen[str]"], str]) -> str:
        """Start the command, kill the victim at a random moment, and let the command end; returns what it said.

        A command that was done before is compared and begun anew.
        """
        while True:
            kept, driver = stamps(self.out) if self.out.exists() else {}, self.start()
            with suppress(subprocess.TimeoutExpired):
                driver.wait(self.dice.uniform(0.15, 1.0) * self.takes_s)
            if driver.poll() is None:
                break
            self.compare(driver, kept)
        kept = stamps(self.out) if self.out.exists() else {}
        name = victim(driver)
        try:
            _, err = driver.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            raise AssertionError(f"hangs after {name}: {driver.communicate()[1][-2000:]}") from None
        self.said.append(f"{name}: {driver.returncode} {(err.splitlines() or [''])[-1]}")
        print(self.said[-1], flush=True)
        assert "Traceback" not in err, err
        if driver.returncode == 0:
            self.compare(driver, kept)
        else:
            self.unchanged(kept)
        return err

    def compare(self, driver: "subprocess.Popen[str]", kept: dict[str, tuple[int, int]]) -> None:
        assert driver.returncode == 0, driver.communicate()[1][-3000:]
        self.unchanged(kept)
        assert what_counts(self.out) == self.reference
        self.finished += 1
        shutil.rmtree(self.out)

    def unchanged(self, kept: dict[str, tuple[int, int]]) -> None:
        now = stamps(self.out) if self.out.exists() else {}
        assert {name: now.get(name) for name in kept} == kept, "what was finished is kept"

    def end(self) -> None:
        """The same command once more."""
        kept = stamps(self.out) if self.out.exists() else {}
        with self.start() as driver:
            driver.wait(600)
        self.compare(driver, kept)


def the_driver(driver: "subprocess.Popen[str]") -> str:
    os.killpg(driver.pid, signal.SIGKILL)
    return "driver"


def environment_of(address: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:4] != "RAY_" or name == "RAY_AUTH_MODE"}
    return kept | {"RAY_ADDRESS": address, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}


def workers(nodes: Nodes, title: str) -> list[tuple[str, psutil.Process]]:
    """Processes of Ray that have this in their title, and the node on which each runs."""
    found = []
    for node in nodes.cluster.list_all_nodes():
        for info in node.all_processes["raylet"]:
            with suppress(psutil.NoSuchProcess):  # of a node that died
                children = psutil.Process(info.process.pid).children()
                found += [(node.node_id, each) for each in children if title in each.cmdline()[0]]
    return found


def waited_for(driver: "subprocess.Popen[str]", nodes: Nodes, title: str, elsewhere: str = "") -> list[Any]:
    """What ``workers`` finds, once there is something, while the driver runs. elsewhere: not on this node."""
    ends = time.monotonic() + 120
    while driver.poll() is None and time.monotonic() < ends:
        if found := [each for each in workers(nodes, title) if each[0] != elsewhere]:
            return found
        time.sleep(0.02)
    return []


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started_nodes(3, 1) as started:
        yield started


def test_fit_survives_kills_of_its_driver(nodes: Nodes, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    storm = Storm([*FIT, "--data", str(data)], tmp_path / "out", environment_of(nodes.cluster.address))
    storm.undisturbed()
    for _ in range(KILLS):
        storm.kill_once(the_driver)
    storm.end()


def test_a_simulation_over_shards_survives_kills_of_shards_and_driver(nodes: Nodes, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    storm = Storm([*SIMULATE, "--data", str(data)], tmp_path / "out", environment_of(nodes.cluster.address))
    storm.undisturbed()

    def a_shard(driver: "subprocess.Popen[str]") -> str:
        for _, process in waited_for(driver, nodes, "ray::ShardActor")[:1]:
            time.sleep(storm.dice.uniform(0, 3))  # it starts, reads or replays
            with suppress(psutil.NoSuchProcess):
                process.kill()
                return "shard"
        return "nothing"

    for number in range(KILLS):
        err = storm.kill_once(a_shard if number % 2 else the_driver)
        if storm.said[-1].startswith("shard: 2"):
            assert err.splitlines()[-1].startswith("error: a gallery shard died, ")
    storm.end()


def test_an_embedding_survives_kills_of_nodes(nodes: Nodes, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl")
    storm = Storm([*EMBED, "--texts", str(texts)], tmp_path / "out", environment_of(nodes.cluster.address))
    storm.undisturbed()

    def a_node(driver: "subprocess.Popen[str]") -> str:
        busy = waited_for(driver, nodes, "Map", elsewhere=nodes.head)
        if not busy:
            return "nothing"
        nodes.kill(busy[0][0])
        nodes.cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        return "node"

    while sum(said.startswith("node: ") for said in storm.said) < KILLS:
        storm.kill_once(a_node)
        assert storm.said[-1].split(": ")[1].startswith("0 "), "the command goes on by itself"
    if storm.out.exists():
        storm.end()


@pytest.mark.parametrize("what", ["simulate", "embed"])
def test_a_command_goes_on_with_a_new_head(tmp_path: Path, what: str) -> None:
    if what == "simulate":
        arguments = [*SIMULATE, "--data", str(write_folder(tmp_path / "data"))]
    else:
        arguments = [*EMBED, "--texts", str(write_texts(tmp_path / "texts.jsonl"))]
    storm = Storm(arguments, tmp_path / "out", {})

    def the_head(driver: "subprocess.Popen[str]") -> str:
        killed = storm.dice.choice([("gcs_server",), ("raylet",), ("gcs_server", "raylet")])
        until_busy(driver, storm.environment["HEAD"])
        time.sleep(storm.dice.uniform(0, 2))
        kill_servers(storm.environment["HEAD"], *killed)
        return " and ".join(killed)

    for number in range(KILLS // 2 + 1):
        with new_head(tmp_path / f"home-{number}") as storm.environment:
            if number == 0:
                storm.undisturbed()
            if number == KILLS // 2:
                storm.end()
                return
            storm.kill_once(the_head)
            code, *words = storm.said[-1].split(": ", 1)[1].split(" ", 1)
            assert code == "0" or words[0].startswith("error: ")


def until_busy(driver: "subprocess.Popen[str]", head: str) -> None:
    """Returns when a shard or an embedding actor runs on this head, or the driver has ended."""
    while driver.poll() is None:
        for raylet in servers_of(head, "raylet"):
            with suppress(psutil.NoSuchProcess, IndexError):
                if any(re.match("ray::.*(ShardActor|Map)", child.cmdline()[0]) for child in raylet.children()):
                    return
        time.sleep(0.05)


@contextmanager
def new_head(home: Path) -> Iterator[dict[str, str]]:
    """The environment of a driver on a head of its own, whose processes name the folder HEAD."""
    home.mkdir()
    with running_head(home, cpus=2, has_dashboard=False) as head:
        here = {"RAY_ADDRESS": head.address, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}
        yield head.environment | here | {"HEAD": str(head.temp_dir)}
