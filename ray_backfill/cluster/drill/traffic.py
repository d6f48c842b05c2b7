"""Simulated users: actors that send queries on schedule, however fast answers arrive, and log every request."""

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
from ray_backfill.cluster.waiting import answers_of, ended
from ray_backfill.live.schedule import Schedule, TrafficSettings
from ray_backfill.store import write_parquet
from ray_backfill.systems import FloatArray, IntArray
from ray_backfill.tables.drill import EventRow
from ray_backfill.tables.schema import arrow_table

# Seconds between two writes of events to disk.
_WRITE_S = 5.0
# Maximum number of requests that ``recent`` looks back on.
_RECENT = 20_000


@dataclass(frozen=True)
class TrafficJob:
    """events: folder of the event files. name: prefix of this actor's files. k: items per answer."""

    settings: TrafficSettings
    actor: int
    events: Path
    name: str
    k: int
    drill: str


class TrafficActor:
    """One stream of requests, running until ``stop``."""

    def __init__(self, job: TrafficJob, router: Router, backward: FloatArray, forward: FloatArray) -> None:
        self.job, self.router = job, router
        self.backward, self.forward = backward, forward
        self.watch = Watch(job.drill)
        self.unwritten: list[EventRow] = []
        self.recent_ms: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self.files, self.is_stopped, self.zero = 0, False, 0.0
        self.failure: Exception | None = None

    async def run(self, zero: float) -> None:
        """Send until ``stop``; returns when all answers have arrived and all events are on disk.

        zero: ``time.time`` when the drill began. Raises the error of a query that failed other than by its deadline.
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
                await asyncio.sleep(0)  # behind schedule: let answers be processed too
        self.is_stopped = True
        await asyncio.gather(*pending)
        await writer
        self._write()
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        self.is_stopped = True

    async def recent(self, seconds: float) -> list[float]:
        """Latencies in ms of requests that ended in the last ``seconds``; unanswered ones count with their wait."""
        since = time.time() - seconds
        return [latency_ms for at, latency_ms in self.recent_ms if at >= since]

    async def _send(self, scheduled: float, queries: IntArray, is_warm_up: bool) -> None:
        left_s = scheduled + self.job.settings.deadline_s - time.time()
        routed, retries = None, 0
        try:
            routed = await self.router.search(self.backward[queries], self.forward[queries], self.job.k, left_s)
        except UnansweredError as error:
            retries = error.retries
        except Exception as error:  # counts as unanswered; ``run`` raises it
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
        # An unanswered request has waited at least this long; the latency quantiles must not hide it.
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
    """All sending actors, each with its own schedule; none if the rate is 0."""

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
        answers_of([actor.__ray_ready__.remote() for actor in self.actors])

    def start(self, zero: float) -> None:
        """Start sending, until ``stop``. zero: ``time.time`` when the drill began."""
        self.running = [actor.run.remote(zero) for actor in self.actors]

    def rest(self, seconds: float) -> None:
        """Let the traffic run without backfill, if there is any."""
        if self.actors:
            time.sleep(seconds)

    def recent_ms(self, seconds: float) -> list[float]:
        """The latencies in ms of the last ``seconds``."""
        found = answers_of([actor.recent.remote(seconds) for actor in self.actors])
        return [latency for some in found for latency in some]

    def look_after(self) -> None:
        """Raises the error that stopped an actor, if any."""
        answers_of(ended(self.running))

    def stop(self) -> None:
        """Stop sending; returns when every request is answered or timed out, and all events are on disk."""
        for actor in self.actors:
            actor.stop.remote()
        answers_of(self.running)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
