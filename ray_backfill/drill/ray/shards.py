"""Shards of the live gallery as Ray actors, the router that queries all of them, and the set of them in the driver.

Several threads of an actor search while another one applies operations. Its state is on disk: the old embeddings, the
plan, the embeddings of operations and the journal. If an actor is killed, Ray restarts it, and it restores its state
from there. The router reports a missing answer instead of leaving it out.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.actor import ActorHandle

from ray_backfill.drill.jobs import LiveJob, Questions, ShardJob
from ray_backfill.drill.journal import Journal
from ray_backfill.drill.parts import BadPartError, read_part
from ray_backfill.drill.plan import read_plan
from ray_backfill.drill.settings import ShardSettings
from ray_backfill.drill.shard import Shard, ShardAnswer, ShardSize
from ray_backfill.drill.tables import Checkpoint
from ray_backfill.engine.lists import RankedLists, joined, merge_lists
from ray_backfill.engine.systems import IntArray
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.learn.sides import SIDES, Sides
from ray_backfill.pipeline.live import Answering
from ray_backfill.workers.waiting import Room, answer_of

# Maximum number of train items used to train indexes.
_TRAIN_ITEMS = 50_000
# Checkpoint queries per request to the shards; small, as users send queries at the same time.
_BATCH = 16
# Pause before retrying a shard that died.
_PAUSE_S = 0.05
# Seconds that a shard may take to come back before the drill is aborted.
_PATIENCE_S = 1800.0
REMEDY = "start nodes again; the same command continues the drill"


class LiveShard:
    """One shard; see the module. ``start_shards`` sets the actor's threads and concurrent searches."""

    def __init__(self, job: ShardJob) -> None:
        self.job, self.plan = job, read_plan(job.drill / "plan")
        (method,) = find_methods((job.method,))
        network = load_network(job.network) if job.network else None
        sides = Sides(method, network, job.merge, job.distance, job.dims)
        read_old, train = partial(job.gallery.vectors, models=method.old_models), None
        if job.train is not None and not (job.place.old_index.kind == job.place.new_index.kind == "exact"):
            old, new = (
                job.train.vectors(0, min(job.n_train, _TRAIN_ITEMS), models)
                for models in (method.old_models, method.new_models)
            )
            train = {"backward": sides.gallery("backward", old), "forward": sides.gallery("forward", new)}
        self.shard = Shard(self.plan, sides, job.place, read_old, train, job.part_n)
        with suppress(BadPartError):  # the driver calls apply again, which reports it
            self.apply(Journal(job.drill).applied())
        for queries in (1, 2):  # load compiled code before the first query
            backward, forward = (np.ones((queries, dim), np.float32) for dim in map(sides.dim, SIDES))
            self.shard.search(backward, forward, 1, np.zeros(queries, np.int64))

    @ray.method(concurrency_group="search")  # type: ignore[untyped-decorator]
    def search(self, backward: NDArray[Any], forward: NDArray[Any], k: int, part: IntArray) -> ShardAnswer:
        """See ``Shard.search``. Copies the arrays: those from Ray are read-only, which the kernels do not accept."""
        return self.shard.search(np.array(backward), np.array(forward), k, part)

    @ray.method(concurrency_group="write")  # type: ignore[untyped-decorator]
    def apply(self, applied: int) -> tuple[ShardSize, int]:
        """Apply the plan's first ``applied`` operations, except those already applied.

        Returns: the size of the shard, and its process id.

        Raises:
            BadPartError: the embeddings of an operation cannot be read; the operations before it are applied.
        """
        for operation in self.plan.operations[self.shard.view.applied : applied]:
            self.shard.apply(operation, read_part(self.job.drill, operation) if operation.has_vectors else None)
            self.shard.compact()
        return self.shard.size(), os.getpid()


