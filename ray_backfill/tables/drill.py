"""The tables of a live drill: what it writes as it goes (plan, answers, events), and what its report reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

# The plan of a drill.


@dataclass(frozen=True)
class ItemRow:
    """An item of plan/items.parquet, in the order of the backfill; those that are inserted later come last."""

    position: Annotated[int, "of the item in the gallery's table"]
    is_held_back: Annotated[bool, "it is not there at the start"]


@dataclass(frozen=True)
class OperationRow:
    """An operation of plan/operations.parquet, in their order."""

    kind: Annotated[str, "`backfill`, `insert`, `delete` or `rollback`"]


@dataclass(frozen=True)
class StepRow:
    """An item of an operation in plan/steps.parquet."""

    operation: Annotated[int, "number of the operation, from 0"]
    position: Annotated[int, "of an item that it concerns"]


@dataclass(frozen=True)
class Checkpoint:
    """A line of plan/checkpoints.parquet: quality is measured when the first ``applied`` operations are done."""

    moment: Annotated[int, "number of the checkpoint, from 0"]
    applied: Annotated[int, "operations that are done by then"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    phase: Annotated[str, "`backfill` or `rollback`"] = "backfill"


# What users asked and got.


@dataclass(frozen=True)
class EventRow:
    """A request of the traffic."""

    scheduled_s: Annotated[float, "when it was due, since the drill began"]
    latency_ms: Annotated[float, "from then to the answer, or to giving up"]
    queries: Annotated[int, "in the request"]
    is_answered: Annotated[bool, "before its deadline"]
    is_warm_up: Annotated[bool, "no latency or rate counts it"]
    retries: Annotated[int, "how often a shard was asked again"]
    violations: Annotated[int, "what cannot be true of the answer"]
    applied_least: Annotated[int, "the fewest and the most operations that a shard had applied; -1: no answer"]
    applied_most: int
    old_items: Annotated[int, "in both partitions of all shards together; -1: no answer"]
    new_items: int


@dataclass(frozen=True)
class AnswerRow:
    """The live answer to a query at a checkpoint, best item first."""

    position: Annotated[list[int], "of the items; -1 where there are no more"]
    distance: Annotated[list[float], "by the system that serves the item"]
    is_new: Annotated[list[float], "1: the new partition serves it"]


# What the report reads.


@dataclass(frozen=True)
class ItemCounts:
    """Where the items are at a checkpoint."""

    moment: Annotated[int, "number of the checkpoint, from 0"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    phase: Annotated[str, "`backfill` or `rollback`"]
    backfilled: Annotated[int, "items so far"]
    old_items: Annotated[int, "in each partition; their sum is the gallery"]
    new_items: int
    kept_old: Annotated[int, "items so far whose image could not be read, so that they keep the old embedding"]
    inserted: Annotated[int, "items so far"]
    deleted: int
    old_bytes: Annotated[int, "memory of vectors, codes and graphs"]
    new_bytes: int
    elapsed_s: Annotated[float, "when it had been measured"]


@dataclass(frozen=True)
class ServedQueries:
    """What users saw since the checkpoint before."""

    queries: Annotated[int, "answered"]
    unanswered: Annotated[int, "not answered by their deadline"]
    retried: Annotated[int, "how often a shard was asked again"]
    violations: Annotated[int, "answers that cannot be true (0)"]
    queries_per_s: Annotated[float, "answered; NaN without traffic"]
    p50_ms: Annotated[float, "quantiles of the latency; NaN without traffic"]
    p95_ms: float
    p99_ms: float
    items_per_s: Annotated[float, "of the backfill; NaN at the first checkpoint"]


@dataclass(frozen=True)
class CheckpointRow(ServedQueries, ItemCounts):  # Python takes the fields of the last base first
    """A checkpoint. ItemCounts of queries, rates and latencies are of the time since the one before."""

    old_recall: Annotated[
        float,
        "of the exact answers' items of that partition, the share that the live answers have; NaN if there is none",
    ]
    new_recall: float

    @property
    def items(self) -> int:
        """The gallery as the two partitions serve it."""
        return self.old_items + self.new_items

    @property
    def is_rollback(self) -> bool:
        """Whether it was measured after the rollback."""
        return self.phase == "rollback"


@dataclass(frozen=True)
class QualityRow:
    """A metric at a checkpoint."""

    moment: Annotated[int, "number of the checkpoint"]
    t: Annotated[float, "share of the plan's items that are backfilled"]
    metric: Annotated[str, "as typed"]
    live: Annotated[float, "of the answers at the checkpoint"]
    exact: Annotated[float, "what exact indexes give for the gallery as it was then: the replay engine's answer"]


@dataclass(frozen=True)
class ReplayedRow:
    """A point of a replayed curve."""

    metric: Annotated[str, "as typed"]
    t: Annotated[float, "share of the gallery that is backfilled"]
    value: Annotated[float, "of the metric"]
    serving: Annotated[str, "`backfill` (the curve that was promised), `old` or `new` (that model alone)"]


@dataclass(frozen=True)
class SecondRow:
    """A second of the drill."""

    elapsed_s: Annotated[int, "when it began"]
    queries: Annotated[int, "that were due in it and were answered; warm-ups are not counted"]
    unanswered: Annotated[int, "that were due in it and were not answered by their deadline"]
    p50_ms: Annotated[float, "quantiles of the latency; NaN if no query was due"]
    p99_ms: float
    items: Annotated[int, "backfilled"]
    is_measuring: Annotated[bool, "a checkpoint was being measured"]
    is_warm_up: Annotated[bool, "the traffic of a driver was warming up"]
    leg: Annotated[int, "which driver ran, from 0"]


@dataclass(frozen=True, order=True)
class IncidentRow:
    """Something that went wrong, an item whose image could not be read, or the rollback."""

    elapsed_s: Annotated[float, "when"]
    kind: Annotated[str, "what"]
    detail: Annotated[str, "to whom, or why"]


@dataclass(frozen=True, kw_only=True)
class DrillFacts:
    """What manifest.json says about a drill beside its settings. The defaults are of a manifest that does not say it.

    glossary: the words that a page needs for this merge. primary_metric: by which the drill is judged. is_exact: both
    indexes search exactly. has_churn: items were inserted or deleted. legs: how many drivers it took.
    """

    kind: str = "live"
    command: str = ""
    created: str = ""
    method: str = ""
    title: str = ""
    order: str = ""
    merge: str = ""
    glossary: Mapping[str, str] = field(default_factory=dict)
    primary_metric: str
    metrics: tuple[str, ...] = ()
    distance: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    is_exact: bool = False
    has_churn: bool = False
    rolled_back: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    legs: int = 1


def facts_of(manifest: Mapping[str, Any]) -> DrillFacts:
    """The facts among the keys of a manifest."""
    return DrillFacts(**{f.name: manifest[f.name] for f in fields(DrillFacts) if f.name in manifest})


# File in RUN/live, without its ending -> the type of its rows.
TABLES: Mapping[str, type] = {
    "checkpoints": CheckpointRow,
    "quality": QualityRow,
    "replayed": ReplayedRow,
    "timeline": SecondRow,
    "incidents": IncidentRow,
    "plan/items": ItemRow,
    "plan/operations": OperationRow,
    "plan/steps": StepRow,
    "plan/checkpoints": Checkpoint,
    "answers/checkpoint-MOMENT": AnswerRow,
    "events/leg-LEG-ACTOR-NUMBER": EventRow,
}
