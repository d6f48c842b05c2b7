"""Simulated users: actors that send queries on schedule, however fast answers arrive, and log every request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import dropwhile
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_backfill.core.schema import arrow_table
from ray_backfill.core.store_path import in_store
from ray_backfill.data.write import write_parquet
from ray_backfill.drill.jobs import LiveJob, TrafficJob
from ray_backfill.drill.ray.shards import Routed, Router, UnansweredError
from ray_backfill.drill.ray.watch import LATENCY, METRICS, QUERIES, RETRIES
from ray_backfill.drill.tables import EventRow
from ray_backfill.drill.traffic import Schedule, Sender
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.workers.waiting import answer_of, answers_of, ended
from ray_backfill.workers.watch import Watch

# Seconds between two writes of events to disk.
_WRITE_S = 5.0
# Seconds between two looks whether an actor of a drill in a store may still write.
_LOOK_S = 2.0
# Seconds between two looks after the actors while only traffic runs.
_REST_S = 1.0
# Seconds that the first answers may take, before any query is due.
_WARM_UP_S = 60.0


class TrafficActor:
    """One stream of requests, running until ``stop``."""

    def __init__(
        self, job: TrafficJob, router: Router, backward: FloatArray, forward: FloatArray, part: IntArray
    ) -> None:
        self.job, self.router = job, router
        self.backward, self.forward, self.part = backward, forward, part
        self.watch = Watch(METRICS, {"drill": job.name})
        self.unwritten: list[EventRow] = []
        self.recent_ms: deque[tuple[float, float]] = deque(maxlen=20_000)
        self.files, self.is_stopped, self.zero = 0, False, 0.0
        self.failure: Exception | None = None

    async def warm_up(self, deadline_s: float) -> None:
        """Ask once, unrecorded: while kernels are loaded and shards connected, an actor answers nothing."""
        with suppress(UnansweredError):
            await self._ask(np.arange(1), deadline_s)

    async def run(self, zero: float, since: float | None = None) -> None:
        """Send until ``stop``; returns when all answers have arrived and all events are on disk.

        zero: ``time.time`` when the drill began. since: when an earlier incarnation began; this one continues its
        schedule. Raises the error of a query that failed other than by its deadline.
        """
        self.zero, settings = zero, self.job.settings
        await self.warm_up(settings.deadline_s)  # of an incarnation that replaces another one
        started, writer = time.time(), asyncio.create_task(self._write_regularly())
        began, warm_until = since or started, started + settings.warm_up_s
        pending: set[asyncio.Task[None]] = set()
        requests = Schedule(settings, len(self.backward), self.job.sender.actor).requests()
        for at_s, queries in dropwhile(lambda request: began + request[0] < started, requests):
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
        await self._write()
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        self.is_stopped = True

    async def recent(self, seconds: float) -> list[float]:
        """Latencies in ms of requests that ended in the last ``seconds``; unanswered ones count with their wait."""
        since = time.time() - seconds
        return [latency_ms for at, latency_ms in self.recent_ms if at >= since]

    async def _ask(self, queries: IntArray, deadline_s: float) -> Routed:
        vectors = self.backward[queries], self.forward[queries]
        return await self.router.search(*vectors, queries, deadline_s, self.part[queries])

    async def _send(self, scheduled: float, queries: IntArray, is_warm_up: bool) -> None:
        left_s = scheduled + self.job.settings.deadline_s - time.time()
        routed, retries = None, 0
        try:
            routed = await self._ask(queries, left_s)
        except UnansweredError as error:
            retries = error.retries
        except Exception as error:  # counts as unanswered; ``run`` raises it
            self.failure, self.is_stopped = error, True
        ended = time.time()
        latency_ms, number, is_answered = 1000 * (ended - scheduled), len(queries), routed is not None
        of_answer = (retries, 0, *[-1] * 4)
        if routed:
            of_answer = (routed.retries, routed.violations, *routed.applied, routed.old_items, routed.new_items)
        event = EventRow(scheduled - self.zero, latency_ms, number, is_answered, is_warm_up, *of_answer)
        self.unwritten.append(event)
        self.recent_ms.append((ended, event.latency_ms))
        # An unanswered request has waited at least this long; the latency quantiles must not hide it.
        self.watch.observe(LATENCY, event.latency_ms / 1000)
        self.watch.count(QUERIES, event.queries, "answered" if event.is_answered else "unanswered")
        self.watch.count(RETRIES, event.retries)

    async def _write_regularly(self) -> None:
        since = time.time()
        while not self.is_stopped:
            await asyncio.sleep(0.2 if not in_store(self.job.drill) else _LOOK_S)
            if not await asyncio.to_thread(self.job.sender.may_write, self.job.drill):
                self.is_stopped = True
            elif time.time() - since >= _WRITE_S:
                await self._write()
                since = time.time()

    async def _write(self) -> None:
        """Write the events, unless the driver has gone on without this incarnation. Requests go on meanwhile."""
        events, self.unwritten = self.unwritten, []
        if events and bool(await asyncio.to_thread(self.job.sender.may_write, self.job.drill)):
            file, self.files = self.job.sender.file(self.job.drill, self.files), self.files + 1
            await asyncio.to_thread(write_parquet, file, arrow_table(EventRow, events))


class Traffic:
    """All sending actors, each with its own schedule; none if the rate is 0. An actor that dies is replaced.

    restarted: called with the incarnation that sends from now on.
    """

    def __init__(self, job: LiveJob, leg: int, router: Router, restarted: Callable[[Sender], None]) -> None:
        settings, questions = job.settings.traffic, job.questions
        self.job, self.restarted = job, restarted
        self.warm_up_s = settings.warm_up_s if settings.rate_per_s else 0.0
        self.zero = self.since = 0.0
        self.make = ray.remote(num_cpus=0, max_concurrency=1000)(TrafficActor)
        self.sent = tuple(map(ray.put, (router, questions.backward, questions.forward, questions.part)))
        self.senders = [Sender(leg, i) for i in range(settings.actors if settings.rate_per_s else 0)]
        self.actors = [self._made(sender, self.make) for sender in self.senders]
        self.running: list[Any] = []

    def wait_until_ready(self, actors: Sequence[ActorHandle] = ()) -> None:
        """Returns when these actors can send at once, or all."""
        answers_of([actor.warm_up.remote(_WARM_UP_S) for actor in actors or self.actors])

    def start(self, zero: float) -> None:
        """Start sending, until ``stop``. zero: ``time.time`` when the drill began."""
        self.zero, self.since = zero, time.time()
        self.running = [actor.run.remote(zero) for actor in self.actors]

    def rest(self, seconds: float) -> None:
        """Let the traffic run without backfill, if there is any."""
        until = time.monotonic() + seconds
        while self.actors and (left := until - time.monotonic()) > 0:
            if self.look_after():
                until = time.monotonic() + seconds  # nobody asked meanwhile
            time.sleep(min(left, _REST_S))

    def recent_ms(self, seconds: float) -> list[float]:
        """The latencies in ms of the last ``seconds``, of the actors that are alive."""
        latencies_ms: list[float] = []
        for actor in list(self.actors):
            with suppress(ray.exceptions.RayActorError):
                latencies_ms += answer_of(actor.recent.remote(seconds))
        return latencies_ms

    def look_after(self) -> bool:
        """Replace actors that died, and wait until they can send. Raises the error that stopped an actor, if any.

        Returns whether there was one.
        """
        ended_calls = ended(self.running)
        for call in ended_calls:
            with suppress(ray.exceptions.RayActorError):
                answer_of(call)
            i = self.running.index(call)
            self.senders[i] = sender = replace(self.senders[i], incarnation=self.senders[i].incarnation + 1)
            self.restarted(sender)
            ray.kill(self.actors[i])  # if only its connection was lost
            # Ray might still count the dead node; the driver's is alive.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            self.actors[i] = self._made(sender, self.make.options(scheduling_strategy=here))
            with suppress(ray.exceptions.RayActorError):  # it is replaced at the next look
                self.wait_until_ready([self.actors[i]])
            self.running[i] = self.actors[i].run.remote(self.zero, self.since)
        return bool(ended_calls)

    def stop(self) -> None:
        """Stop sending; returns when every request is answered or timed out, and all events are on disk."""
        self.look_after()
        for actor in self.actors:
            actor.stop.remote()
        for call in self.running:
            with suppress(ray.exceptions.RayActorError):  # it has written what it sent, but for a few seconds
                answer_of(call)

    def close(self) -> None:
        for sender, actor in zip(self.senders, self.actors, strict=True):
            sender.end(self.job.folder)
            ray.kill(actor)

    def _made(self, sender: Sender, make: Any) -> ActorHandle:
        job = self.job
        sender.begin(job.folder)
        of_actor = TrafficJob(job.settings.traffic, job.folder, sender, job.name)
        return make.remote(of_actor, *self.sent)
