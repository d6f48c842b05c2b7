"""What a drill does, in which order, as plain data: a list of operations that every shard applies from the front.

How many of them a shard has applied is all that there is to know about its state. The plan is made once, from settings
and seeds, and kept; so a drill that is started again goes on with the very same operations.

Positions are those of the gallery's table, 0 .. N - 1; items that are inserted later have theirs from the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.files import write_whole
from ray_backfill.orders import check_order
from ray_backfill.systems import IntArray

Kind = Literal["backfill", "insert", "delete", "rollback"]
KINDS: tuple[Kind, ...] = ("backfill", "insert", "delete", "rollback")
# Where an item is. Deleted ones and those that are still to come are nowhere.
NOWHERE, OLD, NEW = 0, 1, 2


@dataclass(frozen=True)
class ChurnSettings:
    """What else happens to the gallery while it is backfilled."""

    # Items that are held back at the start and inserted while the backfill runs, embedded by the new model alone.
    inserts: int = 0
    # Items that are deleted while the backfill runs, backfilled ones or not.
    deletes: int = 0
    # Give the upgrade up at this progress and serve everything by the old model again; 0: never.
    rollback_at: float = 0.0
    # Of who is inserted and deleted, and when.
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("inserts", "deletes", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"churn.{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.rollback_at <= 1:
            raise InputError(f"churn.rollback_at must be between 0 and 1, got {self.rollback_at}")


@dataclass(frozen=True)
class Operation:
    """One step of a drill. positions: the items it concerns, in the order of the backfill.

    backfill: they are embedded by the new model, and leave the old partition. insert: new items, likewise. delete: they
    leave. rollback: all that the old model ever embedded return to the old partition; ``positions`` are the inserted
    ones, which it has to embed.
    """

    number: int
    kind: Kind
    positions: IntArray

    @property
    def has_vectors(self) -> bool:
        """Whether a model has to embed its items."""
        return self.kind != "delete"


@dataclass(frozen=True)
class Checkpoint:
    """Quality is measured when the first ``applied`` operations are done. t: share of the plan's items backfilled."""

    moment: int
    applied: int
    t: float
    phase: Literal["backfill", "rollback"] = "backfill"


@dataclass(frozen=True)
class DrillPlan:
    """order: the items of the start, first = backfilled first. held_back: those that are inserted later."""

    n_items: int
    order: IntArray
    held_back: IntArray
    operations: tuple[Operation, ...]
    checkpoints: tuple[Checkpoint, ...]

    def start(self) -> NDArray[np.uint8]:
        """(N,) where each item is before the first operation: OLD or NOWHERE."""
        state = np.zeros(self.n_items, np.uint8)
        state[self.order] = OLD
        return state

    def state(self, applied: int, broken: Mapping[int, IntArray]) -> NDArray[np.uint8]:
        """(N,) NOWHERE, OLD or NEW for each item after the first ``applied`` operations.

        broken: operation -> positions of items whose image could not be read: these stay where they are.
        """
        state = self.start()
        for operation in self.operations[:applied]:
            lost = broken.get(operation.number, np.empty(0, np.int64))
            apply_to(state, operation, ~np.isin(operation.positions, lost))
        return state

    def sizes(self, edges: Sequence[int]) -> IntArray:
        """(operations + 1, S) how many items shard s, positions edges[s] .. edges[s + 1] - 1, has after each operation.

        As if every image could be read.
        """
        changes = np.zeros((len(self.operations) + 1, len(edges) - 1), np.int64)
        bounds = np.asarray(edges)
        changes[0] = np.bincount(np.searchsorted(bounds, self.order, side="right") - 1, minlength=len(edges) - 1)
        for operation in self.operations:
            if operation.kind in ("insert", "delete"):
                sign = 1 if operation.kind == "insert" else -1
                shard = np.searchsorted(bounds, operation.positions, side="right") - 1
                changes[operation.number + 1] = sign * np.bincount(shard, minlength=len(edges) - 1)
        return np.cumsum(changes, axis=0)

    @cached_property
    def rank(self) -> IntArray:
        """(N,) place of each item in the order of the backfill; of the inserted ones after all others."""
        rank = np.empty(self.n_items, np.int64)
        rank[np.concatenate([self.order, self.held_back])] = np.arange(self.n_items)
        return rank


def apply_to(state: NDArray[np.uint8], operation: Operation, is_embedded: NDArray[np.bool_]) -> None:
    """What an operation does to where items are. is_embedded: for each of its positions; the others stay."""
    positions = operation.positions
    if operation.kind == "delete":
        state[positions] = NOWHERE
    elif operation.kind == "rollback":
        # Inserted items which the old model cannot embed are served no longer; all others go back.
        state[state == NEW] = OLD
        state[positions[~is_embedded]] = NOWHERE
    else:
        state[positions[is_embedded]] = NEW


