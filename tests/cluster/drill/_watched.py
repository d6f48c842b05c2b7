"""A drill that only writes metrics, run by test_watch as a process of its own: one actor that drives, two that send.

Writes until a file ``stop`` appears in the folder of its argument, prints what it counted as JSON, and stays until its
input is closed.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ray

from ray_backfill.drill.ray import watch
from ray_backfill.workers.watch import BROKEN, EMBEDDED, EPOCH, LOSS, TRAINING_RATE, Watch, write_targets


def beats(folder: Path) -> Iterator[int]:
    """0, 1, 2, ... every 20 ms until stopped."""
    beat = 0
    while not (folder / "stop").exists():
        yield beat
        beat += 1
        time.sleep(0.02)


def drill(name: str) -> Watch:
    """The writer of a drill's metrics."""
    return Watch(watch.METRICS, {"drill": name})


@ray.remote(num_cpus=0)
class Driver:
    """Sets the gauges once, and counts items until stopped."""

    def __init__(self) -> None:
        self.watch, self.other = drill("scraped"), drill("other")

    def run(self, folder: Path) -> int:
        self.set_other()
        self.watch.set(watch.PROGRESS, 0.25)
        for side, items, n_bytes in (("old", 750, 750 * 128), ("new", 250, 250 * 256)):
            self.watch.set(watch.PARTITION_ITEMS, items, side)
            self.watch.set(watch.PARTITION_BYTES, n_bytes, side)
        self.watch.set(watch.RATE, 120.5)
        self.watch.set(watch.THROTTLE, 700)
        self.watch.set(watch.QUALITY, 0.41, "mAP")
        self.watch.set(watch.QUALITY, 0.5, "CMC@1")
        for kind in ("actor died", "write failed", "actor died"):
            self.watch.count(watch.INCIDENTS, 1, kind)
        items = 0
        for _ in beats(folder):
            self.watch.count(watch.ITEMS, 10)
            items += 10
        return items

    def set_other(self) -> None:
        """Values of another drill, which the first drill's panels must not show."""
        self.other.set(watch.PROGRESS, 0.99)
        self.other.set(watch.PARTITION_ITEMS, 10_000, "old")
        self.other.set(watch.THROTTLE, 500)
        self.other.set(watch.THROTTLE, math.inf)
        self.other.count(watch.ITEMS, 5000)
        self.other.count(watch.ITEMS, 0)


@ray.remote(num_cpus=0)
class Sender:
    """Ten requests of two queries are answered per unanswered one; one in five is sent twice."""

    def __init__(self) -> None:
        self.watch = drill("scraped")

    def run(self, folder: Path) -> int:
        retries = 0
        for beat in beats(folder):
            self.watch.observe(watch.LATENCY, 0.42)
            self.watch.count(watch.QUERIES, 2, "answered")
            if beat % 5 == 0:
                self.watch.count(watch.RETRIES, 1)
                retries += 1
            if beat % 10 == 0:
                self.watch.observe(watch.LATENCY, 2.0)
                self.watch.count(watch.QUERIES, 1, "unanswered")
        return retries


@ray.remote(num_cpus=0)
class Run:
    """A run that has trained two backbones and embeds."""

    def __init__(self) -> None:
        from ray_backfill.core.job import say_job  # that of this process: a global of this file is sent as a copy

        say_job(out="/runs/scraped")
        self.watch = Watch()

    def run(self, folder: Path) -> int:
        for training, epoch in (("old", 3), ("new", 7)):
            self.watch.set(EPOCH, epoch, training)
            self.watch.set(LOSS, -epoch / 4, training)
            self.watch.set(TRAINING_RATE, 100 * epoch, training)
        self.watch.count(BROKEN, 2)
        items = 0
        for _ in beats(folder):
            self.watch.count(EMBEDDED, 5)
            items += 5
        return items


def main() -> None:
    folder = Path(sys.argv[1])
    for attempt in range(5):
        try:
            ray.init(log_to_driver=False)
            break
        except (ConnectionError, RuntimeError):  # Ray gives its head 30 s, which a busy machine exceeds
            if attempt == 4:
                raise
            ray.shutdown()
    actors = [Driver.remote(), Run.remote(), Sender.remote(), Sender.remote()]  # type: ignore[attr-defined]
    items, embedded, *retries = ray.get([actor.run.remote(folder) for actor in actors])
    write_targets(folder / "targets.json")
    print(json.dumps({"items": items, "embedded": embedded, "retries": sum(retries)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
