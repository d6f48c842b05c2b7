"""The plan of a drill as plain data: a list of operations that every shard applies in order.

The number of applied operations fully determines a shard's state. The plan is made once, from settings and seeds, and
stored, so a restarted drill continues with exactly the same operations.

Positions are rows of the gallery table, 0 .. N - 1; items inserted later have their position from the start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import arrow_table, columns, read_checked, write_checked
from ray_backfill.core.stages import write_whole
from ray_backfill.drill.settings import ChurnSettings
from ray_backfill.drill.tables import Checkpoint, ItemRow, OperationRow, StepRow
from ray_backfill.engine.orders import check_order
from ray_backfill.engine.systems import IntArray

OperationKind = Literal["backfill", "insert", "delete", "rollback"]
PLAN_FILES = ("items", "steps", "operations", "checkpoints")
# Which partition holds an item. Deleted items and items not inserted yet are NOWHERE.
NOWHERE, OLD, NEW = 0, 1, 2


@dataclass(frozen=True)
class Operation:
    """One step of a drill. positions: the affected items, in backfill order.

    backfill: embed the items with the new model and move them from the old to the new partition. insert: embed new
    items with the new model and add them to the new partition. delete: remove the items. rollback: return every item
    with an old embedding to the old partition; ``positions`` are the inserted items, which the old model must embed.
    """

    number: int
    kind: OperationKind
    positions: IntArray

    @property
    def has_vectors(self) -> bool:
        """Whether a model has to embed the items."""
        return self.kind != "delete"


@dataclass(frozen=True)
class DrillPlan:
    """order: the items present at the start, in backfill order. held_back: the items inserted later."""

    n_items: int
    order: IntArray
    held_back: IntArray
    operations: tuple[Operation, ...]
    checkpoints: tuple[Checkpoint, ...]

    def start(self) -> NDArray[np.uint8]:
        """(N,) state of each item before the first operation: OLD or NOWHERE."""
        state = np.zeros(self.n_items, np.uint8)
        state[self.order] = OLD
        return state

    def state(self, applied: int, broken: Mapping[int, IntArray]) -> NDArray[np.uint8]:
        """(N,) state of each item, NOWHERE, OLD or NEW, after the first ``applied`` operations.

        broken: operation -> positions of items whose image could not be read; they keep their state.
        """
        state = self.start()
        for operation in self.operations[:applied]:
            positions = operation.positions
            is_lost = np.isin(positions, broken.get(operation.number, ()))
            if operation.kind == "delete":
                state[positions] = NOWHERE
            elif operation.kind == "rollback":
                # Inserted items that the old model cannot embed are no longer served; all others go back.
                state[state == NEW] = OLD
                state[positions[is_lost]] = NOWHERE
            else:
                state[positions[~is_lost]] = NEW
        return state

    def sizes(self, edges: Sequence[int]) -> IntArray:
        """(operations + 1, S) number of items in each shard after each operation, assuming every image can be read.

        edges: shard s owns the positions edges[s] .. edges[s + 1] - 1.
        """
        changes = np.zeros((len(self.operations) + 1, len(edges) - 1), np.int64)
        changes[0], _ = np.histogram(self.order, edges)
        for operation in self.operations:
            if operation.kind in ("insert", "delete"):
                number, _ = np.histogram(operation.positions, edges)
                changes[operation.number + 1] = number if operation.kind == "insert" else -number
        return np.cumsum(changes, axis=0)

    @property
    def embedded(self) -> list[Operation]:
        """The operations whose items a model has to embed."""
        return [operation for operation in self.operations if operation.has_vectors]

    @cached_property
    def rank(self) -> IntArray:
        """(N,) rank of each item in the backfill order; inserted items come after all others."""
        rank = np.empty(self.n_items, np.int64)
        rank[np.concatenate([self.order, self.held_back])] = np.arange(self.n_items)
        return rank


def positions_of(operations: Iterable[Operation]) -> IntArray:
    """The positions of these operations, concatenated."""
    return np.concatenate([np.empty(0, np.int64), *(operation.positions for operation in operations)])


def make_plan(order: IntArray, points: int, part_items: int, churn: ChurnSettings) -> DrillPlan:
    """Plan the operations of a backfill in this order, and the checkpoints that measure its quality.

    order: (N,) permutation of all items, including those inserted later. points: number of checkpoints, at t = 0,
    1 / (points - 1), ..., 1 as in a replay. part_items: maximum number of items in an operation.

    Raises:
        InputError: ``order`` is not a permutation, or churn leaves no items.
    """
    check_order(order, len(order))
    n_items, rng = len(order), np.random.default_rng(churn.seed)
    if churn.inserts + churn.deletes >= n_items:
        raise InputError(
            f"--live.churn.inserts {churn.inserts} and --live.churn.deletes {churn.deletes} leave none of {n_items} "
            "items; lower them"
        )
    is_held_back = np.zeros(n_items, np.bool_)
    is_held_back[rng.choice(n_items, churn.inserts, replace=False)] = True
    order, held_back = order[~is_held_back[order]], order[is_held_back[order]]
    deleted = order[rng.choice(len(order), churn.deletes, replace=False)]
    measured, t = np.arange(points) * len(order) // (points - 1), np.linspace(0.0, 1.0, points)
    operations: list[Operation] = []
    # In a small gallery several checkpoints may fall on the same number of items.
    checkpoints = [Checkpoint(int(point), 0, float(t[point])) for point in np.flatnonzero(measured == 0)]
    edges = np.unique(np.concatenate([np.arange(0, len(order), part_items), measured]))  # of parts
    inserts, deletes = (np.array_split(items, len(edges) - 1) for items in (held_back, deleted))
    gone = np.zeros(n_items, np.bool_)
    for (first, last), inserted, dropped in zip(pairwise(edges.tolist()), inserts, deletes, strict=True):
        items = order[first:last]
        moves: tuple[tuple[OperationKind, IntArray], ...] = (
            ("backfill", items[~gone[items]]), ("insert", inserted), ("delete", dropped),
        )  # fmt: skip
        gone[dropped] = True
        for kind, positions in moves:
            if len(positions):
                operations.append(Operation(len(operations), kind, positions))
        for point in np.flatnonzero(measured == last):
            checkpoints.append(Checkpoint(len(checkpoints), len(operations), float(t[point])))
        if churn.rollback_at and last / len(order) >= churn.rollback_at:
            back = positions_of(o for o in operations if o.kind == "insert")
            operations.append(Operation(len(operations), "rollback", back))
            checkpoints.append(Checkpoint(len(checkpoints), len(operations), last / len(order), "rollback"))
            break
    return DrillPlan(n_items, order, held_back, tuple(operations), tuple(checkpoints))


def write_plan(path: Path, plan: DrillPlan) -> None:
    """Write the plan as Parquet files, each atomically."""
    numbers = [np.full(len(o.positions), o.number) for o in plan.operations]
    steps = np.concatenate([np.empty(0, np.int64), *numbers]), positions_of(plan.operations)
    is_held_back = np.repeat([False, True], [len(plan.order), len(plan.held_back)])
    items = np.concatenate([plan.order, plan.held_back]), is_held_back
    tables = (
        pa.table(dict(zip(columns(ItemRow), items, strict=True))),
        pa.table(dict(zip(columns(StepRow), steps, strict=True))),
        arrow_table(OperationRow, [OperationRow(o.kind) for o in plan.operations]),
        arrow_table(Checkpoint, plan.checkpoints),
    )
    for name, table in zip(PLAN_FILES, tables, strict=True):
        write_whole(path / f"{name}.parquet", partial(write_checked, table))


def read_plan(path: Path) -> DrillPlan:
    """Read a plan written by ``write_plan``."""
    items, steps, operations, checkpoints = (read_checked(path / f"{name}.parquet") for name in PLAN_FILES)
    position, is_held_back = (items[name].to_numpy() for name in columns(ItemRow))
    number, of_step = (steps[name].to_numpy() for name in columns(StepRow))
    starts = np.searchsorted(number, np.arange(operations.num_rows + 1))
    kinds = [cast(OperationKind, OperationRow(**row).kind) for row in operations.to_pylist()]
    return DrillPlan(
        items.num_rows,
        position[~is_held_back],
        position[is_held_back],
        tuple(Operation(i, kind, of_step[starts[i] : starts[i + 1]]) for i, kind in enumerate(kinds)),
        tuple(Checkpoint(**row) for row in checkpoints.to_pylist()),
    )
