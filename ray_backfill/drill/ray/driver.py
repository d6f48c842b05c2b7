"""The driver of a drill: embeds, stores and applies items while queries are served, and measures at checkpoints.

All progress is written to disk at once (the journal, the answers at checkpoints, the events of the traffic), so that a
new driver can continue after one that was killed.
"""

from functools import partial

from ray_backfill.core.progress import say, step, task
from ray_backfill.drill.answers import write_answers
from ray_backfill.drill.events import Sender
from ray_backfill.drill.journal import CheckpointMeasured, Finished, Journal, Started, of_type
from ray_backfill.drill.operations import Operation
from ray_backfill.drill.quality import live_quality, only_alive
from ray_backfill.drill.ray.job import DrillJob
from ray_backfill.drill.ray.recorder import Recorder
from ray_backfill.drill.ray.shard_set import ShardSet
from ray_backfill.drill.ray.shards import shards_need
from ray_backfill.drill.ray.supervisor import EmbeddingSupervisor
from ray_backfill.drill.ray.throttling import ThrottleLoop
from ray_backfill.drill.ray.traffic import Traffic
from ray_backfill.drill.ray.watch import QUALITY, write_targets
from ray_backfill.drill.tables import Checkpoint
from ray_backfill.workers.nodes import Deaths
from ray_backfill.workers.waiting import Room


def run_drill(job: DrillJob) -> None:
    """Run the rest of the plan on a connected Ray; returns when every operation is applied and measured.

    Writes ``journal.jsonl``, ``parts``, ``answers`` and ``events`` to the drill's folder.

    Raises:
        RuntimeError: a shard did not come back, or an answer violated an invariant.
    """
    write_targets(job.folder / "prometheus_targets.json")
    journal = Journal(job.folder)
    journal.mend()
    entries = journal.entries()
    if of_type(entries, Finished):
        return
    driver = Driver(job)
    try:
        with task("start shards"):
            driver.start()
        if not entries:
            with step("serve before the backfill"):
                driver.traffic.rest(job.settings.traffic.warm_up_s + job.settings.quiet_s)
        _backfill(driver, {entry.moment for entry in of_type(entries, CheckpointMeasured)})
        with step("serve after the backfill"):
            driver.traffic.rest(job.settings.quiet_s)
        driver.embedding.check_parts(job.plan)
        driver.recorder.journal.add(Finished(driver.recorder.now_s()))
        driver.traffic.stop()
    finally:
        driver.close()


def _backfill(driver: "Driver", measured: set[int]) -> None:
    """Apply the operations in order as their embeddings arrive, and measure at every checkpoint."""
    plan, done = driver.job.plan, driver.recorder.journal.applied()
    total = sum(len(o.positions) for o in plan.operations if o.kind == "backfill")
    before = sum(len(o.positions) for o in plan.operations[:done] if o.kind == "backfill")
    with (
        driver.embedding.running(plan) as arrivals,
        task("backfill", total, "items", done=before) as bar,
    ):
        for checkpoint in plan.checkpoints:
            for operation in plan.operations[done : checkpoint.applied]:
                if operation.has_vectors:
                    arrivals.wait_for(operation.number, partial(driver.look_after, operation.number))
                driver.apply(operation)
                if operation.kind == "backfill":
                    bar.advance(len(operation.positions))
            done = max(done, checkpoint.applied)
            if checkpoint.moment not in measured:
                say(driver.measure(checkpoint))


def _room(job: DrillJob) -> Room:
    """Whether the shards and the embedding actors, which Ray starts again elsewhere, still have room."""
    needs, actors = shards_need(job.shards, job.settings.shards), job.embed.actors
    needs["CPU"] += actors.number * actors.cpus
    return Room("the shards and embedding actors", needs, "start nodes again; the same command continues the drill")


class Driver:
    """The running parts of a drill, and the steps that involve several of them."""

    def __init__(self, job: DrillJob) -> None:
        self.job = job
        self.recorder = recorder = Recorder(job.name, job.folder)
        self.deaths, self.room = Deaths(), _room(job)
        self.embedding = EmbeddingSupervisor(job.embed, job.settings.throttle, recorder.incident)
        self.shards = ShardSet(job, self.embedding.make_again, recorder.incident)
        self.traffic = Traffic(job, recorder.leg, self.shards.router, self._traffic_restarted)
        self.throttle = ThrottleLoop(job.settings.throttle, self.embedding, self.traffic, recorder)

    def start(self) -> None:
        """Returns when all shards are ready and the traffic has started."""
        recorder, applied = self.recorder, self.recorder.journal.applied()
        self.shards.apply(applied)
        for operation in self.job.plan.operations[:applied]:
            if operation.has_vectors:
                self.embedding.note_broken(operation.number)
        self.traffic.wait_until_ready()
        zero = recorder.start_clock()
        recorder.journal.add(Started(recorder.now_s(), recorder.leg, self.traffic.warm_up_s))
        if recorder.leg:
            recorder.incident("driver restarted", f"{applied} operations were applied before")
        self.traffic.start(zero)
        self.throttle.start()

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
        quality = live_quality(answers.position, only_alive(questions.truth, state), questions.metrics)
        size = self.shards.apply(checkpoint.applied)
        for metric, value in quality.items():
            recorder.watch.set(QUALITY, value, metric)
        recorder.journal.add(
            CheckpointMeasured(
                recorder.now_s(), checkpoint.moment, began_s, quality,
                size.old_items, size.new_items, size.old_bytes, size.new_bytes,
            )
        )  # fmt: skip
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
