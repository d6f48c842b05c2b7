"""The whole job with a gallery of GLDv2's size: seconds and memory by stage, and growth. Prints Markdown tables.

python -m benchmarks.scale --out runs/scale                         # 761,757 items, all methods without training
python -m benchmarks.scale --out runs/scale --growth 761757 3000000 10000000    # a few methods, each size on its own
TMPDIR needs space for the vectors of the largest gallery; a memory-backed folder would count as memory.
"""

import argparse
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.galleries import header, row
from benchmarks.serving import machine
from ray_backfill.cli.commands.backfills import ScaleJob
from ray_backfill.compare import replay, resolve
from ray_backfill.compare import run as folder
from ray_backfill.compare import write as results
from ray_backfill.core.memory import MAPPED_BYTES
from ray_backfill.core.stages import read_json, write_json
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.learn.methods import find_methods
from ray_backfill.recipes.run import synthetic
from ray_backfill.recipes.run.synthetic import SyntheticGallery
from ray_backfill.workers.settings import Context

# Timed parts of the job: name in the table, owner of the attribute, and name of the attribute.
CLOCKED: tuple[tuple[str, Any, str], ...] = (
    ("draw and write", synthetic, "draw_gallery"),
    ("read", folder, "read_folder"),
    ("look for zero vectors", resolve, "check_vectors"),
    ("ground truth", resolve, "find_truth"),
    ("orders", resolve, "resolve_orders"),
    ("fit maps", folder, "fit_maps"),
    ("fingerprint", EmbeddingFolder, "fingerprint"),
    ("replay", replay, "replay_pairs"),
    ("intervals and differences", results, "tabulate"),
    ("report", results, "write_report"),
)
OTHER = "other: galleries through maps, tables"
# Methods of the growth table: the references, the naive merge, and one map that leaves the gallery unchanged.
FEW_METHODS = ("old", "new", "rm_naive", "procrustes_query")
GIB = 1 << 30
_EVERY_S = 0.02


