"""The jobs on three nodes that share no disk: every folder is in a store, and every node has a cache of its own."""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest

from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import open_bucket
from tests.cluster.drill._drill import write_folder
from tests.command import Command
from tests.head import BIN, Head, free_port, running_head
from tests.jobs.conftest import ROOT, run
from tests.object_store import client_variables, new_bucket, served

pytestmark = [pytest.mark.cluster, pytest.mark.heavy]

RECIPE = ["--new.training.epochs", "12", "--embed.part-rows", "20", "--methods", "rm"]
REPLAY = ["--orders", "classifier_score", "--merges", "raw", "--points", "3"]
# As typed in the documentation.
MISSION = re.findall(
    r"^    ray job submit .* -- \\\n        (python jobs/\S+ --out) s3://bucket/demo$",
    (ROOT / "docs" / "cluster.md").read_text(),
    re.MULTILINE,
)
SMALL = {"RAY_BACKFILL_PLUGINS": "tests.jobs._small_landmarks", "PYTHONPATH": str(ROOT)}


@dataclass
class Node:
    """A folder with its working folder, its home and its copies, and the process that started it."""

    folder: Path
    process: psutil.Process

    def runs(self, name: str) -> bool:
        return any(name in " ".join(child.cmdline()) for child in self._all())

    def kill(self) -> None:
        """As if the machine lost power."""
        for process in [self.process, *self._all()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def copies(self) -> set[str]:
        root = self.folder / "copies"
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def _all(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)


def variables(folder: Path, address: str) -> dict[str, str]:
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {**client_variables(address, folder / "copies"), **SMALL, "TMPDIR": str(folder / "tmp")}


@contextmanager
def joined(head: Head, folder: Path, address: str) -> Iterator[Node]:
    """Another node with one CPU."""
    environment = head.environment | variables(folder, address) | {"HOME": str(folder / "home")}
    (folder / "home" / ".ray").mkdir(exist_ok=True)
    shutil.copy(Path(head.environment["HOME"]) / ".ray" / "auth_token", folder / "home" / ".ray" / "auth_token")
    command = [str(BIN / "ray"), "start", "--block", f"--address={head.address}", "--num-cpus=1"]
    command += ["--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={free_port()}"]
    temp_dir = tempfile.mkdtemp(prefix="rb", dir="/tmp")  # sockets lie in it: their paths must be short
    command += ["--object-store-memory=100000000", "--disable-usage-stats", f"--temp-dir={temp_dir}"]
    log = folder / "node.log"
    with log.open("wb") as written:
        process = psutil.Popen(command, env=environment, cwd=folder / "work", stdout=written, stderr=written)
    node = Node(folder, process)
    try:
        until = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield node
    finally:
        with suppress(psutil.NoSuchProcess):
            node.kill()
        shutil.rmtree(temp_dir, ignore_errors=True)


@dataclass
class Cloud:
    """A bucket, a head, and its other nodes."""

    bucket: str
    head: Head
    nodes: list[Node]
    out: str

    def submit(self, *entrypoint: str) -> subprocess.Popen[str]:
        environment = self.head.environment | {"RAY_API_SERVER_ADDRESS": self.head.dashboard}
        words = [str(BIN / "ray"), "job", "submit", "--working-dir", str(ROOT), "--", *entrypoint]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)

    def ended(self, *entrypoint: str) -> str:
        return end(self.submit(*entrypoint))


