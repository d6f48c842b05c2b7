"""How deep pgvector searches the old items that are left: what LIMIT 10 returns, a Markdown table.

python -m benchmarks.partition_depth                # 10,000 items: 3 minutes
python -m benchmarks.partition_depth --items 500    # a smoke test

An HNSW index with pgvector's defaults; the backfill is in random order. Needs the extra dev, which brings a PostgreSQL.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.galleries import D, synthetic
from ray_backfill.engine.distances import normalise
from tests.data.sources.stores import postgres

K = 10
SHARES = (0.0, 0.5, 0.9, 0.99)
ITERATIVE = "SET LOCAL hnsw.iterative_scan = strict_order"
# Way -> its settings, and the index that it does without: of the two, PostgreSQL would choose one.
WAYS = {
    "the index that serves, defaults": ("", "items_backward"),
    "the same, iterative scan": (ITERATIVE, "items_backward"),
    "an index of what is left, iterative scan": (ITERATIVE, "items_embedding"),
}
SEARCH = "SELECT id FROM items WHERE forward IS NULL ORDER BY embedding <=> %s::vector LIMIT %s"


def search(connection: Any, queries: Sequence[str], settings: str, without: str) -> tuple[list[list[int]], float]:
    """The ids that each query finds, and the milliseconds of a query. Leaves the database as it was."""
    with connection.transaction(force_rollback=True):
        connection.execute(
            f"{settings}; DROP INDEX {without}; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off"
        )
        start = time.perf_counter()
        found = [[row[0] for row in connection.execute(SEARCH, [query, K])] for query in queries]
        return found, 1000 * (time.perf_counter() - start) / len(queries)


def print_rows(connection: Any, old: NDArray[np.float32], new: NDArray[np.float32], asked: NDArray[np.float32]) -> None:
    """Fill a table, backfill it, and print a row for each share and way."""
    rank = np.random.default_rng(1).permutation(len(old))
    similar = normalise(asked) @ normalise(old).T
    queries = [str(vector) for vector in asked.tolist()]
    connection.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, embedding vector({D}), forward vector({D}))")
    with connection.cursor().copy("COPY items (id, embedding) FROM STDIN") as copy:
        for item, vector in enumerate(old.tolist()):
            copy.write_row((item, str(vector)))
    kind = "ON items USING hnsw (embedding vector_cosine_ops)"
    connection.execute(f"CREATE INDEX items_embedding {kind}")
    connection.execute(f"CREATE INDEX items_backward {kind} WHERE forward IS NULL")
    for before, share in zip((0.0, *SHARES), SHARES, strict=False):
        moved = np.flatnonzero((rank >= before * len(old)) & (rank < share * len(old))).tolist()
        with connection.transaction():
            update = "UPDATE items SET forward = %s WHERE id = %s"
            connection.cursor().executemany(update, [(str(new[item].tolist()), item) for item in moved])
        connection.execute("VACUUM ANALYZE items")
        left = np.flatnonzero(rank >= share * len(old))
        nearest = left[np.argsort(-similar[:, left], axis=1)[:, :K]].tolist()
        for way, (settings, without) in WAYS.items():
            found, ms = search(connection, queries, settings or "SELECT 1", without)
            right = sum(len(set(ids) & set(best)) for ids, best in zip(found, nearest, strict=True))
            recall = right / sum(len(best) for best in nearest)
            mean = np.mean([len(ids) for ids in found])
            print(f"| {100 * share:.0f} % | {way} | {mean:.1f} | {recall:.2f} | {ms:.1f} |", flush=True)


def main() -> None:
    import psycopg

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    case = synthetic(parser.parse_args().items, 100, 1000)
    vectors = (case.embedded.gallery["old"], case.embedded.gallery["new"], case.embedded.query["old"])
    print(f"\n{case.name}\n")
    print(f"| backfilled | search of the old items | found, of {K} | recall@{K} | ms |\n|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres(Path(folder)) as address,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        connection.execute("CREATE EXTENSION vector")
        print_rows(connection, *(of.astype(np.float32) for of in vectors))


if __name__ == "__main__":
    main()
