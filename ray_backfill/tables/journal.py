"""The journal of a live drill: what has happened, a JSON object a line, in the order in which it happened.

A kind of entry is a frozen dataclass; its name in the file is the tag ``kind``. The file only grows, and a half-written
last line counts as never written.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True)
class Entry:
    """elapsed_s: seconds since the drill began, over all its drivers; starting up is not on the clock."""

    kind: ClassVar[str]
    elapsed_s: float


@dataclass(frozen=True)
class Started(Entry):
    """A driver has its shards and its traffic. leg: which driver it is, from 0. warm_up_s: of its traffic."""

    kind = "started"
    leg: int
    warm_up_s: float


@dataclass(frozen=True)
class Applied(Entry):
    """All shards have applied one more operation. applied: how many now. operation: its kind. items: that it moved."""

    kind = "applied"
    applied: int
    operation: str
    items: int


@dataclass(frozen=True)
class CheckpointMeasured(Entry):
    """The answers of a checkpoint are on disk. began_s: when measuring began. quality: by metric, of live answers."""

    kind = "checkpoint"
    moment: int
    began_s: float
    quality: dict[str, float]
    old_items: int
    new_items: int
    old_bytes: int
    new_bytes: int


@dataclass(frozen=True)
class Throttled(Entry):
    """The throttle has set the rate of the backfill. p99_ms: of the queries before that, if there were any."""

    kind = "throttle"
    items_per_s: float
    p99_ms: float | None


@dataclass(frozen=True)
class Incident(Entry):
    """Something went wrong, and the drill went on."""

    kind = "incident"
    what: str
    detail: str


@dataclass(frozen=True)
class Finished(Entry):
    """All of the plan is applied and measured."""

    kind = "finished"


ENTRIES = (Started, Applied, CheckpointMeasured, Throttled, Incident, Finished)
EntryT = TypeVar("EntryT", bound=Entry)


def of_type(entries: Sequence[Entry], wanted: type[EntryT]) -> list[EntryT]:
    """The entries of one kind."""
    return [entry for entry in entries if isinstance(entry, wanted)]


def describe_entries() -> str:
    """The kinds of entries as a Markdown table, for docs/results-format.md."""
    lines = [f"| `{e.kind}` | {', '.join(f.name for f in fields(e))} | {e.__doc__} |" for e in ENTRIES]
    return "\n".join(["| kind | holds | meaning |", "|---|---|---|", *lines])


class Journal:
    """The journal in the folder of a drill."""

    def __init__(self, drill: Path) -> None:
        self.path = drill / "journal.jsonl"

    def entries(self) -> list[Entry]:
        """All entries that were written whole. Cost: one read of the file."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [
            _parsed(json.loads(line)) for line in lines[:-1] if line
        ]  # what follows the last line end is half a line

    def add(self, entry: Entry) -> None:
        """Append an entry; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps({"kind": entry.kind} | vars(entry)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Cut half a line off the end, so that the next entry starts on a line of its own."""
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")[0]
            os.truncate(self.path, len(whole) + 1 if whole else 0)

    def applied(self) -> int:
        """How many operations all shards have applied."""
        return max((entry.applied for entry in of_type(self.entries(), Applied)), default=0)


def _parsed(line: dict[str, Any]) -> Entry:
    (wanted,) = (entry for entry in ENTRIES if entry.kind == line["kind"])
    return wanted(**{name: value for name, value in line.items() if name != "kind"})
