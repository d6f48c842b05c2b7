"""The journal of a live drill: its events in chronological order, one JSON object per line.

Each kind of entry is a frozen dataclass, named in the file by the tag ``kind``. The file is append-only, and an
incomplete last line is ignored.
"""

import json
import math
import os
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar, TypeVar

from ray_backfill.core.secrets import cleaned
from ray_backfill.core.stages import make_folder, sync, write_whole
from ray_backfill.core.store_path import in_store


@dataclass(frozen=True)
class JournalEntry:
    """Base class of all entries."""

    kind: ClassVar[str]
    elapsed_s: float
    """Seconds since the drill began, over all its drivers, without the time to start up."""


@dataclass(frozen=True)
class Started(JournalEntry):
    """A driver has started its shards and its traffic.

    leg: number of the driver, from 0. warm_up_s: duration of the warm-up of its traffic. models: by column, if stated.
    """

    kind = "started"
    leg: int
    warm_up_s: float
    models: dict[str, str] = field(default_factory=dict)


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


def _line(entry: JournalEntry) -> bytes:
    return json.dumps(cleaned({"kind": entry.kind} | vars(entry))).encode() + b"\n"


class Journal:
    """The journal file in the folder of a drill."""

    def __init__(self, drill: Path) -> None:
        self.path = drill / "journal.jsonl"
        # In a store: what is there, as objects cannot be appended to. The throttle adds entries, too.
        self._there: bytes | None = None
        self._adding = threading.Lock()

    def entries(self) -> list[JournalEntry]:
        """Return all entries before the first that cannot be read, such as an incomplete last line.

        Cost: one read of the file.
        """
        entries: list[JournalEntry] = []
        content = b""
        with suppress(FileNotFoundError):
            content = self.path.read_bytes()
        for line in filter(None, content.split(b"\n")[:-1]):
            try:
                entry = json.loads(line)
                entries.append(_BY_KIND[entry.pop("kind")](**entry))
            except (ValueError, LookupError, TypeError, AttributeError):  # a disk has damaged it
                break
        return entries

    def add(self, entry: JournalEntry) -> None:
        """Append an entry; it is on disk when this returns. In a store, one journal of a drill at a time adds."""
        if in_store(self.path):
            with self._adding:
                if self._there is None:
                    self._there = b"".join(map(_line, self.entries()))
                self.path.write_bytes(self._there + _line(entry))
                self._there += _line(entry)
            return
        is_new = not self.path.exists()
        make_folder(self.path.parent)
        with self.path.open("ab") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync(self.path.parent)

    def mend(self, measured: Collection[int]) -> float:
        """Keep the entries before the first that cannot be read, or that is a checkpoint whose answers are lost.

        measured: the moments whose answers are there. Returns: until which second of the drill its events count.
        """
        entries = self.entries()
        lost = (isinstance(e, CheckpointMeasured) and e.moment not in measured for e in entries)
        kept = entries[: next((place for place, is_lost in enumerate(lost) if is_lost), len(entries))]
        lines = [_line(entry) for entry in kept]
        if not self.path.exists() or self.path.read_bytes() == b"".join(lines):
            return math.inf if kept else 0.0
        write_whole(self.path, lambda temporary: temporary.write_bytes(b"".join(lines)))
        is_cut_short = len(kept) < len(entries)
        return (kept[-1].elapsed_s if is_cut_short else math.inf) if kept else 0.0

    def applied(self) -> int:
        """Return the number of operations that all shards have applied."""
        return max((entry.applied for entry in of_type(self.entries(), Applied)), default=0)
