"""Tools of the replay benchmark: its data, clock, memory meter and table."""

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ray_backfill as rb

D = 128


@dataclass(frozen=True)
class Case:
    """Embeddings of clustered classes by two models; the new model's clusters are tighter."""

    pair: rb.UpgradePair
    truth: rb.GroundTruth
    query_labels: NDArray[np.int64]
    labels: NDArray[np.int64]


def make_case(
    n_queries: int, n_gallery: int, per_class: int, itself: bool = False, dims: int = D, noise: float = 1.5
) -> Case:
    """Make random data. itself: the gallery items are the queries, each excluded from its own result.

    noise: of the old model, in each dimension; that of the centres is 1. The new model has two thirds of it.
    """
    rng = np.random.default_rng(0)
    n_classes = max(2, n_gallery // per_class)
    labels = rng.permutation(np.arange(n_gallery) % n_classes)
    query_labels = labels if itself else rng.integers(0, n_classes, n_queries)
    systems = []
    for spread in (noise, noise / 1.5):
        centres = rng.normal(size=(n_classes, dims)).astype(np.float32)
        gallery, query = (
            centres[y] + np.float32(spread) * rng.normal(size=(len(y), dims)).astype(np.float32)
            for y in (labels, query_labels)
        )
        systems.append(rb.RetrievalSystem(gallery if itself else query, gallery))
    truth = rb.GroundTruth.from_labels(query_labels, labels, exclude_self=itself)
    backward, forward = systems
    return Case(rb.UpgradePair(backward, forward), truth, query_labels, labels)


def seconds(work: Callable[[], object], runs: int = 3) -> float:
    """Return the seconds of the fastest of several runs."""
    best = np.inf
    for _ in range(runs):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return float(best)


def products(pair: rb.UpgradePair, runs: int = 2) -> float:
    """Return the seconds of the bare float32 matrix products of both systems, with the fastest of three tile shapes."""

    def multiply(rows: int, columns: int) -> None:
        out = np.empty((rows, columns), np.float32)
        for system in (pair.backward, pair.forward):
            for i in range(0, pair.n_queries, rows):
                queries = system.query[i : i + rows]
                for j in range(0, pair.n_gallery, columns):
                    items = system.gallery[j : j + columns]
                    np.matmul(queries, items.T, out=out[: len(queries), : len(items)])

    return min(seconds(partial(multiply, *shape), runs) for shape in [(1024, 8192), (1024, 2048), (4096, 2048)])


def peak_memory_mb(work: Callable[[], object]) -> float:
    """Return the peak memory of ``work`` above the memory before it, sampled every 5 ms.

    Pages of mapped files are not counted, because the system can reclaim them at any time.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that reused free memory does not hide new allocations
    before, samples, done = _anonymous_mb(), [0.0], threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            samples.append(_anonymous_mb())

    thread = threading.Thread(target=sample)
    thread.start()
    work()
    done.set()
    thread.join()
    return max(samples) - before


def _anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


class Table:
    """A Markdown table, printed row by row: what was measured, its value, its limit and whether the limit holds."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        print("| what | measured | limit | |\n|---|---|---|---|", flush=True)

    def note(self, what: str, measured: str) -> None:
        print(f"| {what} | {measured} | | |", flush=True)

    def at_most(self, what: str, value: float, limit: float, unit: str = "x") -> None:
        self._row(what, value, f"at most {limit:g}{unit}", value <= limit, unit)

    def at_least(self, what: str, value: float, limit: float) -> None:
        self._row(what, value, f"at least {limit:g}x", value >= limit, "x")

    def _row(self, what: str, value: float, limit: str, holds: bool, unit: str) -> None:
        self.failed += [] if holds else [what]
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        print(f"| {what} | {shown}{unit} | {limit} | {'holds' if holds else '**does not hold**'} |", flush=True)
