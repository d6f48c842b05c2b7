"""What a folder in object storage costs beside one on a disk: CPU seconds for each GB, and the rate of embedding.

    python -m benchmarks.object_storage [--gigabytes 1] [--server ministack]
    python -m benchmarks.object_storage --images 100000 --model python:MODULE:FUNCTION

The server is a process of this machine without TLS, so its own CPU is told beside the client's. --images: as many JPEG
files of 96 pixels, made here, are embedded by `ray-backfill embed` to the disk and to the store, by the --model
(docs/models.md) and by a small one, of 16 pixels.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
from PIL import Image

from ray_backfill.core.copies import cache_folder
from ray_backfill.core.stages import read_json, write_whole
from ray_backfill.core.store_path import path_of
from tests.object_store import SERVERS, client_variables, new_bucket, served

# Bytes of a file: about a part of 16,384 vectors of 1,024 dimensions.
_FILE = 64 << 20
_SMALL = "python:tests.encode._models:pixels"


def server_cpu_s() -> float:
    """CPU seconds of the server, which this process has started."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(of_child.user + of_child.system for of_child in times)


def measured(what: str, work: Callable[[], object], gigabytes: float, repeats: int = 3) -> float:
    """Print and return the least client CPU seconds for each GB, with the server's of that repeat."""
    runs = []
    for _ in range(repeats):
        cpu, of_server, began = time.process_time(), server_cpu_s(), time.perf_counter()
        work()
        runs.append((time.process_time() - cpu, server_cpu_s() - of_server, time.perf_counter() - began))
    client, server, wall = (seconds / gigabytes for seconds in min(runs))
    print(f"{what}: {client:.2f} CPU s for each GB here, {server:.2f} in the server, {wall:.2f} s of wall time")
    return client


def price(folder: Path, bucket: str, gigabytes: float) -> None:
    """CPU seconds of writing and reading files on the disk and in the store."""
    content = np.random.default_rng(0).bytes(_FILE)
    names = [f"{number}.bin" for number in range(max(1, round(gigabytes * 1e9 / _FILE)))]
    total = len(names) * _FILE / 1e9
    remote = path_of(bucket) / "price"

    def write(to: Path) -> None:
        for name in names:
            write_whole(to / name, lambda temporary: temporary.write_bytes(content))

    def read(of: Path, forget: bool) -> None:
        if forget:
            shutil.rmtree(cache_folder())
        for name in names:
            with (of / name).open("rb") as file:
                assert len(file.read()) == _FILE

    on_disk = measured("write to the disk, with fsync", lambda: write(folder / "price"), total)
    in_store = measured("write to the store", lambda: write(remote), total)
    measured("read from the disk", lambda: read(folder / "price", False), total)
    measured("read from the store", lambda: read(remote, True), total)
    measured("read its local copy", lambda: read(remote, False), total)
    print(f"writing costs {in_store / on_disk:.1f} times the disk's CPU")


def stream(folder: Path, bucket: str, images: int, model: str) -> None:
    """Rates of embedding the same images to the disk and to the store."""
    source, random = folder / "images", np.random.default_rng(1)
    for number in range(images):
        place = source / f"class-{number % 100:02d}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(place, quality=90)
    rates = {}
    for name, out in (("disk", str(folder / "run")), ("store", f"{bucket}/run")):
        words = ["embed", "--old", _SMALL, "--new", model, "--images", str(source), "--out", out]
        of_server, began = server_cpu_s(), time.perf_counter()
        subprocess.run([sys.executable, "-m", "ray_backfill", *words], check=True, stdout=subprocess.DEVNULL)
        seconds, server = time.perf_counter() - began, server_cpu_s() - of_server
        facts = read_json(path_of(out) / "embeddings" / "manifest.json")["embedding"]
        rates[name] = facts["items_per_s"]
        print(
            f"{name}: {rates[name]:.1f} images per second, {seconds:.0f} s with start, {server:.1f} CPU s of the server"
        )
    print(f"to the store at {rates['store'] / rates['disk']:.3f} of the disk's rate")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--server", choices=SERVERS, default="ministack")
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--model", default="")
    given = parser.parse_args()
    with TemporaryDirectory() as scratch, served(given.server, Path(scratch)) as endpoint:
        folder = Path(scratch)
        os.environ.update(client_variables(endpoint, folder / "copies"))
        bucket = f"s3://{new_bucket(endpoint)}"
        if given.images:
            stream(folder, bucket, given.images, given.model)
        else:
            price(folder, bucket, given.gigabytes)


if __name__ == "__main__":
    main()
