"""The running parts of a drill, and what its driver asks of them: shards, traffic, the pace of the embedding."""

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.actor import ActorHandle

from ray_backfill.cluster.drill.embedding import EmbedJob, Pacer, embed_again
from ray_backfill.cluster.drill.router import Router, UnansweredError
from ray_backfill.cluster.drill.shards import ShardJob, start_shards
from ray_backfill.cluster.drill.traffic import TrafficJob, start_traffic
from ray_backfill.cluster.drill.watch import DriverWatch
from ray_backfill.cluster.embed import EmbedActors
from ray_backfill.live.answers import Answer
from ray_backfill.live.operations import Checkpoint, DrillPlan
from ray_backfill.live.parts import BadPartError, Journal, read_broken, read_part, set_aside
from ray_backfill.live.quality import live_quality, only_alive
from ray_backfill.live.settings import LiveSettings
from ray_backfill.live.shard import ShardSize
from ray_backfill.live.throttle import P99Controller
from ray_backfill.live.timeline import read_events
from ray_backfill.store import vector_column, write_parquet
from ray_backfill.systems import FloatArray, GroundTruth, IntArray

# Queries of a checkpoint that go to the shards together. Few: users ask at the same time.
_BATCH = 16
# How long the driver waits for a shard to come back before it gives the drill up.
_PATIENCE_S = 1800.0
# How often the embeddings of an operation are made before the driver gives up.
_ATTEMPTS = 3
# Between two looks at the latency, for a throttle with a target.
_CONTROL_S = 3.0


@dataclass(frozen=True)
class Drill:
    """All that is needed to run one. folder: on storage that all nodes share.

    edges: (S + 1) ranges of the shards. backward, forward: (Q, d) the queries as both systems see them. k: items that
    an answer needs for the metrics.
    """

    name: str
    folder: Path
    plan: DrillPlan
    shards: list[ShardJob]
    edges: list[int]
    embed: EmbedJob
    actors: EmbedActors
    backward: FloatArray
    forward: FloatArray
    truth: GroundTruth
    metrics: tuple[str, ...]
    k: int
    settings: LiveSettings

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "journal.jsonl")


