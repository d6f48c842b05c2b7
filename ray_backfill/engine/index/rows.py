"""Rows in insertion order, some of them deleted, that are found by their positions. All types are immutable.

New rows form a sorted run of their own; runs are merged so that each is at least twice as long as the next. There are
at most log n runs to search, and a row is copied at most log n times.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array
from ray_backfill.engine.systems import IntArray


class _Room:
    """Memory shared by versions of a column: the first ``used`` entries are written, the rest is free."""

    def __init__(self, array: Array, used: int) -> None:
        self.array, self.used = array, used


@dataclass(frozen=True, eq=False)
class Column:
    """An array that grows at its end; a longer version shares the memory of a shorter one while there is capacity."""

    _room: _Room
    n: int

    @classmethod
    def of(cls, array: Array) -> "Column":
        return cls(_Room(array, len(array)), len(array))

    @property
    def array(self) -> Any:
        return self._room.array[: self.n]

    @property
    def size_bytes(self) -> int:
        return self._room.array.nbytes

    def extended(self, more: Array) -> "Column":
        """Append ``more``. Cost: a copy of it, and of everything if the memory is full (then doubled) or shared."""
        room, n = self._room, self.n + len(more)
        if room.used != self.n or n > len(room.array):
            array = np.empty((max(n, 2 * self.n), *more.shape[1:]), more.dtype)
            array[: self.n] = self.array
            room = _Room(array, self.n)
        room.array[self.n : n] = more
        room.used = n
        return Column(room, n)


@dataclass(frozen=True, eq=False)
class _Run:
    """A sorted run. position: ascending. row: the row of each; if a position occurs twice, the later row comes last."""

    position: IntArray
    row: IntArray

    @classmethod
    def of(cls, position: IntArray, row: IntArray) -> "_Run":
        order = np.lexsort((row, position))
        return cls(position[order], row[order])


@dataclass(frozen=True, eq=False)
class Rows:
    """Positions and state of all rows. alive: (n,) whether each row is live. n_alive: number of live rows."""

    _position: Column
    alive: NDArray[np.bool_]
    n_alive: int
    _runs: tuple[_Run, ...]

    @classmethod
    def none(cls) -> "Rows":
        return cls(Column.of(np.empty(0, np.int64)), np.empty(0, np.bool_), 0, ())

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

    def extended(self, position: IntArray) -> "Rows":
        """Append rows, whose positions must not have live rows. Cost: a copy of the flags."""
        if not len(position):
            return self
        runs = [*self._runs, _Run.of(position, len(self) + np.arange(len(position)))]
        while len(runs) > 1 and len(runs[-2].row) < 2 * len(runs[-1].row):
            last, before = runs.pop(), runs.pop()
            both = np.concatenate([before.position, last.position]), np.concatenate([before.row, last.row])
            runs.append(_Run.of(*both))
        alive = np.concatenate([self.alive, np.ones(len(position), np.bool_)])
        return Rows(self._position.extended(position), alive, self.n_alive + len(position), tuple(runs))

    def without(self, row: IntArray) -> "Rows":
        """Delete these rows, which must be live and given once each."""
        alive = self.alive.copy()
        alive[row] = False
        return replace(self, alive=alive, n_alive=self.n_alive - len(row))

    def compacted(self) -> "Rows":
        """Return only the live rows, renumbered in the same order."""
        return Rows.none().extended(self.position[self.alive])

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
