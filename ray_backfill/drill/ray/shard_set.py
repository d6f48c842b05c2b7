"""All shards of a drill as one unit; calls succeed even if shards die in between."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import ray

from ray_backfill.drill.answers import Answer
from ray_backfill.drill.parts import BadPartError
from ray_backfill.drill.ray.job import DrillJob, Questions
from ray_backfill.drill.ray.router import Router, UnansweredError
from ray_backfill.drill.ray.shards import shards_need, start_shards
from ray_backfill.drill.shard import ShardSize
from ray_backfill.drill.tables import Checkpoint
from ray_backfill.engine.systems import FloatArray
from ray_backfill.workers.waiting import Room, answer_of

# Checkpoint queries per request to the shards; small, as users send queries at the same time.
_BATCH = 16
# Seconds that a shard may take to come back before the drill is aborted.
_PATIENCE_S = 1800.0


class ShardSet:
    """make_again: rebuilds the embeddings of an operation that a shard could not read.

    tell: receives incidents as (what, detail).
    """

    def __init__(
        self, job: DrillJob, make_again: Callable[[BadPartError], None], tell: Callable[[str, str], None]
    ) -> None:
        edges = [0, *(shard.place.last for shard in job.shards)]
        self.actors = start_shards(job.shards, job.settings.shards)
        self.router = Router(self.actors, job.plan.sizes(edges))
        self.make_again, self.tell = make_again, tell
        self.pids: dict[int, int] = {}
        needs = shards_need(job.shards, job.settings.shards)
        self.room = Room(f"{len(self.actors)} shards", needs, "start nodes again; the same command continues the drill")

    def apply(self, applied: int) -> ShardSize:
        """Apply the first ``applied`` operations on every shard; returns the size of all shards together.

        Raises:
            RuntimeError: a shard cannot be started, or does not come back in time.
        """
        sizes: dict[int, ShardSize] = {}
        until = time.monotonic() + _PATIENCE_S
        while len(sizes) < len(self.actors):
            waiting = {i: s.apply.remote(applied) for i, s in enumerate(self.actors) if i not in sizes}
            for shard, call in waiting.items():
                try:
                    sizes[shard], pid = answer_of(call, self.room)
                    if self.pids.get(shard, pid) != pid:
                        self.tell("shard restarted", f"shard {shard}")
                    self.pids[shard] = pid
                except ray.exceptions.RayActorError as error:
                    if time.monotonic() > until or error.actor_init_failed:
                        raise RuntimeError(
                            f"shard {shard} failed to start, or did not come back in {_PATIENCE_S:g} s; see Ray's logs"
                        ) from error
                    self.room()
                    time.sleep(0.1)
                except ray.exceptions.RayTaskError as error:
                    if not isinstance(error.cause, BadPartError):
                        raise
                    self.make_again(error.cause)
                    break  # other shards may have failed on the same file: retry them
        return ShardSize(
            applied,
            sum(size.old_items for size in sizes.values()),
            sum(size.new_items for size in sizes.values()),
            sum(size.old_bytes for size in sizes.values()),
            sum(size.new_bytes for size in sizes.values()),
        )

    def answers(self, checkpoint: Checkpoint, questions: Questions) -> Answer:
        """The answers to all queries, one batch at a time, with every shard in the state of the checkpoint.

        Raises:
            RuntimeError: an answer violated an invariant, or a shard did not come back in time.
        """
        return asyncio.run(self._answers(checkpoint, questions))

    def close(self) -> None:
        """Stop the shards; their state is on disk."""
        for actor in self.actors:
            ray.kill(actor)

    async def _answers(self, checkpoint: Checkpoint, questions: Questions) -> Answer:
        answers = [
            await self._ask(
                checkpoint, questions.backward[i : i + _BATCH], questions.forward[i : i + _BATCH], questions.k
            )
            for i in range(0, len(questions.backward), _BATCH)
        ]
        return Answer(*(np.concatenate([getattr(a, field.name) for a in answers]) for field in fields(Answer)))

    async def _ask(self, checkpoint: Checkpoint, backward: FloatArray, forward: FloatArray, k: int) -> Answer:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                routed = await self.router.search(backward, forward, k, _PATIENCE_S)
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
