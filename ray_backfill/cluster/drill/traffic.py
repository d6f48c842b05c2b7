"""Users: actors that send queries when their schedule says so, whenever answers come, and write each of them down."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from ray_backfill.cluster.drill.job import DrillJob
from ray_backfill.cluster.drill.router import Router, UnansweredError
from ray_backfill.cluster.drill.watch import LATENCY, QUERIES, RETRIES, Watch
from ray_backfill.live.schedule import Schedule, TrafficSettings
from ray_backfill.store import write_parquet
from ray_backfill.systems import FloatArray, IntArray
from ray_backfill.tables.drill import EventRow
from ray_backfill.tables.schema import arrow_table

# Events are written to disk so often.
_WRITE_S = 5.0
# What ``recent`` looks back on, at most.
_RECENT = 20_000


@dataclass(frozen=True)
class TrafficJob:
    """events: folder. name: of this actor's files. k: items an answer."""

    settings: TrafficSettings
    actor: int
    events: Path
    name: str
    k: int
    drill: str


class TrafficActor:
    """One stream of requests. It runs until it is told to stop."""

    def __init__(self, job: TrafficJob, router: Router, backward: FloatArray, forward: FloatArray) -> None:
        self.job, self.router = job, router
        self.backward, self.forward = backward, forward
        self.watch = Watch(job.drill)
        self.unwritten: list[EventRow] = []
        self.recent_ms: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self.files, self.is_stopped, self.zero = 0, False, 0.0
        self.failure: Exception | None = None

    async def run(self, zero: float) -> None:
        """Send until ``stop``; returns when all answers are there and all events are on disk.

        zero: ``time.time`` when the drill began. Raises what a query failed of other than time, if one did.
        """
        self.zero, settings = zero, self.job.settings
        began, writer = time.time(), asyncio.create_task(self._write_regularly())
        warm_until = began + settings.warm_up_s
        pending: set[asyncio.Task[None]] = set()
        for at_s, queries in Schedule(settings, len(self.backward), self.job.actor).requests():
            while not self.is_stopped and (left := began + at_s - time.time()) > 0:
                await asyncio.sleep(min(left, 0.2))
            if self.is_stopped:
                break
            task = asyncio.create_task(self._send(began + at_s, queries, began + at_s < warm_until))
            pending.add(task)
            task.add_done_callback(pending.discard)
            if began + at_s < time.time() - 0.01:
                await asyncio.sleep(0)  # behind schedule: answers must be taken in, too
        self.is_stopped = True
        await asyncio.gather(*pending)
        await writer
        self._write()
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        self.is_stopped = True

    async def recent(self, seconds: float) -> list[float]:
        """Latencies in ms of what ended within the last ``seconds``; what was given up counts with what it waited."""
        since = time.time() - seconds
        return [latency_ms for at, latency_ms in self.recent_ms if at >= since]

    async def _send(self, scheduled: float, queries: IntArray, is_warm_up: bool) -> None:
        left_s = scheduled + self.job.settings.deadline_s - time.time()
        routed, retries = None, 0
        try:
            routed = await self.router.search(self.backward[queries], self.forward[queries], self.job.k, left_s)
        except UnansweredError as error:
            retries = error.retries
        except Exception as error:  # unanswered all the same; ``run`` raises it
            self.failure, self.is_stopped = error, True
        ended = time.time()
        event = EventRow(
            scheduled - self.zero,
            1000 * (ended - scheduled),
            len(queries),
            routed is not None,
            is_warm_up,
            routed.retries if routed else retries,
            routed.violations if routed else 0,
            *((*routed.applied, routed.old_items, routed.new_items) if routed else [-1] * 4),
        )
        self.unwritten.append(event)
        self.recent_ms.append((ended, event.latency_ms))
        # What was given up has waited at least so long: the quantiles of the latency must not hide it.
        self.watch.observe(LATENCY, event.latency_ms / 1000)
        self.watch.count(QUERIES, event.queries, "answered" if event.is_answered else "unanswered")
        self.watch.count(RETRIES, event.retries)

    async def _write_regularly(self) -> None:
        since = time.time()
        while not self.is_stopped:
            await asyncio.sleep(0.2)
            if time.time() - since >= _WRITE_S:
                self._write()
                since = time.time()

    def _write(self) -> None:
        events, self.unwritten = self.unwritten, []
        if events:
            path = self.job.events / f"{self.job.name}-{self.files:05d}.parquet"
            write_parquet(path, arrow_table(EventRow, events))
            self.files += 1


class Traffic:
    """All actors that send queries, each with a schedule of its own; none where the rate is 0."""

    def __init__(self, job: DrillJob, leg: int, router: Router) -> None:
        settings, questions = job.settings.traffic, job.questions
        self.warm_up_s = settings.warm_up_s if settings.rate_per_s else 0.0
        make = ray.remote(num_cpus=0, max_concurrency=1000)(TrafficActor)
        sent = ray.put(questions.backward), ray.put(questions.forward)
        names = [f"leg-{leg:03d}-{i:03d}" for i in range(settings.actors if settings.rate_per_s else 0)]
        jobs = [TrafficJob(settings, i, job.folder / "events", n, questions.k, job.name) for i, n in enumerate(names)]
        self.actors: list[ActorHandle] = [make.remote(of_actor, router, *sent) for of_actor in jobs]
        self.running: list[Any] = []

    def wait_until_ready(self) -> None:
        ray.get([actor.__ray_ready__.remote() for actor in self.actors])

    def start(self, zero: float) -> None:
        """Send until ``stop``. zero: ``time.time`` when the drill began."""
        self.running = [actor.run.remote(zero) for actor in self.actors]

    def rest(self, seconds: float) -> None:
        """Let the traffic run alone, if there is any."""
        if self.actors:
            time.sleep(seconds)

    def recent_ms(self, seconds: float) -> list[float]:
        """The latencies of the last ``seconds``."""
        found = ray.get([actor.recent.remote(seconds) for actor in self.actors])
        return [latency for some in found for latency in some]

    def look_after(self) -> None:
        """Raises what stopped an actor, if anything did."""
        if self.running:
            ray.get(ray.wait(self.running, num_returns=len(self.running), timeout=0)[0])

    def stop(self) -> None:
        """Returns when all that was sent is answered or given up, and all events are on disk."""
        for actor in self.actors:
            actor.stop.remote()
        ray.get(self.running)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
