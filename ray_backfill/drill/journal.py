"""The journal of a live drill: its events in chronological order, one JSON object per line.

Each kind of entry is a frozen dataclass, named in the file by the tag ``kind``. The file is append-only, and an
incomplete last line is ignored.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, TypeVar

from ray_backfill.core.secrets import cleaned


@dataclass(frozen=True)
class JournalEntry:
    """Base class of all entries."""

    kind: ClassVar[str]
    elapsed_s: float
    """Seconds since the drill began, over all its drivers, without the time to start up."""


@dataclass(frozen=True)
class Started(JournalEntry):
    """A driver has started its shards and its traffic.

    leg: number of the driver, from 0. warm_up_s: duration of the warm-up of its traffic.
    """

    kind = "started"
    leg: int
    warm_up_s: float


@dataclass(frozen=True)
class Applied(JournalEntry):
    """All shards have applied the next operation.

    applied: number of operations so far. operation: kind of this one. items: number of items that it moved.
    """

    kind = "applied"
    applied: int
    operation: str
    items: int


@dataclass(frozen=True)
class CheckpointMeasured(JournalEntry):
    """The answers of a checkpoint are on disk.

    began_s: start of the measurement. quality: value of each metric for the live answers.
    """

    kind = "checkpoint"
    moment: int
    began_s: float
    quality: dict[str, float]
    old_items: int
    new_items: int
    old_bytes: int
    new_bytes: int


@dataclass(frozen=True)
class Throttled(JournalEntry):
    """The throttle has set the rate of the backfill.

    p99_ms: latency of the preceding queries, if there were any.
    """

    kind = "throttle"
    items_per_s: float
    p99_ms: float | None


@dataclass(frozen=True)
class Incident(JournalEntry):
    """Something failed, and the drill continued."""

    kind = "incident"
    what: str
    detail: str


@dataclass(frozen=True)
class TrafficRestarted(JournalEntry):
    """A traffic actor died, and another incarnation of it takes over; later events of earlier ones do not count.

    leg: number of the driver. actor: number of the actor. incarnation: number of the new one, from 1.
    """

    kind = "traffic_restarted"
    leg: int
    actor: int
    incarnation: int


@dataclass(frozen=True)
class Finished(JournalEntry):
    """The whole plan has been applied and measured."""

    kind = "finished"


ENTRIES = (Started, Applied, CheckpointMeasured, Throttled, Incident, TrafficRestarted, Finished)
_BY_KIND = {entry.kind: entry for entry in ENTRIES}
EntryT = TypeVar("EntryT", bound=JournalEntry)


def of_type(entries: Sequence[JournalEntry], wanted: type[EntryT]) -> list[EntryT]:
    """Return the entries of one kind."""
    return [entry for entry in entries if isinstance(entry, wanted)]


def describe_entries() -> str:
    """Return the kinds of entries as a Markdown table, for docs/results-format.md."""
    meaning = {entry: " ".join((entry.__doc__ or "").split()) for entry in ENTRIES}
    lines = [f"| `{e.kind}` | {', '.join(f.name for f in fields(e))} | {meaning[e]} |" for e in ENTRIES]
    return "\n".join(["| kind | fields | meaning |", "|---|---|---|", *lines])


class Journal:
    """The journal file in the folder of a drill."""

    def __init__(self, drill: Path) -> None:
        self.path = drill / "journal.jsonl"

    def entries(self) -> list[JournalEntry]:
        """Return all complete entries. Cost: one read of the file."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]  # without an incomplete last line
        found = [json.loads(line) for line in lines if line]
        return [_BY_KIND[entry.pop("kind")](**entry) for entry in found]

    def add(self, entry: JournalEntry) -> None:
        """Append an entry; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps(cleaned({"kind": entry.kind} | vars(entry))).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Remove an incomplete last line, so that the next entry starts on a new line."""
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")[0]
            os.truncate(self.path, len(whole) + 1 if whole else 0)

    def applied(self) -> int:
        """Return the number of operations that all shards have applied."""
        return max((entry.applied for entry in of_type(self.entries(), Applied)), default=0)