class Service:
    """The running parts of a drill, and what the driver asks of them."""

    def __init__(self, drill: Drill, entries: list[dict[str, Any]]) -> None:
        self.drill, self.journal = drill, drill.journal
        self.leg = sum(entry["kind"] == "started" for entry in entries)
        # Time goes on where the last driver's ended, as far as is known; starting up is not on the clock.
        ends_s = [entry["elapsed_s"] for entry in entries] + read_events(drill.folder).scheduled_s.tolist()
        self.before_s = max(ends_s, default=0.0)
        self.zero: float | None = None
        self.sizes_PS = drill.plan.sizes(drill.edges)
        self.watch = DriverWatch(drill.name)
        self.shards = start_shards(drill.shards, drill.settings.shards)
        self.router = Router(self.shards, self.sizes_PS)
        self.pacer: ActorHandle = ray.remote(num_cpus=0)(Pacer).remote(drill.settings.throttle)
        self.traffic = self._start_traffic()
        self.running: list[Any] = []
        self.pids: dict[int, int] = {}
        self.broken: dict[int, IntArray] = {}
        self.embedders = 0
        self.made_again: Counter[int] = Counter()
        self.ended = threading.Event()
        self.last: float | None = None

    def start(self) -> None:
        """Returns when all shards are there and the traffic has begun."""
        self._applied_by_all(self.journal.applied())
        for operation in self.drill.plan.operations[: self.journal.applied()]:
            if operation.has_vectors:
                self._note_broken(operation.number)
        ray.get([actor.is_ready.remote() for actor in self.traffic])
        self.zero = time.time() - self.before_s
        self.note("started", leg=self.leg, warm_up_s=self.drill.settings.traffic.warm_up_s if self.traffic else 0.0)
        if self.leg:
            self.incident("driver restarted", f"{self.journal.applied()} operations were applied before")
        self.running = [actor.run.remote(self.zero) for actor in self.traffic]
        if self.drill.settings.throttle.p99_ms:
            threading.Thread(target=self._control, daemon=True).start()

    def _start_traffic(self) -> list[ActorHandle]:
        drill, settings = self.drill, self.drill.settings.traffic
        if not settings.rate_per_s:
            return []
        jobs = [
            TrafficJob(settings, i, drill.folder / "events", f"leg-{self.leg:03d}-{i:03d}", drill.k, drill.name)
            for i in range(settings.actors)
        ]
        return start_traffic(jobs, self.shards, self.sizes_PS, drill.backward, drill.forward)

    def elapsed_s(self) -> float:
        return self.before_s if self.zero is None else time.time() - self.zero

    def note(self, kind: str, **facts: Any) -> None:
        self.journal.add(kind, elapsed_s=round(self.elapsed_s(), 3), **facts)

    def incident(self, what: str, detail: str) -> None:
        self.note("incident", what=what, detail=detail)
        self.watch.incident(what)

    def rest(self, seconds: float) -> None:
        """Let the traffic run alone, if there is any."""
        if self.traffic:
            time.sleep(seconds)

    def check_parts(self) -> None:
        """Read all embeddings once more, and make again what cannot be read: whoever comes later needs them."""
        for operation in self.drill.plan.operations:
            if operation.has_vectors:
                try:
                    read_part(self.drill.embed.parts, operation)
                except BadPartError as error:
                    self._make_again(error)

    def apply(self, applied: int) -> None:
        """Have the first ``applied`` operations applied by every shard, whatever it takes, and write it down."""
        operation = self.drill.plan.operations[applied - 1]
        sizes = self._applied_by_all(applied)
        if operation.has_vectors:
            self._note_broken(operation.number)
        items = len(operation.positions) - len(self.broken.get(operation.number, ()))
        self.note("applied", applied=applied, operation=operation.kind, items=items)
        self._tell(items if operation.kind == "backfill" else 0, sizes)
        self._look_after_actors()

    def look_after(self, applied: int) -> None:
        """Shards that were started again have what they had; whoever else died is noted, or raised."""
        self._applied_by_all(applied)
        self._look_after_actors()

    def measure(self, checkpoint: Checkpoint) -> str:
        """Ask every query of the evaluation; keep the answers, and tell the quality in a line."""
        began_s = self.elapsed_s()
        answers = asyncio.run(self._ask_everything(checkpoint))
        path = self.drill.folder / "answers" / f"checkpoint-{checkpoint.moment:04d}.parquet"
        columns = {name: getattr(answers, name) for name in ("position", "distance", "is_new")}
        flags = columns.pop("is_new").astype(np.float32)
        lists = {"position": _lists(columns["position"]), "distance": vector_column(columns["distance"])}
        write_parquet(path, pa.table(lists | {"is_new": vector_column(flags)}))
        state = self.drill.plan.state(checkpoint.applied, self.broken)
        quality = live_quality(answers.position, only_alive(self.drill.truth, state), self.drill.metrics)
        sizes = self._applied_by_all(checkpoint.applied)
        for metric, value in quality.items():
            self.watch.quality(metric, value)
        self.note(
            "checkpoint",
            moment=checkpoint.moment,
            began_s=round(began_s, 3),
            quality=quality,
            **{name: sum(getattr(size, name) for size in sizes) for name in _SIZES},
        )
        named = ", ".join(f"{metric} {100 * value:.1f} %" for metric, value in quality.items())
        phase = " after the rollback" if checkpoint.phase == "rollback" else ""
        return f"t = {checkpoint.t:.2f}{phase}: {named}"

    def stop_traffic(self) -> None:
        """Returns when all that was sent is answered or given up, and all events are on disk."""
        for actor in self.traffic:
            actor.stop.remote()
        ray.get(self.running)

    def stop_embedding(self) -> None:
        """Embedding actors fail without the pacer, and the pipeline with them; one that has ended does not notice."""
        ray.kill(self.pacer)

    def close(self) -> None:
        self.ended.set()
        self.watch.close()
        for actor in (*self.traffic, *self.shards, self.pacer):
            ray.kill(actor)

    def _applied_by_all(self, applied: int) -> list[ShardSize]:
        sizes: dict[int, ShardSize] = {}
        until = time.monotonic() + _PATIENCE_S
        while len(sizes) < len(self.shards):
            waiting = {i: s.apply.remote(applied) for i, s in enumerate(self.shards) if i not in sizes}
            for shard, call in waiting.items():
                try:
                    sizes[shard], pid = ray.get(call)
                    self._know(shard, pid)
                except ray.exceptions.RayActorError as error:
                    if time.monotonic() > until or error.actor_init_failed:
                        raise RuntimeError(
                            f"shard {shard} cannot be started, or took over {_PATIENCE_S:g} s"
                        ) from error
                    time.sleep(0.1)
                except ray.exceptions.RayTaskError as error:
                    if not isinstance(error.cause, BadPartError):
                        raise
                    self._make_again(error.cause)
                    break  # the others may have met the same file: ask them again
        return [sizes[i] for i in range(len(self.shards))]

    def _know(self, shard: int, pid: int) -> None:
        if self.pids.get(shard, pid) != pid:
            self.incident("shard restarted", f"shard {shard}")
        self.pids[shard] = pid

    def _make_again(self, bad: BadPartError) -> None:
        self.made_again[bad.number] += 1
        if self.made_again[bad.number] > _ATTEMPTS:
            raise RuntimeError(f"made {_ATTEMPTS} times, and still: {bad.reason}") from bad
        self.incident("part made again", bad.reason)
        set_aside(self.drill.embed.parts, bad.number)
        embed_again(bad.number, self.drill.embed)
        self._note_broken(bad.number)

    def _note_broken(self, number: int) -> None:
        found = read_broken(self.drill.embed.parts, number)
        self.broken.pop(number, None)
        if len(found):
            self.broken[number] = found

    def _tell(self, items: int, sizes: list[ShardSize]) -> None:
        old, new = sum(s.old_items for s in sizes), sum(s.new_items for s in sizes)
        self.watch.progress(new / max(old + new, 1))
        self.watch.backfilled(items)
        now = time.monotonic()
        if items and self.last is not None:
            self.watch.rate(items / max(now - self.last, 1e-9))
        if items:
            self.last = now
        self.watch.partition("old", old, sum(s.old_bytes for s in sizes))
        self.watch.partition("new", new, sum(s.new_bytes for s in sizes))

    def _look_after_actors(self) -> None:
        """Notes embedding actors that were started again; raises what stopped the traffic, if anything did."""
        started = len(ray.get(self.pacer.started.remote()))
        expected = self.drill.actors.number
        for _ in range(max(self.embedders, expected), started):
            self.incident("embedding actor restarted", "Ray Data started another one")
        self.embedders = max(self.embedders, started)
        ray.get(ray.wait(self.running, num_returns=len(self.running), timeout=0)[0] if self.running else [])

    async def _ask_everything(self, checkpoint: Checkpoint) -> Answer:
        """The answers to all queries, every shard in the state of the checkpoint. One batch after the other."""
        drill = self.drill
        answers = [
            await self._ask(checkpoint, drill.backward[i : i + _BATCH], drill.forward[i : i + _BATCH])
            for i in range(0, len(drill.backward), _BATCH)
        ]
        return Answer(
            *(np.concatenate([getattr(answer, field.name) for answer in answers]) for field in fields(Answer))
        )

    async def _ask(self, checkpoint: Checkpoint, backward: FloatArray, forward: FloatArray) -> Answer:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                routed = await self.router.search(backward, forward, self.drill.k, _PATIENCE_S)
            except UnansweredError as error:
                raise RuntimeError(f"a shard did not come back within {_PATIENCE_S:g} s") from error
            if routed.violations:
                raise RuntimeError(f"checkpoint {checkpoint.moment}: an item was lost or served twice")
            if routed.applied == (checkpoint.applied, checkpoint.applied):
                return routed.answer
            if time.monotonic() > until:
                raise RuntimeError(f"shards are at operations {routed.applied}, not {checkpoint.applied}")
            # A shard that was started again may lack operations whose embeddings cannot be read.
            await asyncio.to_thread(self._applied_by_all, checkpoint.applied)

    def _control(self) -> None:
        """Moves the rate of the backfill so that queries stay as quick as they should be."""
        controller = P99Controller(self.drill.settings.throttle)
        before = 0
        while not self.ended.wait(_CONTROL_S):
            try:
                found = ray.get([actor.recent.remote(_CONTROL_S) for actor in self.traffic])
                reserved = ray.get(self.pacer.reserved.remote())
                latencies_ms = [latency for some in found for latency in some]
                p99_ms = float(np.quantile(latencies_ms, 0.99)) if latencies_ms else None
                rate = controller.update(p99_ms, (reserved - before) / _CONTROL_S)
                before = reserved
                ray.get(self.pacer.set_rate.remote(rate))
                self.watch.throttle(rate)
                if np.isfinite(rate):
                    self.note("throttle", items_per_s=round(rate, 1), p99_ms=p99_ms)
            except ray.exceptions.RayError:
                return  # the drill ends


_SIZES = ("old_items", "new_items", "old_bytes", "new_bytes")


def _lists(values_Qk: IntArray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values_Qk.ravel()), values_Qk.shape[1])
