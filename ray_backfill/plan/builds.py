"""How long indexes take to build, and how many queries they answer: FAISS, and pgvector in a table of a session."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from math import isqrt, nan
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.progress import task
from ray_backfill.data.sources import client_of
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.plan.rates import Build, Search

_FIRST_ITEMS, _MOST_BYTES = 1_000, 1 << 30
_NEAREST, _NOISE = 10, 0.3
# Least memory that PostgreSQL takes, where a graph of this many items has no room.
_LEAST_MEMORY, _NO_ROOM_FOR = "1MB", 2_000
# The next size, which is twice as large, takes at most so many times as long, or it is not begun.
_GROWTH = 2.5
Vectors = NDArray[np.float32]
Ask = Callable[[Vectors], object]


class Measured(NamedTuple):
    """What was measured of indexes."""

    builds: list[Build]
    searches: list[Search]


def measure_faiss(vectors: Vectors, seconds: float) -> Measured:
    """Build HNSW and IVF indexes of doubling sizes for so many seconds each, and search the largest as long.

    vectors: (N, d) embeddings. Larger indexes hold them and noisy copies. Nothing is measured without FAISS.
    """
    measured = Measured([], [])
    for kind in ("hnsw", "ivf") if not why_not_installed("faiss") else ():

        def build(items: int, kind: str = kind) -> tuple[float, Ask]:
            rows, lists = enlarged(vectors, items), 4 * isqrt(items)
            settings = IndexSettings("HNSW32", 64) if kind == "hnsw" else IndexSettings(f"IVF{lists},Flat", 16)
            began = perf_counter()
            index = make_partition(settings, "cosine", rows.shape[1], rows if kind == "ivf" else None)
            index = index.with_rows(rows, np.arange(items))
            return perf_counter() - began, lambda query: index.search(query[None], _NEAREST)

        _measure(measured, kind, vectors, seconds, build)
    return measured


def check_store(address: str, dimensions: int, memory: str) -> None:
    """Raise InputError unless pgvector can build both indexes over vectors of these dimensions. It leaves nothing."""
    with store_table(address, dimensions) as table:
        table.set_memory(memory)
        table.insert(np.random.default_rng(0).normal(size=(2, dimensions)).astype(np.float32))
        for kind in ("hnsw", "ivfflat"):
            table.build(kind)


def measure_pgvector(address: str, vectors: Vectors, seconds: float, memory: str = "") -> Measured:
    """The same in PostgreSQL, in a temporary table, whose indexes one process builds without a write-ahead log.

    HNSW is built with 1 MB of memory, too, where its graph has no room: beyond the memory of a build, each item costs
    several times as much. memory: maintenance_work_mem, such as 64MB; "": that of the server.
    """
    measured = Measured([], [])
    for kind, allowed in (("hnsw", memory), ("ivfflat", memory), ("hnsw", _LEAST_MEMORY)):
        with store_table(address, vectors.shape[1]) as table:
            limit, first = table.set_memory(allowed), _NO_ROOM_FOR if allowed == _LEAST_MEMORY else _FIRST_ITEMS

            def build(items: int, kind: str = kind, table: Table = table) -> tuple[float, Ask]:
                table.insert(enlarged(vectors, items)[table.rows :])
                return table.build(kind), table.search

            _measure(measured, f"pgvector-{kind}", vectors, seconds, build, first, limit)
    return measured


def enlarged(vectors: Vectors, items: int) -> Vectors:
    """(items, d) vectors: the given ones, then copies of them with noise of 0.3 of each dimension's deviation."""
    missing = max(0, items - len(vectors))
    rng = np.random.default_rng(0)
    copies = vectors[rng.integers(len(vectors), size=missing)]
    noise = rng.standard_normal(copies.shape, np.float32) * (_NOISE * vectors.std(axis=0) + np.float32(1e-6))
    return np.concatenate([vectors[:items], copies + noise]).astype(np.float32)


