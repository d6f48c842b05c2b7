"""What it costs to have other processes decode: photographs of 500 x 375 to 224 x 224, by own and lent CPUs.

    python -m benchmarks.lending [--images 480] [--runs 3]

Own CPUs are threads of this process, lent ones Ray tasks on this machine. Each row is the best of the runs, which take
turns. CPU time here is what is left of decoding for the process with the GPU: its own share, and receiving the rest.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.decoding import SIDE, photographs
from benchmarks.galleries import header, row
from ray_backfill.images.datasets import image_folder
from ray_backfill.images.reading import DecodeTimes, read_ahead
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.session import session

WAYS = ((1, 0), (2, 0), (1, 1), (0, 1), (0, 2))


@dataclass(frozen=True)
class Run:
    """Of one image: seconds by the clock, CPU seconds of this process, and round trip of a lent one."""

    wall_s: float
    here_s: float
    lent_s: float


def measure(settings: image_folder.Settings, own: int, lent: int) -> Run:
    """Read the whole gallery in batches of 128."""
    source, times = source_for(settings, own, lent), DecodeTimes()
    rows = np.arange(len(source.items("gallery")))
    batches = [rows[i : i + 128] for i in range(0, len(rows), 128)]
    since, cpu = time.perf_counter(), time.process_time()
    for _ in read_ahead(source, "gallery", batches, own + lent, times):
        pass
    wall, here = time.perf_counter() - since, time.process_time() - cpu
    return Run(wall / len(rows), here / len(rows), times.lent_s / max(times.lent, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory() as folder, session():
        (Path(folder) / "a").mkdir()
        (Path(folder) / "b").mkdir()
        for i, data in enumerate(photographs((500, 375), given.images)):
            Path(folder, "ab"[i % 2], f"{i}.jpg").write_bytes(data)
        settings = image_folder.Settings(root=folder, image_size=SIDE)
        measure(settings, 0, 2)  # starts the processes
        runs = [[measure(settings, *way) for way in WAYS] for _ in range(given.runs)]
    header("own CPUs", "lent CPUs", "img/s", "CPU ms an image here", "ms a lent image, there and back")
    for way, of_way in zip(WAYS, zip(*runs, strict=True), strict=True):
        best = min(of_way, key=lambda run: run.wall_s)
        back = f"{1e3 * best.lent_s:.2f}" if way[1] else ""
        row(*map(str, way), f"{1 / best.wall_s:,.0f}", f"{1e3 * best.here_s:.2f}", back)


if __name__ == "__main__":
    main()
