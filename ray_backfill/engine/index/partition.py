"""The interface of partitions, their rows, and input checks that they share. All types are immutable.

Shapes: b queries, m rows, d dimensions.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.kernels import Array
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.systems import FloatArray, IntArray, check_finite, describe_array

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class IndexSettings:
    """How a shard searches its embeddings."""

    kind: str = "exact"
    """exact, or a faiss factory string such as Flat, IVF256,Flat, IVF256,PQ16, HNSW32 or PQ16."""
    effort: int = 0
    """Search effort: nprobe for IVF, efSearch for HNSW. 0: faiss's default."""
    device: str = "cpu"
    """Device that searches sealed faiss indexes: cpu or cuda."""

    def __post_init__(self) -> None:
        if not self.kind:
            raise InputError("the index kind is empty; use exact or a faiss factory string such as Flat")
        if self.effort < 0:
            raise InputError(f"the index effort must not be negative, got {self.effort}; 0 is faiss's default")
        if self.device not in DEVICES:
            raise unknown_name("index device", self.device, DEVICES)
        if self.kind == "exact" and self.device != "cpu":
            raise InputError("the exact index runs only on the CPU; use device cpu, or the kind Flat")


class Partition(Protocol):
    """Gallery vectors with their positions. It is immutable: every update returns a new partition.

    Any number of threads may search any versions while one thread makes new ones. Broken invariants raise ValueError.
    """

    @property
    def n(self) -> int:
        """Number of live rows."""

    @property
    def size_bytes(self) -> int:
        """Main memory of vectors, codes, graph and tables, including deleted rows and spare capacity."""

    @property
    def needs_compaction(self) -> bool:
        """Whether ``compacted`` is worth its cost."""

    def search(self, query: FloatArray, k: int, share: float = 1.0) -> RankedLists:
        """Return the k nearest live rows of (b, d) queries, as the positions that they were added with.

        share: this partition's share of the search effort for the gallery; used only by graphs.

        Raises:
            InputError: Queries have other dimensions or are not finite, a query is zero under cosine, or distances
                overflow float32.
        """

    def with_rows(self, vectors: FloatArray, position: IntArray) -> "Partition":
        """Add (m, d) vectors with (m,) positions.

        Raises:
            InputError: Vectors have other dimensions or are not finite, or a vector is zero under cosine.
            ValueError: A position is negative, exists already, or is given twice.
        """

    def without(self, position: IntArray) -> "Partition":
        """Delete the rows of these positions.

        Raises:
            ValueError: A position does not exist or is given twice.
        """

    def only(self, stays: NDArray[np.bool_], first: int) -> "Partition":
        """Return the rows of some positions. stays: of the positions from ``first`` on, which must cover all rows.

        Cost: a copy of one byte per row.
        """

    def compacted(self) -> "Partition":
        """Return the same rows without the memory of deleted ones, in one piece; itself if there is nothing to do."""

    def positions(self) -> IntArray:
        """Return the positions of the live rows, ascending."""

    def vectors(self, position: IntArray) -> NDArray[np.float32]:
        """Return the (m, d) vectors of these positions: as given if exact, else as stored in the index.

        Raises:
            ValueError: A position does not exist.
        """


def as_vectors(vectors: FloatArray, dim: int, side: str) -> NDArray[np.float32]:
    """Convert to contiguous float32, without a copy if possible; raise InputError unless (n, dim) and finite."""
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] != dim:
        raise InputError(
            f"{side} embeddings must be a 2-D float array of {dim} columns, got {describe_array(vectors)}; "
            "use the model that this index was built for"
        )
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        numbers = np.ascontiguousarray(vectors, dtype=np.float32)
    check_finite(numbers, f"{side} embeddings")
    return numbers


def as_new_positions(position: IntArray, vectors: FloatArray) -> IntArray:
    """Copy the positions; raise ValueError unless there is a non-negative one for each vector."""
    if position.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors need as many positions, got shape {position.shape}")
    if (position < 0).any():
        raise ValueError(f"position {int(position.min())} is negative")
    return position.astype(np.int64)


class _SharedMemory:
    """Memory shared by versions of a column: the first ``used`` entries are written, the rest is free."""

    def __init__(self, array: Array, used: int) -> None:
        self.array, self.used = array, used