def end(job: "subprocess.Popen[str]") -> str:
    """What a job that ended well has said."""
    said, error = job.communicate(timeout=900)
    assert job.returncode == 0, said[-4000:] + error[-2000:]
    return said


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Both commands of the mission have run there; a node was lost while it trained."""
    folder = tmp_path_factory.mktemp("nodes")
    fitting, simulating = (command.split() for command in MISSION)
    with pytest.MonkeyPatch.context() as patched, served("moto", folder) as address:
        bucket = new_bucket(address)
        for name, value in client_variables(address, folder / "reader").items():
            patched.setenv(name, value)  # of this process, which reads the results
        open_bucket.cache_clear()
        of_head = variables(folder / "0", address)
        patched.chdir(folder / "0" / "work")
        with (
            running_head(folder / "0" / "home", 1, True, **of_head) as head,
            joined(head, folder / "1", address) as first, joined(head, folder / "2", address) as second,
        ):  # fmt: skip
            there = Cloud(f"s3://{bucket}", head, [first, second], f"s3://{bucket}/demo")
            fit = there.submit(*fitting, there.out, *RECIPE)
            victim = wait_for_checkpoint(there, fit)
            victim.kill()
            with joined(head, folder / "3", address) as third:
                end(fit)
                there.nodes = [node for node in (first, second, third) if node is not victim]
                there.ended(*simulating, there.out, *RECIPE, *REPLAY)
                yield there
    open_bucket.cache_clear()


def wait_for_checkpoint(cloud: Cloud, job: "subprocess.Popen[str]") -> Node:
    """A node that trains the new backbone, of which a checkpoint is in the store."""
    storage = path_of(cloud.out) / "backbones" / "new" / ".ray"
    until = time.monotonic() + 600
    while not any(path.parts[-2].startswith("checkpoint_") for path in storage.rglob("manifest.json")):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    return next(node for node in cloud.nodes if node.runs("RayTrainWorker"))


def tables(folder: Path) -> dict[str, bytes]:
    """All files but what has times in it, by their names."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    named = {"/".join(path.parts[len(folder.parts) :]): path for path in files}
    changing = ("manifest.json", ".html", "prometheus_targets.json")  # the last is of a local Ray
    return {name: path.read_bytes() for name, path in named.items() if not name.endswith(changing)}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on one machine, on its disk."""
    out = tmp_path_factory.mktemp("disk") / "demo"
    made = run("simulate.py", "--out", str(out), *RECIPE, *REPLAY, cwd=ROOT, **SMALL)
    assert made.returncode == 0, made.stderr
    return out


def test_a_lost_node_and_a_store_change_no_byte(cloud: Cloud, on_disk: Path) -> None:
    stored, disk = tables(path_of(cloud.out)), tables(on_disk)
    assert stored.keys() == disk.keys()
    assert [name for name in disk if stored[name] != disk[name]] == []
    assert not list(path_of(cloud.out).rglob("*checkpoint*")), "checkpoints are deleted at the end"


def test_replays_and_drills_over_shards_on_other_nodes(cloud: Cloud, on_disk: Path, tmp_path: Path) -> None:
    words, replayed = ["--methods", "rm_naive", *REPLAY], f"{cloud.bucket}/replayed"
    cloud.ended(
        "python", "jobs/simulate.py", "--data", f"{cloud.out}/embeddings", "--out", replayed, "--shards", "3", *words
    )
    here = run("simulate.py", "--data", str(on_disk / "embeddings"), "--out", str(tmp_path), *words)
    assert here.returncode == 0, here.stderr
    assert tables(path_of(replayed)) == tables(tmp_path)
    live = ["--live.part-items", "10", "--live.quiet-s", "0", "--live.traffic.warm-up-s", "0", "--live.shards.number"]
    said = cloud.ended(
        "python", "jobs/drill.py", "--out", cloud.out, *RECIPE, "--points", "3", *live, "2", "--actors.number", "1"
    )
    assert "Live quality equals the replayed curve at all 3 checkpoints" in said
    quality = pd.read_parquet(path_of(cloud.out) / "live" / "quality.parquet")
    assert len(quality)
    assert (quality.live == quality.exact).all()


def test_a_forecast_over_shards_on_other_nodes(cloud: Cloud, tmp_path: Path, command: Command) -> None:
    data, out = write_folder(tmp_path / "data"), {"store": f"{cloud.bucket}/early", "disk": str(tmp_path / "early")}
    for file in data.iterdir():
        (path_of(cloud.bucket) / "data" / file.name).write_bytes(file.read_bytes())
    words = ["--methods", "rm_naive", "procrustes_query", "--points", "3", "--out"]
    for folder in (str(data), f"{cloud.bucket}/data"):
        assert command("sample", folder, "--budget", 200).code == 0
    cloud.ended("python", "jobs/forecast.py", f"{cloud.bucket}/data", "--shards", "2", *words, out["store"])
    assert command("forecast", data, *words, out["disk"]).code == 0
    assert tables(path_of(out["store"])) == tables(Path(out["disk"]))


def test_nodes_share_nothing_but_the_bucket(cloud: Cloud) -> None:
    every = cloud.nodes[0].folder.parent
    for folder in (every / str(number) for number in range(4)):
        assert not list((folder / "work").iterdir()), "no file in a working folder"
        names = [path.name for place in ("home", "tmp") for path in (folder / place).rglob("*")]
        assert not re.search("part-0|manifest|safetensors", " ".join(names))
    copies = [node.copies() for node in (Node(every / "0", psutil.Process()), *cloud.nodes)]
    assert len(copies) == 3
    assert all(copies), "every node has read the bucket"
    assert len(set(map(frozenset, copies))) == len(copies), "to each its own"
