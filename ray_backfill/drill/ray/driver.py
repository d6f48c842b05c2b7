"""The driver of a drill: embeds, stores and applies items while queries are served, and measures at checkpoints.

All progress is written to disk at once (the journal, the answers at checkpoints, the events of the traffic), so that a
new driver can continue after one that was killed.
"""

import math
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import ray

from ray_backfill.core.progress import say, step, task
from ray_backfill.drill import journal
from ray_backfill.drill.jobs import LiveJob
from ray_backfill.drill.plan import Operation
from ray_backfill.drill.ray import watch
from ray_backfill.drill.ray.embedding import EmbeddingSupervisor, PartReports
from ray_backfill.drill.ray.shards import REMEDY, ShardSet, shards_need
from ray_backfill.drill.ray.traffic import Traffic
from ray_backfill.drill.results import live_quality, only_alive
from ray_backfill.drill.settings import ThrottleSettings
from ray_backfill.drill.shard import ShardSize, write_answers
from ray_backfill.drill.tables import Checkpoint
from ray_backfill.drill.throttle import P99Controller
from ray_backfill.drill.traffic import Sender, read_events
from ray_backfill.workers.settings import number_of
from ray_backfill.workers.waiting import Deaths, Room
from ray_backfill.workers.watch import Watch

# Seconds between two adjustments of the rate.
_CONTROL_S = 3.0
# Seconds that an adjustment may take to end.
_STOP_S = 20.0


def run_drill(job: LiveJob) -> None:
    """Run the rest of the plan on a connected Ray; returns when every operation is applied and measured.

    Writes ``journal.jsonl``, ``parts``, ``answers`` and ``events`` to the drill's folder.

    Raises:
        RuntimeError: a shard did not come back, or an answer violated an invariant.
    """
    entries = journal.Journal(job.folder).entries()
    measured = {entry.moment for entry in journal.of_type(entries, journal.CheckpointMeasured)}
    driver = Driver(job)
    try:
        with driver.embedding.running(job.plan) as reports:
            with task("start shards"):
                driver.start()
            with step("serve before the backfill"):
                quiet_s = 0.0 if measured else job.settings.quiet_s
                driver.traffic.rest(job.settings.traffic.warm_up_s + quiet_s)
            _backfill(driver, reports, measured)
        with step("serve after the backfill"):
            driver.traffic.rest(job.settings.quiet_s)
        driver.embedding.check_parts(job.plan)
        ended_s = driver.recorder.now_s()
        driver.traffic.stop()  # its last events are on the disk before the journal says that this is all
        driver.recorder.journal.add(journal.Finished(ended_s))
    finally:
        driver.close()


def _backfill(driver: "Driver", reports: PartReports, measured: set[int]) -> None:
    """Apply the operations in order as their embeddings arrive, and measure at every checkpoint."""
    plan, done = driver.job.plan, driver.recorder.journal.applied()
    total = sum(len(o.positions) for o in plan.operations if o.kind == "backfill")
    before = sum(len(o.positions) for o in plan.operations[:done] if o.kind == "backfill")
    driver.embedding.set_rate(driver.job.settings.throttle.limit)  # they begin
    driver.throttle.start()
    with task("backfill", total, "items", done=before) as bar:
        for checkpoint in plan.checkpoints:
            for operation in plan.operations[done : checkpoint.applied]:
                if operation.has_vectors:
                    reports.wait_for(operation.number, partial(driver.look_after, operation.number))
                driver.apply(operation)
                if operation.kind == "backfill":
                    bar.advance(len(operation.positions))
            done = max(done, checkpoint.applied)
            if checkpoint.moment not in measured:
                say(driver.measure(checkpoint))