def shards_need(jobs: list[ShardJob], settings: ShardSettings, gpus: float) -> dict[str, float]:
    """The resources of all shards together. gpus: share of a GPU of each, if they use GPUs."""
    return {"CPU": len(jobs) * settings.cpus} | ({"GPU": len(jobs) * gpus} if jobs[0].place.on_gpu else {})


def start_shards(jobs: list[ShardJob], settings: ShardSettings, gpus: float) -> list[ActorHandle]:
    """Start one actor per job; returns at once, without waiting until they are ready.

    Ray always restarts an actor that dies, but does not repeat the call: the caller decides on that.
    """
    threads = str(settings.threads)
    variables = {f"{library}_NUM_THREADS": threads for library in ("OMP", "OPENBLAS", "MKL")}
    make = ray.remote(
        num_cpus=settings.cpus,
        num_gpus=gpus if jobs[0].place.on_gpu else 0,
        max_restarts=-1,
        max_task_retries=0,
        concurrency_groups={"search": settings.searches, "write": 1},
        runtime_env={"env_vars": variables},
    )(LiveShard)
    return [make.remote(job) for job in jobs]


class UnansweredError(Exception):
    """A shard did not answer within the deadline. retries: number of retries over all shards."""

    def __init__(self, retries: int) -> None:
        super().__init__(retries)
        self.retries = retries


@dataclass(frozen=True)
class Routed:
    """The merged answer of all shards. applied: the fewest and the most operations that a shard had applied.

    old_items, new_items: partition sizes over all shards. retries: number of retries over all shards. violations:
    broken invariants: an item that occurs twice, or a shard with more or fewer items than planned.
    """

    answer: RankedLists
    applied: tuple[int, int]
    old_items: int
    new_items: int
    retries: int
    violations: int


class Router:
    """shards: actors. sizes_PS: ``DrillPlan.sizes``, the planned number of items after each operation, by shard.
    answering: makes one answer of the first items of both partitions.
    """

    def __init__(self, shards: Sequence[ActorHandle], sizes_PS: IntArray, answering: Answering) -> None:
        self.shards, self.sizes_PS, self.answering = shards, sizes_PS, answering

    async def search(
        self, backward: NDArray[Any], forward: NDArray[Any], queries: IntArray, deadline_s: float, part: IntArray
    ) -> Routed:
        """The answers to some queries. backward: (b, d), forward: (b, d') vectors. queries: (b,) their rows.

        part: (b,) see ``Questions.part``.

        Raises:
            UnansweredError: a shard did not answer within ``deadline_s``.
        """
        until, k = time.monotonic() + deadline_s, self.answering.retrieve
        retries = [0] * len(self.shards)
        asked = [self._ask(i, (backward, forward, k, part), until, retries) for i in range(len(self.shards))]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, TimeoutError):
                raise UnansweredError(sum(retries)) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        answers = [outcome for outcome in outcomes if isinstance(outcome, ShardAnswer)]
        old, new = (merge_lists(lists, k) for lists in zip(*((shard.old, shard.new) for shard in answers), strict=True))
        both = old._replace(item=np.hstack([old.item, new.item]))
        applied = [shard.applied for shard in answers]
        sizes = sum(shard.old_items for shard in answers), sum(shard.new_items for shard in answers)
        served = self.answering.answers(old, new, queries)
        return Routed(served, (min(applied), max(applied)), *sizes, sum(retries), self._violations(answers, both))

    async def _ask(self, shard: int, question: tuple[Any, ...], until: float, retries: list[int]) -> ShardAnswer:
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            call = self.shards[shard].search.remote(*question)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(call.future()), left_s)
            except ray.exceptions.RayActorError:
                retries[shard] += 1
                await asyncio.sleep(_PAUSE_S)

    def _violations(self, answers: Sequence[ShardAnswer], both: RankedLists) -> int:
        """Count broken invariants of an answer: every item must be in exactly one partition. both: lists."""
        sizes = np.array([a.old_items + a.new_items + a.missing_items for a in answers])
        expected = np.array([self.sizes_PS[a.applied, shard] for shard, a in enumerate(answers)])
        return int((sizes != expected).sum()) + (not both.are_distinct)