@dataclass(frozen=True, eq=False)
class GrowingArray:
    """An array that grows at its end; a longer version shares the memory of a shorter one while there is capacity."""

    _room: _SharedMemory
    n: int

    @classmethod
    def of(cls, array: Array) -> "GrowingArray":
        return cls(_SharedMemory(array, len(array)), len(array))

    @property
    def array(self) -> Any:
        return self._room.array[: self.n]

    @property
    def size_bytes(self) -> int:
        return self._room.array.nbytes

    def extended(self, more: Array) -> "GrowingArray":
        """Append ``more``. Cost: a copy of it, and of everything if the memory is full (then doubled) or shared."""
        room, n = self._room, self.n + len(more)
        if room.used != self.n or n > len(room.array):
            array = np.empty((max(n, 2 * self.n), *more.shape[1:]), more.dtype)
            array[: self.n] = self.array
            room = _SharedMemory(array, self.n)
        room.array[self.n : n] = more
        room.used = n
        return GrowingArray(room, n)


@dataclass(frozen=True, eq=False)
class _SortedRun:
    """A sorted run. position: ascending. row: the row of each; if a position occurs twice, the later row comes last."""

    position: IntArray
    row: IntArray

    @classmethod
    def of(cls, position: IntArray, row: IntArray) -> "_SortedRun":
        order = np.lexsort((row, position))
        return cls(position[order], row[order])


@dataclass(frozen=True, eq=False)
class IndexRows:
    """Rows in insertion order, some of them deleted, that are found by their positions.

    alive: (n,) whether each row is live. n_alive: number of live rows. New rows form a sorted run; runs are merged so
    that each is at least twice as long as the next. There are at most log n runs to search, and a row is copied at most
    log n times.
    """

    _position: GrowingArray
    alive: NDArray[np.bool_]
    n_alive: int
    _runs: tuple[_SortedRun, ...]

    @classmethod
    def none(cls) -> "IndexRows":
        return cls(GrowingArray.of(np.empty(0, np.int64)), np.empty(0, np.bool_), 0, ())

    def __len__(self) -> int:
        return self._position.n

    @property
    def position(self) -> IntArray:
        """(n,) position of each row."""
        return self._position.array

    @property
    def n_dead(self) -> int:
        return len(self) - self.n_alive

    @property
    def size_bytes(self) -> int:
        of_runs = sum(run.position.nbytes + run.row.nbytes for run in self._runs)
        return self._position.size_bytes + self.alive.nbytes + of_runs

    def find(self, position: IntArray) -> IntArray:
        """Return the live row of each position, or -1."""
        row = np.full(len(position), -1)
        for run in self._runs:
            at = np.searchsorted(run.position, position, side="right") - 1
            there = (at >= 0) & (run.position[at] == position)
            row[there] = run.row[at[there]]  # later than in any earlier run
        return np.where((row >= 0) & self.alive[row], row, -1) if len(self) else row

    def extended(self, position: IntArray) -> "IndexRows":
        """Append rows, whose positions must not have live rows. Cost: a copy of the flags."""
        if not len(position):
            return self
        runs = [*self._runs, _SortedRun.of(position, len(self) + np.arange(len(position)))]
        while len(runs) > 1 and len(runs[-2].row) < 2 * len(runs[-1].row):
            last, before = runs.pop(), runs.pop()
            both = np.concatenate([before.position, last.position]), np.concatenate([before.row, last.row])
            runs.append(_SortedRun.of(*both))
        alive = np.concatenate([self.alive, np.ones(len(position), np.bool_)])
        return IndexRows(self._position.extended(position), alive, self.n_alive + len(position), tuple(runs))

    def without(self, row: IntArray) -> "IndexRows":
        """Delete these rows, which must be live and given once each."""
        alive = self.alive.copy()
        alive[row] = False
        return replace(self, alive=alive, n_alive=self.n_alive - len(row))

    def others(self, stays: NDArray[np.bool_], first: int) -> IntArray:
        """Return the live rows that do not stay, see ``Partition.only``."""
        return np.flatnonzero(self.alive & ~stays[self.position - first])

    def compacted(self) -> "IndexRows":
        """Return only the live rows, renumbered in the same order."""
        return IndexRows.none().extended(self.position[self.alive])

    def positions(self) -> IntArray:
        return np.sort(self.position[self.alive])


def refuse_repeated(position: IntArray) -> None:
    """Raise ValueError if a position is given twice."""
    unique, counts = np.unique(position, return_counts=True)
    if len(unique) < len(position):
        raise ValueError(f"position {int(unique[np.argmax(counts)])} is given twice")


def refuse_missing(position: IntArray, row: IntArray) -> None:
    """Raise ValueError if a position has no live row (row -1)."""
    if (row < 0).any():
        raise ValueError(f"position {int(position[np.argmax(row < 0)])} does not exist")


def refuse_living(position: IntArray, row: IntArray) -> None:
    """Raise ValueError if a position has a live row."""
    if (row >= 0).any():
        raise ValueError(f"position {int(position[np.argmax(row >= 0)])} exists already")
