"""Landmarks streamed through both backbones into Parquet with Ray Data: speed, memory, and resuming after kills.

python -m benchmarks.stream --images 1000000 --out runs/stream --figures docs/results   # about 13 minutes
python -m benchmarks.stream --images 30000 --out runs/stream-small                      # smoke test

The networks are those of the landmarks recipe with untrained weights, as speed does not depend on weights. Stores of an
earlier run in --out are deleted. Linux only.
"""

import argparse
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.processes import Family, watch
from benchmarks.serving import machine
from benchmarks.stream_rates import BATCH, Streamed, bare_rates, data_of, make_backbones
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import is_finished, read_json, write_json
from ray_backfill.recipes import load_recipe


def embed(arguments: argparse.Namespace) -> None:
    """The work of the watched process: the embedding stage as in every job."""
    from ray_backfill.recipes import EmbedSettings
    from ray_backfill.recipes.run.embed import EmbedRequest, embed_stage
    from ray_backfill.workers.settings import EmbedActors

    models = make_backbones(arguments.out)
    actors = EmbedActors(arguments.actors, arguments.cpus)
    settings = EmbedSettings(arguments.part_rows, BATCH, views=1)
    recipe = load_recipe("landmarks")
    classes, data = list(range(recipe.images.landmarks)), data_of(arguments.images)
    embed_stage(arguments.store, EmbedRequest(data, models, classes, recipe.new.training, settings), actors)


def _start(arguments: argparse.Namespace, store: Path) -> Family:
    words = [sys.executable, "-m", "benchmarks.stream", "--store", str(store), "--out", str(arguments.out)]
    for name in ("images", "actors", "cpus", "part_rows"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    return Family(words, arguments.out / f"{store.name}.log")


def stored(store: Path) -> int:
    """Number of finished parts of the gallery times their size (the last part may be smaller)."""
    return len(list((store / "gallery.parquet").glob("part-*.parquet")))


def stream(arguments: argparse.Namespace, store: Path) -> Streamed:
    """Embed everything into ``store`` in a separate, watched process."""
    family = _start(arguments, store)
    try:
        samples = watch(family, arguments.every_s, lambda: stored(store) * arguments.part_rows, lambda _: False)
    finally:
        family.kill()
    _check(store, arguments)
    files = (store / "gallery.parquet").glob("*.parquet")
    parts = [(file.stat().st_mtime - family.started_at, pq.read_metadata(file).num_rows) for file in files]
    return Streamed(samples, sorted(parts))


def stream_killed(arguments: argparse.Namespace, store: Path) -> list[str]:
    """The same, killed at random moments and resumed; returns a table row per kill."""
    rng = np.random.default_rng(arguments.seed)
    parts = -(-arguments.images // arguments.part_rows)
    found = []
    for moment in np.sort(rng.uniform(0.05, 0.95, arguments.kills)):
        family = _start(arguments, store)
        watch(family, 60.0, lambda: stored(store), lambda done, until=moment * parts: done >= until)  # type: ignore[misc]
        time.sleep(float(rng.uniform(0, arguments.part_rows / 1500)))  # about the time of a part
        seconds, number = time.perf_counter() - family.started, family.kill()
        halves = len(list(store.glob("*/.*.tmp")))
        found.append(f"| {seconds:.1f} s | {number} | {stored(store)} of {parts} | {halves} |")
    stream(arguments, store)
    return found


def _check(store: Path, arguments: argparse.Namespace) -> None:
    if not is_finished(store):
        log = (arguments.out / f"{store.name}.log").read_text(errors="replace")
        raise InputError(f"the stream into {store} has failed:\n{log[-2000:]}")
    rows = sum(pq.read_metadata(file).num_rows for file in (store / "gallery.parquet").glob("*.parquet"))
    if rows != arguments.images:
        raise InputError(f"{store} has {rows} rows of {arguments.images}")


def differences(one: Path, other: Path) -> tuple[int, int, list[str]]:
    """Number and bytes of the first store's Parquet files, and the names of files that differ in any byte."""
    files = {str(path.relative_to(one)): path for path in sorted(one.rglob("*.parquet")) if path.is_file()}
    others = {str(path.relative_to(other)): path for path in sorted(other.rglob("*.parquet")) if path.is_file()}
    differ = [
        name
        for name in files.keys() | others.keys()
        if name not in files or name not in others or files[name].read_bytes() != others[name].read_bytes()
    ]
    return len(files), sum(path.stat().st_size for path in files.values()), sorted(differ)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000, help="number of gallery images")
    parser.add_argument("--out", type=Path, default=Path("runs/stream"), help="folder for networks, stores and logs")
    parser.add_argument("--kills", type=int, default=3, help="number of kills; 0: no second store")
    parser.add_argument("--seed", type=int, default=0, help="random seed for the moments of the kills")
    parser.add_argument("--actors", type=int, default=2, help="number of embedding actors")
    parser.add_argument("--cpus", type=float, default=1.0, help="CPUs per actor")
    parser.add_argument("--part-rows", type=int, default=8192, help="images per part")
    parser.add_argument("--bare-s", type=float, default=15.0, help="seconds of each measurement of the models alone")
    parser.add_argument(
        "--every-s", type=float, default=5.0, help="seconds between two memory samples; each takes 70 ms"
    )
    parser.add_argument("--figures", type=Path, help="folder for the figure")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)  # only embed into this folder
    arguments = parser.parse_args(words)
    arguments.out = arguments.out.absolute()
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.store:
        embed(arguments)
        return
    from benchmarks.stream_report import draw, print_report  # imports matplotlib, which the watched process must not

    print(f"{machine()}\n\n    python -m benchmarks.stream {' '.join(sys.argv[1:])}".rstrip())
    since = time.perf_counter()
    first, second = arguments.out / "undisturbed", arguments.out / "killed"
    for store in (first, second):
        shutil.rmtree(store, ignore_errors=True)
    try:
        models, data = make_backbones(arguments.out), data_of(arguments.images)
        before = bare_rates(models, data, arguments.actors, arguments.bare_s)
        streamed = stream(arguments, first)
        write_json(arguments.out / "samples.json", asdict(streamed))
        after = bare_rates(models, data, arguments.actors, arguments.bare_s)
        failed = print_report(arguments, before, after, streamed, read_json(first / "manifest.json")["feeding"])
        if arguments.figures:
            draw(arguments, streamed, before, arguments.figures / "stream.png")
        if arguments.kills:
            rows = stream_killed(arguments, second)
            files, size, differ = differences(first, second)
            print("\n| killed after | processes killed | parts there | halves of parts |\n|---|---|---|---|")
            print("\n".join(rows))
            same = "none differs" if not differ else f"{len(differ)} differ: {', '.join(differ[:3])}"
            print(
                f"\n{files} Parquet files of {size / 1e6:,.0f} MB compared byte for byte with the undisturbed: {same}"
            )
            failed += [f"{name} differs" for name in differ]
    except InputError as error:
        sys.exit(f"error: {error}")
    print(f"\n{(time.perf_counter() - since) / 60:.1f} minutes")
    if failed:
        sys.exit("does not hold:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
