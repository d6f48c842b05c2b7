"""What an import from Parquet costs beside plain pyarrow, which reads the same columns and writes them again.

    python -m benchmarks.importing [--rows 1000000] [--dim 128] [--repeats 3]

The import also checks ids and vectors, writes checksums of pages and parts, and holds a batch of rows at a time. Its
memory is that of a process that does nothing else, for a quarter of the rows and for all; mapped files are not counted.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.data.importing import ColumnNames, import_split
from ray_backfill.data.write import vector_column

_ROWS = 65_536


def make(path: Path, rows: int, dim: int) -> None:
    """A source of two models with text ids."""
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, rows, _ROWS):
        n = min(_ROWS, rows - first)
        vectors = rng.standard_normal((2, n, dim), np.float32)
        ids = [f"item {first + i}" for i in range(n)]
        table = pa.table({"id": ids, "old": vector_column(vectors[0]), "new": vector_column(vectors[1])})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=["id"])
        writer.write_table(table)
    assert writer is not None
    writer.close()


def plain(source: Path, copy: Path) -> None:
    """Read and write by pyarrow, one batch at a time. No dictionary is tried for vectors, which never repeat."""
    with (
        pq.ParquetFile(source) as opened,
        pq.ParquetWriter(copy, opened.schema_arrow, use_dictionary=["id"]) as writer,
    ):
        for batch in opened.iter_batches(_ROWS):
            writer.write_batch(batch)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def import_all(source: Path, made: Path) -> None:
    shutil.rmtree(made, ignore_errors=True)
    import_split(made, [str(source)], ColumnNames(), False, False)


def peak(source: Path, made: Path) -> float:
    """Import; the most memory of this process, in MB, without pages of files, which the kernel can drop at any time."""
    process, found, ended = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            memory = process.memory_info()
            found.append(memory.rss - memory.shared)

    watcher = threading.Thread(target=watch)
    watcher.start()
    import_all(source, made)
    ended.set()
    watcher.join()
    return max(found) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, copy, made = (Path(folder) / name for name in ("source.parquet", "copy.parquet", "gallery.parquet"))
        make(source, options.rows, options.dim)
        size = source.stat().st_size / 2**20
        print(f"{options.rows:,} rows, 2 x {options.dim} dimensions, {size:,.0f} MB")
        times: dict[str, list[float]] = {"pyarrow": [], "import": []}
        for _ in range(options.repeats):
            times["pyarrow"].append(seconds(lambda: plain(source, copy)))
            times["import"].append(seconds(lambda: import_all(source, made)))
        best = {name: min(found) for name, found in times.items()}
        for name, found in best.items():
            print(f"{name:8} {found:6.1f} s {size / found:8,.0f} MB/s {best['pyarrow'] / found:6.2f} of pyarrow's rate")
        for rows in (options.rows // 4, options.rows):
            make(source, rows, options.dim)
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                print(f"peak memory, {rows:,} rows: {alone.submit(peak, source, made).result():,.0f} MB")


if __name__ == "__main__":
    main()