def _measure(
    measured: Measured, kind: str, vectors: Vectors, seconds: float, build: Callable[[int], tuple[float, Ask]],
    first: int = _FIRST_ITEMS, memory: float = nan,
) -> None:  # fmt: skip
    """Add builds of doubling sizes until the seconds are used, and queries per second of one caller of the last index.

    build: seconds of a size, and the search of its index.
    """
    items, most = first, _MOST_BYTES // (4 * vectors.shape[1])
    build(first // 10)  # a warm-up
    began = perf_counter()
    with task(f"build {kind}, {first:,} items and more", unit="items") as shown:
        while True:
            took, search = build(items)
            measured.builds.append(Build(kind, vectors.shape[1], items, took, memory))
            shown.done = items
            if _GROWTH * took > seconds - (perf_counter() - began) or 2 * items > most:
                break
            items *= 2
    if first > _FIRST_ITEMS:  # another memory of builds makes no other index
        return
    queries = cycle(enlarged(vectors, 2 * len(vectors))[len(vectors) :][:_FIRST_ITEMS])  # none of them is an item
    search(next(queries))
    asked, began = 0, perf_counter()
    with task(f"search {kind} for {seconds:g} s", unit="queries") as shown:
        while perf_counter() - began < seconds or not asked:
            search(next(queries))
            asked += 1
            shown.advance()
    rate = asked / (perf_counter() - began)
    measured.searches.append(Search(kind, vectors.shape[1], items, rate))


class Table:
    """A temporary table of vectors, which PostgreSQL drops with its session."""

    def __init__(self, connection: Any, dimensions: int) -> None:
        self._connection, self.rows = connection, 0
        if not connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
            raise InputError("the store has no pgvector; type there: CREATE EXTENSION vector")
        connection.execute(f"CREATE TEMPORARY TABLE measured (vector vector({dimensions}))")
        connection.execute("SET enable_seqscan = off")

    def set_memory(self, memory: str) -> float:
        """Set maintenance_work_mem, unless it is "", and return it in bytes."""
        if memory:
            self._connection.execute("SELECT set_config('maintenance_work_mem', %s, false)", [memory])
        size = "SELECT pg_size_bytes(current_setting('maintenance_work_mem'))"
        return float(self._connection.execute(size).fetchone()[0])

    def insert(self, vectors: Vectors) -> None:
        """Insert (N, d) vectors, without an index."""
        self._connection.execute("DROP INDEX IF EXISTS measured_index")
        with self._connection.cursor().copy("COPY measured FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0))
            for vector in vectors:
                head = struct.pack(">hihh", 1, 4 + 4 * len(vector), len(vector), 0)
                copy.write(head + vector.astype(">f4").tobytes())
            copy.write(struct.pack(">h", -1))
        self.rows += len(vectors)

    def build(self, kind: str) -> float:
        """Seconds of CREATE INDEX. Lists are as many as pgvector's page advises."""
        lists = f" WITH (lists = {max(10, self.rows // 1_000)})" if kind == "ivfflat" else ""
        self._connection.execute("DROP INDEX IF EXISTS measured_index")
        began = perf_counter()
        how = f"USING {kind} (vector vector_cosine_ops){lists}"
        self._connection.execute(f"CREATE INDEX measured_index ON measured {how}")
        return perf_counter() - began

    def search(self, query: Vectors) -> object:
        """The nearest items."""
        nearest = f"SELECT vector <=> %s::vector FROM measured ORDER BY 1 LIMIT {_NEAREST}"
        return self._connection.execute(nearest, [str(query.tolist())]).fetchall()


@contextmanager
def store_table(address: str, dimensions: int) -> Iterator[Table]:
    with client_of("a PostgreSQL store", "'psycopg[binary]'"):
        import psycopg
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            yield Table(connection, dimensions)
            connection.execute("DROP TABLE measured")
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        remedy = "; raise --maintenance-work-mem" if "maintenance_work_mem" in said else ""
        raise InputError(f"{address}: {said}{remedy}") from error
