"""Records the events of a drill in its journal and its metrics."""

import math
import time
from pathlib import Path

from ray_backfill.drill.events import Sender, read_events
from ray_backfill.drill.journal import Applied, Incident, Journal, Started, Throttled, TrafficRestarted, of_type
from ray_backfill.drill.operations import Operation
from ray_backfill.drill.ray import watch
from ray_backfill.drill.shard import ShardSize


class Recorder:
    """The journal, clock and metrics of a drill. leg: number of this driver within the drill, from 0.

    The clock continues from the last recorded time of the previous driver; start-up time does not count.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.journal, self.watch = Journal(folder), watch.Watch(name)
        entries = self.journal.entries()
        self.leg = len(of_type(entries, Started))
        self.before_s = max([e.elapsed_s for e in entries] + read_events(folder).scheduled_s.tolist(), default=0.0)
        self.zero: float | None = None
        self.last_applied: float | None = None

    def start_clock(self) -> float:
        """Start the clock; returns the ``time.time`` at which the drill would have begun without interruptions."""
        self.zero = time.time() - self.before_s
        return self.zero

    def now_s(self) -> float:
        """Seconds since the drill began."""
        return round(self.before_s if self.zero is None else time.time() - self.zero, 3)

    def incident(self, what: str, detail: str) -> None:
        """Record a fault that the drill survives."""
        self.journal.add(Incident(self.now_s(), what, detail))
        self.watch.count(watch.INCIDENTS, 1, what)

    def traffic_restarted(self, sender: Sender) -> None:
        """Record that another incarnation of a traffic actor sends from now on."""
        self.journal.add(TrafficRestarted(self.now_s(), sender.leg, sender.actor, sender.incarnation))
        self.incident("traffic actor restarted", f"actor {sender.actor}")

    def applied(self, operation: Operation, items: int, size: ShardSize) -> None:
        """Record an operation applied by all shards. items: number of items moved. size: of all shards together."""
        self.journal.add(Applied(self.now_s(), operation.number + 1, operation.kind, items))
        self.watch.set(watch.PROGRESS, size.new_items / max(size.old_items + size.new_items, 1))
        for side, n_items, n_bytes in (
            ("old", size.old_items, size.old_bytes),
            ("new", size.new_items, size.new_bytes),
        ):
            self.watch.set(watch.PARTITION_ITEMS, n_items, side)
            self.watch.set(watch.PARTITION_BYTES, n_bytes, side)
        if operation.kind == "backfill" and items:
            now = time.monotonic()
            self.watch.count(watch.ITEMS, items)
            if self.last_applied is not None:
                self.watch.set(watch.RATE, items / max(now - self.last_applied, 1e-9))
            self.last_applied = now

    def throttled(self, items_per_s: float, p99_ms: float | None) -> None:
        """Record the rate that the throttle allows at this latency; infinite means no limit."""
        self.watch.set(watch.THROTTLE, items_per_s)
        if math.isfinite(items_per_s):
            self.journal.add(Throttled(self.now_s(), round(items_per_s, 1), p99_ms))
