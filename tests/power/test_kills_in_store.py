"""Processes that are killed at random times while their folders are in a store: the same command, on this machine or on
another one, ends with the bytes of an undisturbed run, makes nothing again that was finished, and leaves nothing else.
"""

import json
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.cli.main import _main
from ray_backfill.core import run_lock
from ray_backfill.core.store_path import StorePath, path_of
from ray_backfill.core.stores import Bucket, Entry, open_bucket
from ray_backfill.encode.items import ItemSettings
from tests.object_store import client_variables, new_bucket
from tests.power import _models
from tests.power.test_power_cuts import METHODS, comparable, prepare

ROWS = 150_000  # three parts of an import
# Left by a process that died, or that works.
LEFTOVER = re.compile(r"(^|/)\.lock$|\.tmp$|/\.[^/]*\.(new|old|unfinished)/|/\.complete$|/\.attempts/")


def simulate(root: StorePath, local: Path, out: StorePath) -> None:
    methods = f"{METHODS} ridge_gallery"
    _main(f"simulate --data {root}/data --out {out} --metrics nDCG@10 --points 3 {methods}".split())


def embed(root: StorePath, local: Path, out: StorePath) -> None:
    items = ItemSettings(draw_queries=6, draw_train=12, part_rows=8)
    rb.embed(_models.old, _models.new, out=out, texts=root / "texts.jsonl", items=items)


def import_vectors(root: StorePath, local: Path, out: StorePath) -> None:
    _main(f"import --gallery {local}/many.parquet --out {out}".split())


# Command, and what of it counts as finished once it is there by itself; what else counts, its stage's manifest says.
RUNS: dict[str, tuple[Callable[[StorePath, Path, StorePath], None], str]] = {
    "simulate": (simulate, r"^$"),
    "embed": (embed, r"/embeddings/\w+\.parquet/part-\d+\.parquet$"),
    "import": (import_vectors, r"/part-\d+\.json$"),
}
# Ten kills on each of two servers; the first of each command are in every suite.
KILLS = [(name, seed) for name, number in (("simulate", 3), ("embed", 4), ("import", 3)) for seed in range(number)]


@dataclass(frozen=True)
class Place:
    """Inputs in a bucket and on a disk, and of each command what an undisturbed run left and how long it took."""

    root: StorePath
    local: Path
    processes: ForkServerContext
    variables: dict[str, str]
    calm: dict[str, tuple[dict[str, object], float]]


def _child(name: str, place: tuple[StorePath, Path], out: StorePath, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    RUNS[name][0](*place, out)


def _started(name: str, place: Place, out: StorePath, cache: str) -> Any:
    """A process that has locked the folder of its command, forked from one that has imported it all."""
    variables = place.variables | {"RAY_BACKFILL_CACHE": str(place.local / cache)}
    process = place.processes.Process(target=_child, args=(name, (place.root, place.local), out, variables))
    process.start()
    while process.is_alive() and not (out / run_lock.LOCK).is_file():  # before there is nothing to lose
        time.sleep(0.01)
    return process


def _objects(folder: StorePath) -> dict[str, Entry]:
    return {entry.key[len(folder.key) :]: entry for entry in folder.bucket.below(folder.key)}


def _content(folder: StorePath) -> dict[str, object]:
    """The contents to compare; where a run is does not count."""
    image = {f"run{name}": folder.bucket.read(entry.key)[0] for name, entry in _objects(folder).items()}
    return comparable({name: data.replace(str(folder).encode(), b"OUT") for name, data in image.items()})


def _finished(name: str, folder: StorePath, objects: dict[str, Entry]) -> dict[str, Entry]:
    """What must not be made again."""
    stages = [key.rpartition("/")[0] for key in objects if key.endswith("/manifest.json")
              and "/." not in key and json.loads((folder / key[1:]).read_bytes())["finished"]]  # fmt: skip
    of_stages = {key for key in objects if key.rpartition("/")[0] in stages}
    parts = {key for key in objects if re.search(RUNS[name][1], key)}
    if name == "import":  # a part counts with its note
        parts = {key.replace(".json", ".parquet") for key in parts if "/." in key} & objects.keys()
    return {key: objects[key] for key in of_stages | parts}


@pytest.fixture(scope="module")
def place(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    local = tmp_path_factory.mktemp("kills")
    prepare(local)
    rng = np.random.default_rng(0)
    rb.write_folder(local / "large", {m: rng.normal(size=(ROWS, 4)).astype(np.float32) for m in ("old", "new")})
    (local / "large" / "gallery.parquet").rename(local / "many.parquet")
    variables = dict(client_variables(s3_server, local / "copies"))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, "ray_backfill.compare.run", "ray_backfill.data.importing"])
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, value)
        open_bucket.cache_clear()
        root = path_of(f"s3://{new_bucket(s3_server)}")
        assert isinstance(root, StorePath)
        for file in (local / "data").glob("*.parquet"):
            (root / "data" / file.name).write_bytes(file.read_bytes())
        (root / "texts.jsonl").write_bytes((local / "texts.jsonl").read_bytes())
        yield Place(root, local, processes, variables, {})
    open_bucket.cache_clear()


def _calm(name: str, place: Place) -> tuple[dict[str, object], float]:
    if name not in place.calm:
        out = place.root / f"calm {name}".replace(" ", "_")
        process, started = _started(name, place, out, f"calm-{name}"), time.monotonic()
        process.join(300)
        assert process.exitcode == 0
        place.calm[name] = _content(out), time.monotonic() - started
    return place.calm[name]


@pytest.mark.parametrize(
    ("name", "seed"), [pytest.param(*kill, marks=[pytest.mark.full] * (kill[1] > 0)) for kill in KILLS]
)
def test_a_killed_process(
    name: str, seed: int, place: Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.node.callspec.params["s3_server"]
    expected, seconds = _calm(name, place)
    out = place.root / f"{name}{seed}"
    process = _started(name, place, out, f"killed-{name}{seed}")
    time.sleep(random.Random(f"{name} {seed} {server}").uniform(0, seconds))
    process.kill()
    process.join(60)
    before = _objects(out)
    safe = _finished(name, out, before)
    if seed % 2:  # on another machine, where the number of the process says nothing
        monkeypatch.setattr(run_lock, "_pids", lambda: "another machine")
        monkeypatch.setattr(run_lock, "_RENEWED_S", 0.2)
        monkeypatch.setattr(run_lock, "_GONE_S", 1.0)
    monkeypatch.setenv("RAY_BACKFILL_CACHE", str(place.local / f"other-{name}{seed}"))
    put, real = set[str](), Bucket.put

    def noted(self: Bucket, key: str, *more: Any, **named: Any) -> Entry:
        put.add(key)
        return real(self, key, *more, **named)

    monkeypatch.setattr(Bucket, "put", noted)
    RUNS[name][0](place.root, place.local, out)
    after = _objects(out)
    print(
        f"{server} {name} {seed}: {len(before)} objects when killed, {len(safe)} of them finished, {len(put)} made then"
    )
    assert _content(out) == expected
    assert not [key for key in after if LEFTOVER.search(key)]
    said = ("/manifest.json", "/.key.json")  # a manifest may get facts, such as seconds
    again = {key for key in safe if not key.endswith(said)} & {key[len(out.key) :] for key in put}
    assert not again
    moved = {key: entry for key, entry in safe.items() if key in after and not key.endswith(said)}
    assert {key: (after[key].mark, after[key].modified) for key in moved} == {
        key: (entry.mark, entry.modified) for key, entry in moved.items()
    }
    assert name == "import" or len(moved) == len([key for key in safe if not key.endswith(said)])
