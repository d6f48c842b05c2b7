"""A shard: a range of the gallery with both partitions, searched by many threads while one applies operations.

Searches read an immutable ``View``. An operation replaces it with a new one, so a search sees each item in exactly one
partition, either before or after it moves, and never waits for a writer. A shard returns the first items of each of its
partitions; those of all shards together become an answer behind them (``pipeline.live``).

Shapes: b queries, k items per partition, n items of an operation that belong to the shard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.schema import columns, read_checked
from ray_backfill.core.stages import is_whole
from ray_backfill.data.write import vector_column, vectors_of, write_parquet
from ray_backfill.drill.parts import Embedded
from ray_backfill.drill.plan import NEW, NOWHERE, OLD, DrillPlan, Operation
from ray_backfill.drill.tables import AnswerRow
from ray_backfill.engine.index import IndexSettings, Partition, make_partition
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.learn.sides import SideName, Sides

# Items read and indexed per step when a partition is filled.
_ROWS = 32_768


@dataclass(frozen=True)
class ShardAnswer:
    """The first items of a shard's partitions, and the state in which it searched them.

    applied: number of plan operations it had applied. old_items, new_items: size of each partition at that moment.
    missing_items: inserted items that no model could embed.
    """

    old: RankedLists
    new: RankedLists
    applied: int
    old_items: int
    new_items: int
    missing_items: int


@dataclass(frozen=True)
class View:
    """Both partitions after ``applied`` operations. missing: inserted items that could not be embedded."""

    old: Partition
    new: Partition
    applied: int
    missing: int = 0


@dataclass(frozen=True)
class ShardSize:
    """applied: number of operations. Items and bytes of both partitions; bytes cover vectors, codes and graphs."""

    applied: int
    old_items: int
    new_items: int
    old_bytes: int
    new_bytes: int

    @classmethod
    def of_all(cls, sizes: Sequence["ShardSize"]) -> "ShardSize":
        """The size of all shards together, which have applied the same operations."""
        totals = {f.name: sum(getattr(size, f.name) for size in sizes) for f in fields(cls)}
        return cls(**totals | {"applied": sizes[0].applied})


@dataclass(frozen=True)
class ShardPlace:
    """The items that a shard owns, first .. last - 1, and the indexes it uses."""

    first: int
    last: int
    old_index: IndexSettings
    new_index: IndexSettings

    @property
    def on_gpu(self) -> bool:
        return "cuda" in (self.old_index.device, self.new_index.device)


class Shard:
    """Searches may run concurrently; ``apply`` and ``compact`` belong to one thread.

    read_old: (first, last) -> embeddings of the gallery items first .. last - 1, by old model.
    train: vectors for indexes that need training, by side; None if there are none. part_n: part of each item,
    of which a query finds its own only; None without a filter.
    """

    def __init__(
        self, plan: DrillPlan, sides: Sides, place: ShardPlace,
        read_old: Callable[[int, int], dict[str, FloatArray]], train: dict[str, FloatArray] | None = None,
        part_n: IntArray | None = None,
    ) -> None:  # fmt: skip
        self.part_n = part_n
        self.plan, self.sides, self.place, self.read_old, self.train = plan, sides, place, read_old, train or {}
        self.state = plan.start()[place.first : place.last]
        self.view = View(self._filled_old(self._own(plan.order)), self._empty("forward"), 0)

    def search(self, backward: FloatArray, forward: FloatArray, k: int, part_b: IntArray | None = None) -> ShardAnswer:
        """The k best of each partition. backward: (b, d), forward: (b, d') vectors of the same queries.

        part_b: the part of each query; needed with a filter. Cost with a filter: a search for each part among them.
        """
        view, place = self.view, self.place
        if self.part_n is None:
            old, new = self._best(view, backward, forward, k)
        else:
            assert part_b is not None
            old, new = RankedLists.nothing(len(backward), k), RankedLists.nothing(len(backward), k)
            for part in np.unique(part_b):
                stays, rows = self.part_n == part, part_b == part
                inside = replace(view, old=view.old.only(stays, place.first), new=view.new.only(stays, place.first))
                old_of_part, new_of_part = self._best(inside, backward[rows], forward[rows], k)
                old.put(rows, old_of_part)
                new.put(rows, new_of_part)
        return ShardAnswer(old, new, view.applied, view.old.n, view.new.n, view.missing)

    def _best(self, view: View, backward: FloatArray, forward: FloatArray, k: int) -> tuple[RankedLists, RankedLists]:
        total = max(view.old.n + view.new.n, 1)
        old = view.old.search(backward, k, share=view.old.n / total)
        return old, view.new.search(forward, k, share=view.new.n / total)

    def apply(self, operation: Operation, embedded: Embedded | None) -> None:
        """Apply the plan's next operation; applying one again has no effect.

        embedded: required if the operation has vectors.

        Raises:
            ValueError: the operation is out of order.
        """
        if operation.number < self.view.applied:
            return
        if operation.number > self.view.applied:
            raise ValueError(f"operation {operation.number} is out of order: the next one is {self.view.applied}")
        if operation.kind == "delete":
            view = self._without(self._own(operation.positions))
        else:
            assert embedded is not None
            lost = self._own(embedded.broken_positions) if operation.kind != "backfill" else np.empty(0, np.int64)
            if operation.kind == "rollback":  # only those that were in service
                lost = lost[self.state[lost - self.place.first] != NOWHERE]
            view = self._rolled_back(embedded) if operation.kind == "rollback" else self._moved(embedded)
            view = replace(view, missing=view.missing + len(lost))
        self.view = replace(view, applied=self.view.applied + 1)

    def compact(self) -> None:
        """Free the memory of items that left a partition, where it pays off; searches go on."""
        if self.view.old.needs_compaction:
            self.view = replace(self.view, old=self.view.old.compacted())
        if self.view.new.needs_compaction:
            self.view = replace(self.view, new=self.view.new.compacted())

    def size(self) -> ShardSize:
        view = self.view
        return ShardSize(view.applied, view.old.n, view.new.n, view.old.size_bytes, view.new.size_bytes)

    def _moved(self, embedded: Embedded) -> View:
        """Move embedded items into the new partition, out of the old one if they are there."""
        is_own = self._is_own(embedded.positions)
        positions, view = embedded.positions[is_own], self.view
        vectors = self.sides.gallery("forward", {m: v[is_own] for m, v in embedded.vectors.items()})
        local = positions - self.place.first
        old = view.old.without(positions[self.state[local] == OLD])
        new = view.new.with_rows(vectors, positions)
        self.state[local] = NEW
        return replace(view, old=old, new=new)

    def _without(self, positions: IntArray) -> View:
        local, view = positions - self.place.first, self.view
        before = self.state[local]
        self.state[local] = NOWHERE
        old, new = view.old.without(positions[before == OLD]), view.new.without(positions[before == NEW])
        return replace(view, old=old, new=new)

    def _rolled_back(self, embedded: Embedded) -> View:
        """Return all items to the old partition, with stored old embeddings, or the given ones for inserted items."""
        self.state[self._own(embedded.broken_positions) - self.place.first] = NOWHERE
        alive = np.flatnonzero(self.state != NOWHERE) + self.place.first
        is_own = self._is_own(embedded.positions)
        is_own[is_own] = self.state[embedded.positions[is_own] - self.place.first] != NOWHERE
        inserted = embedded.positions[is_own]
        stored = np.setdiff1d(alive, self.plan.held_back)
        old = self._filled_old(stored[np.argsort(self.plan.rank[stored])])
        vectors = {model: values[is_own] for model, values in embedded.vectors.items()}
        old = old.with_rows(self.sides.gallery("backward", vectors), inserted)
        self.state[alive - self.place.first] = OLD
        return replace(self.view, old=old, new=self._empty("forward"))

    def _filled_old(self, positions: IntArray) -> Partition:
        """A partition of stored items in backfill order, so that items leave it from the front."""
        old = self._empty("backward")
        if not len(positions):
            return old
        stored = self.read_old(self.place.first, self.place.last)
        for first in range(0, len(positions), _ROWS):
            some = positions[first : first + _ROWS]
            vectors = {model: values[some - self.place.first] for model, values in stored.items()}
            old = old.with_rows(self.sides.gallery("backward", vectors), some)
        return old.compacted() if old.needs_compaction else old

    def _empty(self, side: SideName) -> Partition:
        settings = self.place.old_index if side == "backward" else self.place.new_index
        return make_partition(settings, self.sides.live_distance, self.sides.dim(side), self.train.get(side))

    def _is_own(self, positions: IntArray) -> NDArray[np.bool_]:
        return (positions >= self.place.first) & (positions < self.place.last)

    def _own(self, positions: IntArray) -> IntArray:
        return positions[self._is_own(positions)]


def write_answers(drill: Path, moment: int, answers: RankedLists) -> None:
    """Store the answers to all queries at a checkpoint in the drill's folder."""
    lists: tuple[NDArray[Any], ...] = (answers.item, answers.distance, answers.is_forward.astype(np.float32))
    named = {name: vector_column(values) for name, values in zip(columns(AnswerRow), lists, strict=True)}
    write_parquet(_answers_path(drill, moment), pa.table(named))


def measured_moments(drill: Path) -> set[int]:
    """The checkpoints whose answers are on the disk."""
    return {
        int(path.stem.rpartition("-")[2]) for path in _answers_path(drill, 0).parent.glob("*.parquet") if is_whole(path)
    }


def read_answers(drill: Path, moment: int) -> IntArray:
    """(Q, k) item positions as written by ``write_answers``."""
    name = columns(AnswerRow)[0]
    return vectors_of(read_checked(_answers_path(drill, moment), [name])[name])


def _answers_path(drill: Path, moment: int) -> Path:
    return drill / "answers" / f"checkpoint-{moment:04d}.parquet"


def shard_edges(n_items: int, number: int) -> list[int]:
    """(S + 1) boundaries of the shards' ranges."""
    return np.linspace(0, n_items, min(number, n_items) + 1).astype(int).tolist()
