"""Tables of a live drill: the ones it writes while it runs (plan, answers, events) and the ones its report reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any

# Version of the drill's folder; increases when the shape of a table or the meaning of the key changes.
FORMAT = 2

# Plan of a drill.


@dataclass(frozen=True)
class ItemRow:
    """One row of plan/items.parquet: an item, in backfill order; items that are inserted later come last."""

    position: Annotated[int, "row of the item in the gallery table"]
    is_held_back: Annotated[bool, "the item is not in the gallery at the start"]


@dataclass(frozen=True)
class OperationRow:
    """One row of plan/operations.parquet: an operation, in execution order."""

    kind: Annotated[str, "`backfill`, `insert`, `delete` or `rollback`"]


@dataclass(frozen=True)
class StepRow:
    """One row of plan/steps.parquet: an item of an operation."""

    operation: Annotated[int, "number of the operation, from 0"]
    position: Annotated[int, "row of an item of the operation in the gallery table"]


@dataclass(frozen=True)
class Checkpoint:
    """One row of plan/checkpoints.parquet: quality is measured after the first ``applied`` operations."""

    moment: Annotated[int, "number of the checkpoint, from 0"]
    applied: Annotated[int, "number of operations that have been applied"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    phase: Annotated[str, "`backfill` or `rollback`"] = "backfill"


# Traffic and answers.


@dataclass(frozen=True)
class EventRow:
    """A request of the traffic."""

    scheduled_s: Annotated[float, "scheduled time, in seconds since the drill began"]
    latency_ms: Annotated[float, "from the scheduled time to the answer, or until the request was given up"]
    queries: Annotated[int, "number of queries in the request"]
    is_answered: Annotated[bool, "answered before its deadline"]
    is_warm_up: Annotated[bool, "a warm-up request, which latencies and rates leave out"]
    retries: Annotated[int, "number of times that a shard was asked again"]
    violations: Annotated[int, "violated invariants in the answer, such as an item that appears twice"]
    applied_least: Annotated[int, "fewest and most operations that a shard had applied; -1: no answer"]
    applied_most: int
    old_items: Annotated[int, "items in the old and the new partitions of all shards together; -1: no answer"]
    new_items: int


@dataclass(frozen=True)
class AnswerRow:
    """The live answer to a query at a checkpoint, best item first."""

    position: Annotated[list[int], "rows of the items in the gallery table; -1 if there are no more"]
    distance: Annotated[list[float], "distance in the system that serves the item"]
    is_new: Annotated[list[float], "1: the new partition serves the item"]


# Tables of the report.


class Phase(StrEnum):
    """What a drill was doing at a moment."""

    BEFORE = "before the backfill"
    DURING = "during the backfill"
    AFTER = "after the backfill"
    MEASURING = "measuring"
    WARM_UP = "warm-up"


SERVING = (Phase.BEFORE, Phase.DURING, Phase.AFTER)


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint. Queries, rates and latencies cover the time since the previous checkpoint."""

    moment: Annotated[int, "number of the checkpoint, from 0"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    phase: Annotated[str, "`backfill` or `rollback`"]
    backfilled: Annotated[int, "items backfilled so far"]
    old_items: Annotated[int, "items in the old and in the new partition; their sum is the gallery"]
    new_items: int
    kept_old: Annotated[int, "items so far whose image could not be read, so that they keep the old embedding"]
    inserted: Annotated[int, "items inserted and deleted so far"]
    deleted: int
    old_bytes: Annotated[int, "memory of vectors, codes and graphs of each partition"]
    new_bytes: int
    elapsed_s: Annotated[float, "time at which the measurement was complete"]
    queries: Annotated[int, "answered queries"]
    unanswered: Annotated[int, "queries that were not answered by their deadline"]
    retried: Annotated[int, "number of times that a shard was asked again"]
    violations: Annotated[int, "violated invariants in all answers; 0 in a correct service"]
    queries_per_s: Annotated[float, "rate of answered queries; NaN without traffic"]
    p50_ms: Annotated[float, "quantiles of the latency; NaN with fewer than 2, 20 and 100 requests"]
    p95_ms: float
    p99_ms: float
    items_per_s: Annotated[float, "rate of the backfill; NaN at the first checkpoint"]
    old_recall: Annotated[
        float,
        "share of the exact answers' items in that partition that the live answers contain; NaN without such items",
    ]
    new_recall: float

    @property
    def items(self) -> int:
        """Number of items that the two partitions serve."""
        return self.old_items + self.new_items

    @property
    def is_rollback(self) -> bool:
        """Whether the checkpoint was measured after the rollback."""
        return self.phase == "rollback"


@dataclass(frozen=True)
class QualityRow:
    """A metric at a checkpoint."""

    moment: Annotated[int, "number of the checkpoint"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    metric: Annotated[str, "name of the metric"]
    live: Annotated[float, "value for the live answers at the checkpoint"]
    exact: Annotated[float, "value for exact indexes over the gallery at that time: the replay engine's result"]


@dataclass(frozen=True)
class ReplayedRow:
    """A point of a replayed curve."""

    metric: Annotated[str, "name of the metric"]
    t: Annotated[float, "share of the gallery that is backfilled"]
    value: Annotated[float, "value of the metric"]
    serving: Annotated[str, "`backfill` (the predicted curve), `old` or `new` (that model alone)"]


@dataclass(frozen=True)
class SecondRow:
    """A second of the drill."""

    elapsed_s: Annotated[int, "start of the second"]
    queries: Annotated[int, "queries that were due in this second and were answered"]
    unanswered: Annotated[int, "queries that were due in this second and were not answered by their deadline"]
    p50_ms: Annotated[float, "quantiles of the latency without warm-ups; NaN if no query was due"]
    p99_ms: float
    items: Annotated[int, "items backfilled in this second"]
    is_measuring: Annotated[bool, "a checkpoint was being measured"]
    is_warm_up: Annotated[bool, "a driver's traffic was warming up"]
    leg: Annotated[int, "number of the driver that ran, from 0"]


@dataclass(frozen=True)
class PhaseRow:
    """A phase of the drill. Every moment is in one phase, and so is every request and every write."""

    phase: Annotated[str, ", ".join(f"`{phase}`" for phase in Phase)]
    seconds: Annotated[float, "length of the phase"]
    requests: Annotated[int, "requests that were due in the phase"]
    queries: Annotated[int, "their queries that were answered"]
    unanswered: Annotated[int, "those that were not answered by their deadline"]
    items: Annotated[int, "items backfilled"]
    p50_ms: Annotated[float, "medians over the phase's seconds of the latency's quantiles; NaN below 100 requests"]
    p99_ms: float

    @property
    def queries_per_s(self) -> float:
        """Rate of answered queries; NaN in no time."""
        return self.queries / self.seconds if self.seconds else math.nan

    @property
    def items_per_s(self) -> float:
        """Rate of the backfill; NaN in no time."""
        return self.items / self.seconds if self.seconds else math.nan


@dataclass(frozen=True, order=True)
class IncidentRow:
    """A failure, an item whose image could not be read, or the rollback."""

    elapsed_s: Annotated[float, "time of the incident"]
    kind: Annotated[str, "type of the incident"]
    detail: Annotated[str, "what was affected, or the reason"]


@dataclass(frozen=True, kw_only=True)
class DrillFacts:
    """The contents of a drill's manifest.json apart from its settings. Defaults stand for keys that are missing."""

    kind: str = "live"
    command: str = ""
    created: str = ""
    method: str = ""
    title: str = ""
    order: str = ""
    merge: str = ""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Term -> meaning, for the merge."""
    primary_metric: str
    """The metric by which the drill is judged."""
    metrics: tuple[str, ...] = ()
    distance: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    is_exact: bool = False
    """Whether both indexes search exactly."""
    has_service: bool = False
    """Whether answers came from behind the stages of --service."""
    has_churn: bool = False
    """Whether items were inserted or deleted."""
    rolled_back: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    legs: int = 1
    """Number of drivers that the drill took."""

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "DrillFacts":
        """The drill's facts in a manifest; other keys are left out."""
        return cls(**{f.name: manifest[f.name] for f in fields(cls) if f.name in manifest})


# File in RUN/live, without its suffix -> row type.
TABLES: Mapping[str, type] = {
    "checkpoints": CheckpointRow,
    "quality": QualityRow,
    "replayed": ReplayedRow,
    "timeline": SecondRow,
    "phases": PhaseRow,
    "incidents": IncidentRow,
    "plan/items": ItemRow,
    "plan/operations": OperationRow,
    "plan/steps": StepRow,
    "plan/checkpoints": Checkpoint,
    "answers/checkpoint-MOMENT": AnswerRow,
    "events/leg-LEG-ACTOR-NUMBER": EventRow,
}
