"""After a power cut at any moment, the same command ends with the results of an undisturbed one, and keeps what counts.

Each command runs once under strace; ``disk`` then says what a power cut could leave after each of its operations.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.cli.main import _main
from ray_backfill.core.errors import InputError
from tests.power.disk import Disk, Image, Operation, cuts, read_image, trace, write_image

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("strace") and not os.environ.get("CI"), reason="needs strace"),
]

# Grows while it is written, or says who works; neither is vouched for.
_NOT_WHOLE = ("*/.lock", "*/.key.json", "*/.attempts/*", "*/journal.jsonl", "*.tmp", "*/.tmp*")
# What a run says about itself: times and the like.
_SAID = ("created", "seconds", "timings_s", "versions", "files", "command", "start_s", "items_per_s", "embedding")
METHODS = "--methods rm_naive procrustes_gallery"
EVALUATION = "--metrics nDCG@10 --points 3"
TEXTS = "--old python:tests.power._models:old --new python:tests.power._models:new --texts {root}/texts.jsonl"


@dataclass(frozen=True)
class Command:
    """A command to cut. words: {root} is a folder of inputs, {out} the run's. before: commands that have ended before.

    kept: files that are never made again once they are whole. every: of how many different states one is tried.
    """

    name: str
    words: str
    before: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    every: int = 1
    on_ray: bool = False
    is_heavy: bool = False

    def filled(self, root: Path, words: str) -> list[str]:
        return words.format(root=root, out=root / "work" / "run").split()


SIMULATE = f"simulate --data {{root}}/data --out {{out}} {EVALUATION} {METHODS}"
FIT = f"fit --data {{root}}/data --out {{out}} {METHODS} ridge_gallery"
IMPORT = "import --gallery {root}/data/gallery.parquet --out {out}"
FORECAST = f"forecast {{root}}/data --new {{root}}/data/gallery.parquet --out {{out}} {METHODS} --points 3"
DRILL = (
    "drill --data {root}/data --out {out} --live.method rm_naive --live.shards.number 1 --live.part-items 20 "
    "--live.traffic.rate-per-s 20 --live.quiet-s 0.2 --live.traffic.warm-up-s 0.2 --points 3 --metrics CMC@1"
)
COMMANDS = (
    Command("simulate", SIMULATE, every=10),
    Command("simulate with one method more", f"{SIMULATE} ridge_gallery", before=(SIMULATE,), every=10, is_heavy=True),
    Command("fit", FIT, kept=("run/maps/*/model.safetensors",), every=3),
    Command("import", IMPORT),
    Command("import again", "import --gallery {root}/other.parquet --out {out} --overwrite", before=(IMPORT,)),
    Command("forecast", FORECAST, every=8),
    Command("export", "export {out} --method rm_naive --to {out}/upgrade", before=(SIMULATE,), every=3),
    Command("embed", f"embed {TEXTS} --out {{out}}", kept=("run/embeddings/*/part-*.parquet",), every=25, on_ray=True),
    Command("drill", DRILL, kept=("run/live/parts/part-*.parquet",), every=150, on_ray=True, is_heavy=True),
)


def prepare(root: Path) -> None:
    """The inputs of all commands."""
    rng, centre = np.random.default_rng(0), np.random.default_rng(1).normal(size=(6, 8))
    splits = []
    for rows in (60, 24, 60):
        label = np.arange(rows) % 6
        old, new = (centre[label] + noise * rng.normal(size=(rows, 8)) for noise in (1.2, 0.9))
        splits.append({"old": old, "new": new, "label": label})
    rb.write_folder(root / "data", *splits)
    table = pq.read_table(root / "data" / "gallery.parquet")
    pq.write_table(table.slice(0, 40), root / "other.parquet")
    texts = [f"word{row % 5} word{rng.integers(9)}" for row in range(60)]
    lines = [json.dumps({"id": f"i{row}", "text": text, "label": str(row % 5)}) for row, text in enumerate(texts)]
    (root / "texts.jsonl").write_text("\n".join(lines) + "\n")
    _main(["sample", str(root / "data"), "--budget", "30"])
    (root / "work").mkdir()


def comparable(image: Image) -> dict[str, object]:
    """What must be equal after every interruption: all files but those about the run itself."""
    found: dict[str, object] = {}
    for path, data in image.items():
        if data is None or Path(path).name.startswith(".") or path.endswith((".html", ".png", "_targets.json")):
            continue
        if any(fnmatch(path, f"run/live/{name}") for name in ("events/*", "journal.jsonl", "*.parquet", "*.json")):
            continue  # when things happened
        found[path] = data
        if path.endswith(".json"):
            value = json.loads(data)
            found[path] = {name: of for name, of in value.items() if name not in _SAID}
    return found


def _parameter(command: Command) -> Any:
    marks = [pytest.mark.cluster] * command.on_ray + [pytest.mark.heavy] * command.is_heavy
    return pytest.param(command, id=command.name, marks=marks)


@pytest.fixture(scope="module", params=map(_parameter, COMMANDS))
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Traced"]:
    command: Command = request.param
    root = tmp_path_factory.mktemp("power")
    prepare(root)
    for earlier in command.before:
        _main(command.filled(root, earlier))
    before = read_image(root / "work")
    words = [sys.executable, "-m", "ray_backfill", *command.filled(root, command.words)]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    operations = trace(words, root / "work", environment, root / "log")
    yield Traced(command, root, before, operations, read_image(root / "work"))
    shutil.rmtree(root)


@dataclass(frozen=True)
class Traced:
    """A command that has run once: what it did, and what it left."""

    command: Command
    root: Path
    before: Image
    operations: list[Operation]
    after: Image


def test_the_trace_is_complete(traced: Traced) -> None:
    disk = Disk(traced.before)
    for operation in traced.operations:
        disk.apply(operation)
    assert disk.now() == traced.after
    assert any(operation.kind == "sync" for operation in traced.operations)


def test_no_file_has_its_name_before_its_bytes(traced: Traced) -> None:
    """Neither while the command runs nor at its end, when names are safe, too."""
    disk = Disk(traced.before)
    for number, operation in enumerate(traced.operations):
        disk.apply(operation)
        if operation.kind in ("rename", "create"):
            kept = disk.bytes_lost()
            lost = [path for path, data in disk.now().items() if kept[path] != data and not _may_be_partial(path)]
            assert not lost, f"after operation {number}, {operation.kind} {operation.target or operation.path}"
    kept = disk.names_lost()
    missing = [path for path in traced.after if path not in kept and not _may_be_partial(path)]
    assert not missing, "names that a power cut after the command would lose"


def _may_be_partial(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in _NOT_WHOLE)


def test_the_same_command_mends_every_cut(traced: Traced, request: pytest.FixtureRequest) -> None:
    command, work = traced.command, traced.root / "work"
    if command.on_ray:
        request.getfixturevalue("ray_session")
    expected = comparable(traced.after)
    states = cuts(traced.before, traced.operations)
    chosen = states[:: 1 if os.environ.get("EVERY_POWER_CUT") else command.every]
    problems = []
    for number, way, image in [*chosen, states[-1]]:
        where = f"{way} after operation {number} of {len(traced.operations)}"
        shutil.rmtree(work)
        work.mkdir()
        write_image(work, image)
        safe = [path for path in image if any(fnmatch(path, pattern) for pattern in command.kept)]
        safe = [path for path in safe if image[path] == traced.after.get(path) and _is_vouched_for(path, image)]
        for path in safe:
            os.utime(work / path, ns=(1, 1))
        try:
            _main(command.filled(traced.root, command.words))
        except InputError as error:
            problems.append(f"{where}: {error}")
            continue
        found = comparable(read_image(work))
        wrong = [path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)]
        problems += [f"{where}: {path} differs" for path in sorted(wrong)]
        problems += [f"{where}: {path} was made again" for path in safe if (work / path).stat().st_mtime_ns != 1]
    assert not problems, "\n".join(problems[:20])


def _is_vouched_for(path: str, image: Image) -> bool:
    """Whether a part stands for itself, or the manifest beside it says that the stage is finished."""
    if "/part-" in path:
        return True
    manifest = image.get(str(Path(path).parent / "manifest.json"))
    return bool(manifest and json.loads(manifest)["finished"])
