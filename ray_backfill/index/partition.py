"""What every partition can do, and what is checked before it does it. Shapes: b queries, m rows, d dimensions."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.systems import FloatArray, IntArray

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class IndexSettings:
    """How a shard searches its vectors."""

    kind: str = "exact"
    """exact, or a faiss factory string: Flat, IVF256,Flat, IVF256,PQ16, HNSW32, PQ16 ..."""
    effort: int = 0
    """How hard to search: nprobe of IVF, efSearch of HNSW. 0: faiss's default."""
    device: str = "cpu"
    """Where sealed faiss indexes are searched: cpu, or cuda."""

    def __post_init__(self) -> None:
        if not self.kind:
            raise InputError("an index kind is empty; give exact, or a faiss factory string such as Flat")
        if self.effort < 0:
            raise InputError(f"the effort of an index must not be negative, got {self.effort}; 0 is faiss's default")
        if self.device not in DEVICES:
            raise InputError(f"unknown device {self.device!r} of an index; known: {', '.join(DEVICES)}")
        if self.kind == "exact" and self.device != "cpu":
            raise InputError("the exact index runs on the CPU; use device cpu, or the kind Flat")


@dataclass(frozen=True)
class Found:
    """What a search found, closest first, ties by position.

    distance: (b, k) float32, ascending, padded by inf. position: (b, k) int64, padded by -1.
    """

    distance: NDArray[np.float32]
    position: IntArray

    @classmethod
    def nothing(cls, queries: int, k: int) -> "Found":
        return cls(np.full((queries, k), np.inf, np.float32), np.full((queries, k), -1, np.int64))


class Partition(Protocol):
    """Some gallery vectors under their positions, as a value: no method changes it.

    Any number of threads may search any versions while one thread makes new ones. Invariants raise ValueError.
    """

    @property
    def n(self) -> int:
        """Rows alive."""

    @property
    def size_bytes(self) -> int:
        """Main memory that vectors, codes, graph and tables hold: dead rows and room to grow count."""

    @property
    def needs_compaction(self) -> bool:
        """Whether ``compacted`` is worth its cost."""

    def search(self, query: FloatArray, k: int, share: float = 1.0) -> Found:
        """The k nearest rows alive of (b, d) queries.

        share: the part of the gallery's searching effort that falls to this partition; counts for graphs only.

        Raises:
            InputError: queries that are not finite or of other dimensions, a zero vector under cosine, distances that
                overflow float32.
        """

    def with_rows(self, vectors: FloatArray, position: IntArray) -> "Partition":
        """With (m, d) more vectors under (m,) positions.

        Raises:
            InputError: vectors that are not finite or of other dimensions, a zero vector under cosine.
            ValueError: a position that is negative, there already, or given twice.
        """

    def without(self, position: IntArray) -> "Partition":
        """Without the rows of these positions.

        Raises:
            ValueError: a position that is not there, or given twice.
        """

    def compacted(self) -> "Partition":
        """The same rows without the memory of dead ones, in one piece; itself if there is nothing to do."""

    def positions(self) -> IntArray:
        """Positions alive, ascending."""

    def vectors(self, position: IntArray) -> NDArray[np.float32]:
        """(m, d) vectors of these positions: as given if exact, else as the index remembers them.

        Raises:
            ValueError: a position that is not there.
        """


def as_vectors(vectors: FloatArray, dim: int, side: str) -> NDArray[np.float32]:
    """Vectors as contiguous float32, no copy if they are; raises InputError unless (n, dim) and finite."""
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] != dim:
        raise InputError(
            f"{side} embeddings must be a 2-d float array of {dim} columns, got {vectors.dtype} of shape "
            f"{vectors.shape}; embed them by the model of this index"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        numbers = np.ascontiguousarray(vectors, dtype=np.float32)
    finite_rows = np.isfinite(numbers).all(axis=1)
    if not finite_rows.all():
        raise InputError(
            f"{side} embeddings have NaN or infinite values (as float32), first in row {int(np.argmin(finite_rows))}; "
            "drop such rows"
        )
    return numbers


def refuse_zero(length: NDArray[np.float64], side: str) -> None:
    """Raises InputError if a vector has length 0. length: (n,) of all."""
    if not length.all():
        raise InputError(
            f"{side} row {int(np.argmin(length))} is a zero vector, which has no cosine distance; drop such rows "
            "or use the l2 distance"
        )


def as_new_positions(position: IntArray, vectors: FloatArray) -> IntArray:
    """A copy of the positions; raises ValueError unless there is one, not negative, for each vector."""
    if position.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors need as many positions, got the shape {position.shape}")
    if (position < 0).any():
        raise ValueError(f"position {int(position.min())} is negative")
    return position.astype(np.int64)


def sorted_found(rows: IntArray, distance: NDArray[np.float32], position: IntArray, queries: int, k: int) -> Found:
    """The first k of candidates of any number per query, by (distance, position). rows: the query of each candidate."""
    found = Found.nothing(queries, k)
    order = np.lexsort((position, distance, rows))
    row = rows[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    first = place < k
    at = row[first], place[first]
    found.distance[at] = distance[order[first]]
    found.position[at] = position[order[first]]
    return found
