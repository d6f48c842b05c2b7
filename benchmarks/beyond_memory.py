"""Benchmark of a gallery that is streamed from Parquet: prints a Markdown table of ratios, measured in one run.

python -m benchmarks.beyond_memory                      # 2 million items, 0.5 GB on disk
python -m benchmarks.beyond_memory --items 100_000_000 --runs 1 --no-rest  # 26 GB on disk
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import ray_backfill as rb
from benchmarks.replay_tools import Table, peak_memory_mb
from ray_backfill.data.write import vector_column
from ray_backfill.engine.replay import usable_cpus

D, CLASSES, RIGHT, NAMES = 64, 1000, 20, ("old", "new")
_ROWS = 1 << 18


def places(items: int) -> NDArray[np.int64]:
    """(CLASSES, RIGHT) positions of each class's items, all over the gallery."""
    stride = items // RIGHT
    return np.arange(CLASSES)[:, None] * (stride // CLASSES) + np.arange(RIGHT) * stride


def write_gallery(to: Path, items: int, centres: dict[str, NDArray[np.float32]]) -> None:
    """Random vectors, of which a few are near the centre of a class."""
    rng = np.random.default_rng(1)
    noise = {name: rng.normal(size=(2 * _ROWS, D)).astype(np.float32) for name in NAMES}
    label = np.full(items, -1, np.int16)
    label[places(items).ravel()] = np.repeat(np.arange(CLASSES), RIGHT)
    schema = pa.schema([(name, vector_column(np.empty((0, D), np.float16)).type) for name in NAMES])
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    with pq.ParquetWriter(to, schema, **options) as writer:
        for first in range(0, items, _ROWS):
            own, columns = label[first : first + _ROWS], []
            for name in NAMES:
                start = int(rng.integers(0, _ROWS))
                vectors = noise[name][start : start + len(own)] * np.float32(rng.uniform(0.9, 1.1))
                vectors[own >= 0] += 1.5 * centres[name][own[own >= 0]]
                columns.append(vector_column(vectors.astype(np.float16)))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=_ROWS)


def cold(path: Path, work: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest run, before each of which the file is dropped from the page cache."""
    best = np.inf
    for _ in range(runs):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return float(best)


def products(queries: int, items: int) -> None:
    """Both systems' float32 products of all queries and items, a share of the queries for each thread."""
    threads, tile = usable_cpus(), np.ones((512, D), np.float32)

    def multiply(rows: int) -> None:
        left, out = np.ones((rows, D), np.float32), np.empty((rows, len(tile)), np.float32)
        for _ in range(2 * items // len(tile)):
            np.matmul(left, tile.T, out=out)

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, [len(rows) for rows in np.array_split(np.arange(queries), threads)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=CLASSES)
    parser.add_argument("--runs", type=int, default=3, help="the fastest one counts")
    parser.add_argument("--folder", type=Path, help="where the gallery is written; by default for temporary files")
    parser.add_argument(
        "--rest", action=argparse.BooleanOptionalAction, default=True, help="also other metrics, orders and points"
    )
    given = parser.parse_args()
    if given.items < CLASSES * RIGHT or not 1 <= given.queries <= CLASSES:
        parser.error(f"at least {CLASSES * RIGHT:,} items, and 1 to {CLASSES:,} queries")
    rng = np.random.default_rng(0)
    centres = {name: rng.normal(size=(CLASSES, D)).astype(np.float32) for name in NAMES}
    noise = rng.normal(size=(2, given.queries, D)).astype(np.float32)
    queries = [centres[name][: given.queries] + each for name, each in zip(NAMES, noise, strict=True)]
    table = Table()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        gallery = Path(folder) / "gallery.parquet"

        def replay(points: int = 11, metrics: tuple[str, ...] = ("mAP@100",), orders: int = 1) -> None:
            items = pq.read_metadata(gallery).num_rows
            truth = rb.GroundTruth.from_positives(list(places(items)[: given.queries]), n_gallery=items)
            permutations = {str(seed): np.random.default_rng(seed).permutation(items) for seed in range(orders)}
            parts = rb.stream_vectors(gallery, *NAMES)
            rb.replay_streamed(queries, parts, truth, permutations, points, metrics)

        write_gallery(gallery, min(given.items, 100_000), centres)
        replay()  # compiles
        write_gallery(gallery, given.items, centres)
        size = f"{given.queries:,} x {given.items:,} x {D}, float16"
        table.note(f"{size}: file", f"{gallery.stat().st_size / 1e9:.2f} GB")
        read = cold(gallery, lambda: sum(len(part[0]) for part in rb.stream_vectors(gallery, *NAMES)), given.runs)
        table.note("reading both columns, one thread", f"{read:.1f} s")
        bare = cold(gallery, partial(products, given.queries, given.items), given.runs)
        table.note(f"bare products of both systems, threads: {usable_cpus()}", f"{bare:.1f} s")
        taken: list[float] = []
        memory = peak_memory_mb(lambda: taken.append(cold(gallery, replay, given.runs)))
        table.note("replay, mAP@100, 11 points", f"{taken[0]:.1f} s")
        table.at_least("the slower of reading and products / replay", max(read, bare) / taken[0], 0.7)
        shared = (read / usable_cpus() + bare) / taken[0]
        table.note("(reading + products, shared by all cores) / replay", f"{shared:.2f}x")
        table.at_most("anonymous memory above the inputs", memory, 4096, " MB")
        if given.rest:
            metrics = ("mAP@100", "CMC@1", "nDCG@10", "MRR@10")
            four, two = cold(gallery, lambda: replay(metrics=metrics), given.runs), lambda: replay(orders=2)
            table.at_most("four metrics / one", four / taken[0], 1.03)
            table.at_most("two orders / one", cold(gallery, two, given.runs) / taken[0], 1.03)
            table.note("101 points / 11", f"{cold(gallery, lambda: replay(101), given.runs) / taken[0]:.2f}x")


if __name__ == "__main__":
    main()