class Driver:
    """The running parts of a drill, and the steps that involve several of them."""

    def __init__(self, job: LiveJob) -> None:
        self.job = job
        self.recorder = recorder = Recorder(job.name, job.folder)
        actors = job.embed.actors
        needs = shards_need(job.shards, job.settings.shards, actors.gpus)
        needs["CPU"] += number_of(actors) * actors.cpus  # without others that decode, actors do
        self.room = Room("the shards and embedding actors", needs, REMEDY)  # Ray starts them again elsewhere
        self.deaths = Deaths()
        self.embedding = EmbeddingSupervisor(job.embed, job.settings.throttle, recorder.incident)
        self.shards = ShardSet(job, self.embedding.make_again, recorder.incident)
        self.traffic = Traffic(job, recorder.leg, self.shards.router, self._traffic_restarted)
        self.throttle = ThrottleLoop(job.settings.throttle, self.embedding, self.traffic, recorder)

    def start(self) -> None:
        """Returns when shards and embedding actors are ready and the traffic has started.

        All start before the traffic does: on the same cores, their start would make queries wait for seconds.
        """
        recorder, applied = self.recorder, self.recorder.journal.applied()
        self.shards.apply(applied)
        for operation in self.job.plan.embedded:
            if operation.number < applied:
                self.embedding.note_broken(operation.number)
        self.embedding.wait_until_started(self.room)
        self.traffic.wait_until_ready()
        zero = recorder.start_clock()
        recorder.journal.add(journal.Started(recorder.now_s(), recorder.leg, self.traffic.warm_up_s, self.job.models))
        if recorder.leg:
            recorder.incident("driver restarted", f"{applied} operations were applied before")
        self.traffic.start(zero)

    def apply(self, operation: Operation) -> None:
        """Apply an operation and all before it on every shard, with retries, and record it."""
        size = self.shards.apply(operation.number + 1)
        lost = self.embedding.note_broken(operation.number) if operation.has_vectors else 0
        self.recorder.applied(operation, len(operation.positions) - lost, size)
        self._look_after_actors()

    def look_after(self, applied: int) -> None:
        """Bring restarted shards up to date; record other restarted actors, and raise errors of the traffic."""
        self.room()
        self.shards.apply(applied)
        self._look_after_actors()

    def _look_after_actors(self) -> None:
        self._tell_dead_nodes()
        self.embedding.look_after()
        self.traffic.look_after()

    def _traffic_restarted(self, sender: Sender) -> None:
        self._tell_dead_nodes()  # the cause first
        self.recorder.traffic_restarted(sender)

    def _tell_dead_nodes(self) -> None:
        for node in self.deaths.new():
            self.recorder.incident("node died", str(node))

    def measure(self, checkpoint: Checkpoint) -> str:
        """Run every evaluation query, store the answers, and return the quality as one line of text."""
        recorder, questions = self.recorder, self.job.questions
        began_s = recorder.now_s()
        answers = self.shards.answers(checkpoint, questions)
        write_answers(self.job.folder, checkpoint.moment, answers)
        state = self.job.plan.state(checkpoint.applied, self.embedding.broken)
        quality = live_quality(answers.item, only_alive(questions.truth, state), questions.metrics)
        size = self.shards.apply(checkpoint.applied)
        for metric, value in quality.items():
            recorder.watch.set(watch.QUALITY, value, metric)
        sizes = size.old_items, size.new_items, size.old_bytes, size.new_bytes
        recorder.journal.add(journal.CheckpointMeasured(recorder.now_s(), checkpoint.moment, began_s, quality, *sizes))
        named = ", ".join(f"{metric} {100 * value:.1f} %" for metric, value in quality.items())
        phase = " after the rollback" if checkpoint.phase == "rollback" else ""
        return f"t = {checkpoint.t:.2f}{phase}: {named}"

    def close(self) -> None:
        """Stop everything that this driver has started."""
        self.throttle.close()
        self.recorder.watch.close()
        self.traffic.close()
        self.shards.close()
        self.embedding.close()


class Recorder:
    """The journal, clock and metrics of a drill. leg: number of this driver within the drill, from 0.

    The clock continues from the last recorded time of the previous driver; start-up time does not count.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.journal, self.watch = journal.Journal(folder), Watch(watch.METRICS, {"drill": name})
        entries = self.journal.entries()
        self.leg = len(journal.of_type(entries, journal.Started))
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
        self.journal.add(journal.Incident(self.now_s(), what, detail))
        self.watch.count(watch.INCIDENTS, 1, what)

    def traffic_restarted(self, sender: Sender) -> None:
        """Record that another incarnation of a traffic actor sends from now on."""
        self.journal.add(journal.TrafficRestarted(self.now_s(), sender.leg, sender.actor, sender.incarnation))
        self.incident("traffic actor restarted", f"actor {sender.actor}")

    def applied(self, operation: Operation, items: int, size: ShardSize) -> None:
        """Record an operation applied by all shards. items: number of items moved. size: of all shards together."""
        self.journal.add(journal.Applied(self.now_s(), operation.number + 1, operation.kind, items))
        self.watch.set(watch.PROGRESS, size.new_items / max(size.old_items + size.new_items, 1))
        for side in ("old", "new"):
            self.watch.set(watch.PARTITION_ITEMS, getattr(size, f"{side}_items"), side)
            self.watch.set(watch.PARTITION_BYTES, getattr(size, f"{side}_bytes"), side)
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
            self.journal.add(journal.Throttled(self.now_s(), round(items_per_s, 1), p99_ms))


class ThrottleLoop:
    """Sets the embedding rate from the traffic's latency every few seconds."""

    def __init__(
        self, settings: ThrottleSettings, embedding: EmbeddingSupervisor, traffic: Traffic, recorder: Recorder
    ) -> None:
        self.controller = P99Controller(settings)
        self.embedding, self.traffic, self.recorder = embedding, traffic, recorder
        self.reserved = 0
        self.ended, self.thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Run until ``close``, if the settings have a target."""
        if self.controller.settings.p99_ms:
            self.thread.start()

    def step(self) -> None:
        """Measure the latency once and set the rate accordingly."""
        latencies_ms, reserved = self.traffic.recent_ms(_CONTROL_S), self.embedding.reserved()
        p99_ms = float(np.quantile(latencies_ms, 0.99)) if latencies_ms else None
        rate = self.controller.update(p99_ms, (reserved - self.reserved) / _CONTROL_S)
        self.reserved = reserved
        self.embedding.set_rate(rate)
        self.recorder.throttled(rate, p99_ms)

    def close(self) -> None:
        """Returns when the loop calls Ray no more: a call while Ray is shut down ends the process by SIGSEGV."""
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join(_STOP_S)

    def _run(self) -> None:
        while not self.ended.wait(_CONTROL_S):
            try:
                self.step()
            except ray.exceptions.RayError:
                continue  # an actor died, or the drill ends
