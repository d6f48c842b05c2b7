"""How well builds of small indexes in pgvector predict a large one: signed errors, and the cliff of memory.

    python -m benchmarks.index_builds                    # 5,000 to 40,000 items of 64 dimensions: up to 8 minutes
    python -m benchmarks.index_builds --sizes 200 400 800 1600 --dimensions 8    # a smoke test

HNSW and IVFFlat are built at four sizes, and the law of ``ray_backfill.plan.rates.build_seconds`` is fitted on the
first three. Then HNSW with so little memory that no graph fits, fitted on the first two of three sizes: its error, and
what the law of builds that fit would have said. Last, bytes of an item in a graph, as PostgreSQL says when it is full.
Vectors are Gaussian. Needs the extra dev, which brings a PostgreSQL.
"""

import argparse
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import psycopg

from ray_backfill.plan.builds import store_table
from ray_backfill.plan.rates import GRAPH_BYTES, Build, build_seconds
from tests.data.sources.stores import postgres

ROOM, LEAST = "2GB", "1MB"


def built(address: str, kind: str, sizes: Sequence[int], dimensions: int, memory: str) -> list[Build]:
    """Builds of these sizes, in their order, in one table."""
    vectors = np.random.default_rng(0).normal(size=(max(sizes), dimensions)).astype(np.float32)
    with store_table(address, dimensions) as table:
        limit, builds = table.set_memory(memory), list[Build]()
        for items in sizes:
            table.insert(vectors[table.rows : items])
            builds.append(Build(f"pgvector-{kind}", dimensions, items, table.build(kind), limit))
            print(f"built {kind} of {items:,} items with {memory}: {builds[-1].seconds:.2f} s", flush=True)
    return builds


def row(what: str, builds: Sequence[Build], largest: Build) -> str:
    """A row of the table: predicted from builds, and measured."""
    low, middle, high = build_seconds([*builds], largest.kind, largest.dimensions, largest.items)
    sizes = ", ".join(f"{build.items:,}" for build in builds)
    interval = "unknown" if low != low else f"{low:,.1f} to {high:,.1f}"
    error = f"{100 * (middle / largest.seconds - 1):+.0f} %"
    return f"| {what} | {sizes} | {largest.items:,} | {middle:,.1f} | {interval} | {largest.seconds:,.1f} | {error} |"


def bytes_of_item(address: str, dimensions: int, items: int) -> float:
    """Memory of a build, divided by the items after which PostgreSQL says that their graph is full; nan: it fits."""
    said = list[str]()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        vectors = np.random.default_rng(0).normal(size=(items, dimensions)).astype(np.float32)
        connection.execute(f"CREATE TEMPORARY TABLE full_graph (vector vector({dimensions}))")
        connection.cursor().executemany("INSERT INTO full_graph VALUES (%s)", [(str(v.tolist()),) for v in vectors])
        connection.execute(f"SET maintenance_work_mem = '{LEAST}'")
        connection.execute("CREATE INDEX ON full_graph USING hnsw (vector vector_cosine_ops)")
    full = [int(number[1]) for line in said if (number := re.search(r"after (\d+) tuples", line))]
    return (1 << 20) / full[0] if full else nan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs=4, default=[5_000, 10_000, 20_000, 40_000])
    parser.add_argument("--dimensions", type=int, default=64)
    given = parser.parse_args()
    least = (1 << 20) // (4 * given.dimensions + GRAPH_BYTES) + 1  # items that do not fit
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        hnsw, lists = (built(address, kind, given.sizes, given.dimensions, ROOM) for kind in ("hnsw", "ivfflat"))
        sizes = [max(items, 2 * least * items // given.sizes[0]) for items in given.sizes[:3]]
        full = built(address, "hnsw", sizes, given.dimensions, LEAST)
        measured = [(d, bytes_of_item(address, d, 2 * ((1 << 20) // (4 * d + GRAPH_BYTES)))) for d in (8, 64, 384)]
    print("\n| index | fitted on | predicted for | seconds | 95 % interval | measured | error |")
    print("|---|---|---|---|---|---|---|")
    print(row("HNSW", hnsw[:3], hnsw[3]))
    print(row("IVFFlat", lists[:3], lists[3]))
    print(row(f"HNSW, {LEAST} of memory", full[:2], full[2]))
    print(row(f"HNSW, {LEAST}, by builds that fit", hnsw[:3], replace(full[2], memory_bytes=nan)))
    print("\n| dimensions | bytes of an item in a graph, measured | by the formula |\n|---|---|---|")
    for dimensions, size in measured:
        print(f"| {dimensions} | {size:,.0f} | {4 * dimensions + GRAPH_BYTES:,} |")


if __name__ == "__main__":
    main()