class ShardSet:
    """All shards as one unit; calls succeed even if shards die in between.

    make_again: rebuilds the embeddings of an operation that a shard could not read. tell: receives incidents as (what,
    detail).
    """

    def __init__(
        self, job: LiveJob, make_again: Callable[[BadPartError], None], tell: Callable[[str, str], None]
    ) -> None:
        edges = [0, *(shard.place.last for shard in job.shards)]
        self.actors = start_shards(job.shards, job.settings.shards, job.embed.actors.gpus)
        self.router = Router(self.actors, job.plan.sizes(edges), job.questions.answering)
        self.make_again, self.tell = make_again, tell
        self.pids: dict[int, int] = {}
        needs = shards_need(job.shards, job.settings.shards, job.embed.actors.gpus)
        self.room = Room(f"{len(self.actors)} shards", needs, REMEDY)

    def apply(self, applied: int) -> ShardSize:
        """Apply the first ``applied`` operations on every shard; returns the size of all shards together.

        Raises:
            RuntimeError: a shard cannot be started, or does not come back in time.
        """
        sizes: dict[int, ShardSize] = {}
        began = time.monotonic()
        while len(sizes) < len(self.actors):
            waiting = {i: s.apply.remote(applied) for i, s in enumerate(self.actors) if i not in sizes}
            for shard, call in waiting.items():
                try:
                    sizes[shard], pid = answer_of(call, self.room)
                    if self.pids.get(shard, pid) != pid:
                        self.tell("shard restarted", f"shard {shard}")
                    self.pids[shard] = pid
                except ray.exceptions.RayActorError as error:
                    waited_s = time.monotonic() - began
                    if waited_s > _PATIENCE_S or error.actor_init_failed:
                        raise RuntimeError(
                            f"shard {shard} failed to start, or did not come back in {_PATIENCE_S:g} s; see Ray's logs"
                        ) from error
                    self.room(waited_s)
                    time.sleep(0.1)
                except ray.exceptions.RayTaskError as error:
                    if not isinstance(error.cause, BadPartError):
                        raise
                    self.make_again(error.cause)
                    break  # other shards may have failed on the same file: retry them
        return ShardSize.of_all(list(sizes.values()))

    def answers(self, checkpoint: Checkpoint, questions: Questions) -> RankedLists:
        """The answers to all queries, one batch at a time, with every shard in the state of the checkpoint.

        Raises:
            RuntimeError: an answer violated an invariant, or a shard did not come back in time.
        """

        async def ask_all() -> list[RankedLists]:
            rows = np.arange(len(questions.backward))
            batches = [rows[i : i + _BATCH] for i in range(0, len(rows), _BATCH)]
            return [await self._ask(checkpoint, questions, queries) for queries in batches]

        return joined(asyncio.run(ask_all()))

    def close(self) -> None:
        """Stop the shards; their state is on disk."""
        for actor in self.actors:
            ray.kill(actor)

    async def _ask(self, checkpoint: Checkpoint, questions: Questions, queries: IntArray) -> RankedLists:
        until = time.monotonic() + _PATIENCE_S
        vectors = questions.backward[queries], questions.forward[queries]
        while True:
            try:
                routed = await self.router.search(*vectors, queries, _PATIENCE_S, questions.part[queries])
            except UnansweredError as error:
                raise RuntimeError(f"a shard did not come back within {_PATIENCE_S:g} s; see Ray's logs") from error
            if routed.violations:
                raise RuntimeError(f"checkpoint {checkpoint.moment}: an item was lost or served twice")
            if routed.applied == (checkpoint.applied, checkpoint.applied):
                return routed.answer
            if time.monotonic() > until:
                raise RuntimeError(f"shards have applied {routed.applied} operations instead of {checkpoint.applied}")
            # A restarted shard may lack operations whose embeddings cannot be read.
            await asyncio.to_thread(self.apply, checkpoint.applied)