def make_plan(order: IntArray, points: int, part_items: int, churn: ChurnSettings) -> DrillPlan:
    """The operations of a backfill in this order, and where its quality is measured.

    order: (N,) permutation of all items that will ever be there. points: moments t = 0, 1 / (points - 1), ..., 1: the
    same as of a replay. part_items: items of an operation, at most.

    Raises:
        InputError: no permutation, or churn that leaves no items.
    """
    check_order(order, len(order))
    n_items, rng = len(order), np.random.default_rng(churn.seed)
    if churn.inserts + churn.deletes >= n_items:
        raise InputError(
            f"{churn.inserts} inserts and {churn.deletes} deletes leave nothing of {n_items} items; lower them"
        )
    is_held_back = np.zeros(n_items, np.bool_)
    is_held_back[rng.choice(n_items, churn.inserts, replace=False)] = True
    order, held_back = order[~is_held_back[order]], order[is_held_back[order]]
    deleted = order[rng.choice(len(order), churn.deletes, replace=False)]
    measured, t = np.arange(points) * len(order) // (points - 1), np.linspace(0.0, 1.0, points)
    edges = np.unique(np.concatenate([np.arange(0, len(order), part_items), measured]))
    n_parts = len(edges) - 1
    inserts, deletes = (np.array_split(items, n_parts) for items in (held_back, deleted))
    operations: list[Operation] = []
    checkpoints: list[Checkpoint] = []
    gone = np.zeros(n_items, np.bool_)

    def add(kind: Kind, positions: IntArray) -> None:
        if len(positions):
            operations.append(Operation(len(operations), kind, positions))

    def measure(done: int) -> None:
        """All points that fall on this number of items: with few items several may."""
        for point in np.flatnonzero(measured == done):
            checkpoints.append(Checkpoint(len(checkpoints), len(operations), float(t[point])))

    measure(0)
    for part, (first, last) in enumerate(pairwise(edges.tolist())):
        items = order[first:last]
        add("backfill", items[~gone[items]])
        add("insert", inserts[part])
        add("delete", deletes[part])
        gone[deletes[part]] = True
        measure(int(last))
        if churn.rollback_at and last / len(order) >= churn.rollback_at:
            inserted = [o.positions for o in operations if o.kind == "insert"]
            operations.append(
                Operation(len(operations), "rollback", np.concatenate([np.empty(0, np.int64), *inserted]))
            )
            checkpoints.append(Checkpoint(len(checkpoints), len(operations), float(last / len(order)), "rollback"))
            break
    return DrillPlan(n_items, order, held_back, tuple(operations), tuple(checkpoints))


def write_plan(path: Path, plan: DrillPlan) -> None:
    """As Parquet: a row an item of an operation; the rest in its metadata is small. There whole or not at all."""
    numbers = [np.full(len(o.positions), o.number) for o in plan.operations]
    positions = [o.positions for o in plan.operations]
    table = pa.table(
        {
            "operation": np.concatenate([np.empty(0, np.int64), *numbers]),
            "position": np.concatenate([np.empty(0, np.int64), *positions]),
        }
    )
    operations = pa.table({"kind": [o.kind for o in plan.operations]})
    checkpoints = pa.table(
        {name: [getattr(c, name) for c in plan.checkpoints] for name in ("moment", "applied", "t", "phase")}
    )
    items = pa.table(
        {
            "position": np.concatenate([plan.order, plan.held_back]),
            "is_held_back": np.repeat([False, True], [len(plan.order), len(plan.held_back)]),
        }
    )
    path.mkdir(parents=True, exist_ok=True)
    for name, content in (("items", items), ("steps", table), ("operations", operations), ("checkpoints", checkpoints)):
        write_whole(path / f"{name}.parquet", partial(pq.write_table, content))


def read_plan(path: Path) -> DrillPlan:
    """What ``write_plan`` wrote."""
    items, steps, operations, checkpoints = (
        pq.read_table(path / f"{name}.parquet") for name in ("items", "steps", "operations", "checkpoints")
    )
    position, held = items["position"].to_numpy(), np.asarray(items["is_held_back"])
    number, of_step = steps["operation"].to_numpy(), steps["position"].to_numpy()
    starts = np.searchsorted(number, np.arange(operations.num_rows + 1))
    return DrillPlan(
        items.num_rows,
        position[~held],
        position[held],
        tuple(
            Operation(i, kind, of_step[starts[i] : starts[i + 1]])
            for i, kind in enumerate(operations["kind"].to_pylist())
        ),
        tuple(Checkpoint(**row) for row in checkpoints.to_pylist()),
    )