@dataclass
class Clock:
    """Seconds and peak memory by stage; a nested stage counts only for itself.

    Memory is sampled in GiB: of the process, and of its anonymous part without mapped files.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    resident: dict[str, float] = field(default_factory=dict)
    anonymous: dict[str, float] = field(default_factory=dict)
    _stage: str = OTHER
    _since: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples while the block runs."""
        done = threading.Event()

        def sample() -> None:
            while not done.wait(_EVERY_S):
                status, stage = memory(), self._stage
                self.resident[stage] = max(self.resident.get(stage, 0), status["VmRSS"])
                self.anonymous[stage] = max(self.anonymous.get(stage, 0), status["RssAnon"])

        thread = threading.Thread(target=sample)
        thread.start()
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._go_to(OTHER)
            done.set()
            thread.join()

    def around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """``work`` with the clock at ``name``."""

        def clocked(*args: Any, **kwargs: Any) -> Any:
            outer = self._stage
            self._go_to(name)
            try:
                return work(*args, **kwargs)
            finally:
                self._go_to(outer)

        return clocked

    def _go_to(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now


def memory() -> dict[str, float]:
    """Memory of this process in GiB, by the kernel's names."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 / GIB for line in lines if line.endswith(" kB")}


def measure(job: ScaleJob) -> dict[str, Any]:
    """Run the job with a clock around its parts; returns the measurements as plain data."""
    clock, before = Clock(), memory()["RssAnon"]
    with ExitStack() as patches:
        for name, owner, attribute in CLOCKED:
            original = getattr(owner, attribute)
            setattr(owner, attribute, clock.around(name, original))
            patches.callback(setattr, owner, attribute, original)
        with clock.running():
            synthetic.evaluate_synthetic(
                job.gallery, job.evaluation, job.fits, Context(job.out.absolute(), command="benchmarks.scale")
            )
    size = sum(file.stat().st_size for file in (job.out / "embeddings" / "gallery.parquet").iterdir())
    return {
        "items": job.gallery.items,
        "queries": job.gallery.queries,
        "dims": job.gallery.dims,
        "orders": len(job.evaluation.orders),
        "seconds": clock.seconds,
        "resident": clock.resident,
        "anonymous": clock.anonymous,
        "at_start": before,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "disk": size / GIB,
    }


def stage_table(found: dict[str, Any]) -> None:
    """Print one row per stage, in the order of the job."""
    items = found["items"]
    print(f"\n{items:,} items, {found['queries']:,} queries, {found['dims']} dimensions, orders: {found['orders']}")
    header("stage", "seconds", "items/s", "s per million items", "memory at most, GiB", "of it anonymous, GiB")
    for stage in [*dict.fromkeys(name for name, _, _ in CLOCKED), OTHER]:
        if stage in found["seconds"]:
            taken = found["seconds"][stage]
            resident, anonymous = (f"{found[kind].get(stage, 0):.2f}" for kind in ("resident", "anonymous"))
            per_million = 1e6 * taken / items
            row(stage, f"{taken:.1f}", f"{items / max(taken, 1e-3):,.0f}", f"{per_million:.1f}", resident, anonymous)
    total = sum(found["seconds"].values())
    most = max(found["anonymous"].values())
    row("**all**", f"**{total:.1f}**", "", f"{1e6 * total / items:.1f}", f"**{found['peak']:.2f}**", f"**{most:.2f}**")


def growth_table(sizes: list[int], out: Path) -> None:
    """Run each size in its own process; print each with the extrapolation from the first size."""
    names = ", ".join(FEW_METHODS)
    print(f"\nMethods {names}; random order. In brackets: the first row's rate or bytes an item, at this size.")
    header(
        "items", "draw, s", "read and check, s", "replay, s", "all, s", "disk, GiB", "memory at most, GiB",
        "of it anonymous, GiB",
    )  # fmt: skip
    first: dict[str, Any] = {}
    for items in sizes:
        folder = out / f"growth-{items}"
        path = folder / "measured.json"
        if not path.exists():
            command = [sys.executable, "-m", "benchmarks.scale", "--out", str(folder), "--items", str(items), "--few"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = read_json(path)
        first = first or found
        cells = [f"{items:,}"]
        for name, now in _growing(found).items():
            fixed, held = (first["anonymous"]["draw and write"], _held) if name == "anonymous" else (0.0, lambda _: 0.0)
            rate = (_growing(first)[name] - fixed - held(first)) / first["items"]
            expected = fixed + held(found) + rate * items
            # The kernel decides how much is resident beyond the anonymous part.
            cells.append(f"{now:,.1f}" if found is first or name == "peak" else f"{now:,.1f} ({expected:,.1f})")
        row(*cells)


def _held(found: dict[str, Any]) -> float:
    """GiB of both models' vectors, if they are in memory and not mapped."""
    column = found["items"] * found["dims"] * 2
    return 2 * column / GIB if column <= MAPPED_BYTES else 0.0


def _growing(found: dict[str, Any]) -> dict[str, float]:
    seconds = found["seconds"]
    read = ("read", "look for zero vectors", "ground truth", "orders", "fingerprint")
    return {
        "draw": seconds.get("draw and write", 0.0),
        "read": sum(seconds.get(name, 0.0) for name in read),
        "replay": seconds["replay"],
        "all": sum(seconds.values()),
        "disk": found["disk"],
        "peak": found["peak"],
        "anonymous": max(found["anonymous"].values()),
    }


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/scale"), help="output folder; must not exist")
    parser.add_argument("--items", type=int, default=SyntheticGallery.items)
    parser.add_argument("--methods", nargs="+", help="methods to run; default: all without training")
    parser.add_argument("--merges", nargs="+", default=["raw"])
    parser.add_argument("--few", action="store_true", help="use the methods and the order of --growth")
    parser.add_argument("--growth", type=int, nargs="+", help="numbers of items to compare")
    arguments = parser.parse_args(words)
    if arguments.methods:
        find_methods(tuple(arguments.methods))
    return arguments


def job_of(arguments: argparse.Namespace) -> ScaleJob:
    """The job's defaults with the given arguments; at most as many classes as items."""
    job = ScaleJob(out=arguments.out)
    gallery = job.gallery
    classes = min(gallery.classes, max(1, arguments.items // 9))
    gallery = replace(
        gallery, items=arguments.items, classes=classes, known_classes=min(gallery.known_classes, classes)
    )
    evaluation = replace(job.evaluation, merges=tuple(arguments.merges))
    if arguments.few:
        evaluation = replace(evaluation, methods=FEW_METHODS, orders=("random",))
    if arguments.methods:
        evaluation = replace(evaluation, methods=tuple(arguments.methods))
    return replace(job, gallery=gallery, evaluation=evaluation)


def main() -> None:
    arguments = parse()
    words = " ".join(sys.argv[1:])
    print(f"{machine()}\n\n    python -m benchmarks.scale {words}".rstrip(), flush=True)
    if arguments.growth:
        growth_table(arguments.growth, arguments.out)
        return
    if arguments.out.exists():
        sys.exit(f"error: --out {arguments.out} exists, so finished stages would not be measured; choose a new folder")
    found = measure(job_of(arguments))
    write_json(arguments.out / "measured.json", found)
    stage_table(found)


if __name__ == "__main__":
    main()
