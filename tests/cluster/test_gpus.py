"""A Ray that counts GPUs which torch cannot use, as with a build for CPUs or for a newer driver: refused at once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

# Two GPUs that only Ray knows of.
CODE = """
import json, sys, time
from dataclasses import dataclass
from pathlib import Path
import ray
from ray_backfill.core.errors import InputError
from ray_backfill.compare.ray.shards import check_shards
from ray_backfill.workers.session import has_gpus, placed
from ray_backfill.workers.settings import EmbedActors, Workers
for attempt in range(5):
    try:
        ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
        break
    except Exception as error:  # Ray gives itself 30 s, which a busy machine exceeds
        if "timed out during startup" not in str(error) or attempt == 4:
            raise
        ray.shutdown()
from ray_backfill.compare.ray import fits, shards
from ray_backfill.core.progress import task
from ray_backfill.workers import side_by_side

@dataclass(frozen=True)
class Job:
    method: str
    out: Path
    def run(self, device=None):
        (self.out / self.method).write_text(f"{device} {ray.get_gpu_ids()}")
        ends, both = time.monotonic() + 60, [self.out / name for name in ("rm", "fct")]
        while not all(map(Path.exists, both)) and time.monotonic() < ends:  # so that both run at a time
            time.sleep(0.05)

found = {}
for name, ask in {
    "train": lambda: placed(Workers()),
    "stored vectors": lambda: placed(EmbedActors(), use_gpus=False),
    "shards on GPUs": lambda: placed(EmbedActors(), spare_gpus=1, use_gpus=False),
    "maps": has_gpus,
    "replay": lambda: check_shards(2, "cuda"),
    "one of them": lambda: check_shards(2, "cuda:1"),
    "on CPUs": lambda: check_shards(2, "cpu"),
}.items():
    try:
        found[name] = ask()
    except InputError as error:
        found[name] = str(error)
side_by_side.has_gpus = lambda: True  # as if torch could use them
with task("fit maps", 2) as shown:
    fits.fit_side_by_side([Job(name, Path.cwd()) for name in ("rm", "fct")], 0, shown, 0)
found["maps have"] = sorted(Path(name).read_text() for name in ("rm", "fct"))
found["shard needs"] = shards.shard_needs("cuda")
from types import SimpleNamespace
from ray_backfill.drill.ray import shards
from ray_backfill.drill.settings import ShardSettings
class Where:
    def __init__(self, job):
        pass
    def gpus(self):
        return ray.get_gpu_ids()
shards.LiveShard = Where
on_gpu = [SimpleNamespace(place=SimpleNamespace(on_gpu=True))] * 4
actors = shards.start_shards(on_gpu, ShardSettings(), EmbedActors(gpus=0.5).gpus)
found["halves"] = ray.get([actor.gpus.remote() for actor in actors], timeout=60)
print(json.dumps(found))
"""


@pytest.mark.heavy
def test_gpus_that_torch_cannot_use_are_refused_before_anything_starts(tmp_path: Path) -> None:
    # Names of two GPUs: Ray believes them, and torch finds none, on whatever machine.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "98,99"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=500, cwd=tmp_path, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stored vectors"] == [2, False]
    assert found["on CPUs"] is None
    assert found["one of them"] == "device 'cuda:1' for shards: each has one GPU of its own; give device cuda"
    assert [re.sub(r"\d+", "N", each) for each in found["maps have"]] == ["cuda ['N']"] * 2
    assert len(set(found["maps have"])) == 2, "each map has a GPU of its own"
    assert found["shard needs"] == {"CPU": 2, "GPU": 1}
    assert len(found["halves"]) == 4
    assert len({str(each) for each in found["halves"]}) == 2, "four shards with half a GPU each have two"
    for name in ("train", "shards on GPUs", "maps", "replay"):
        assert found[name].startswith("Ray counts 2 GPU(s) on node "), name
        assert "but torch " in found[name]
        assert "is built for CPUs" in found[name] or "finds no GPU" in found[name]
        assert found[name].endswith("or hide them: CUDA_VISIBLE_DEVICES= before ray starts there")
