"""Sends a query to all shards and merges their answers; reports a missing answer instead of leaving it out."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.actor import ActorHandle

from ray_backfill.drill.answers import Answer, ShardAnswer, is_consistent, merge_answers
from ray_backfill.engine.systems import IntArray

# Pause before retrying a shard that died.
_PAUSE_S = 0.05


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

    answer: Answer
    applied: tuple[int, int]
    old_items: int
    new_items: int
    retries: int
    violations: int


class Router:
    """shards: actors. sizes_PS: ``DrillPlan.sizes``, the planned number of items after each operation, by shard."""

    def __init__(self, shards: Sequence[ActorHandle], sizes_PS: IntArray) -> None:
        self.shards, self.sizes_PS = shards, sizes_PS

    async def search(self, backward: NDArray[Any], forward: NDArray[Any], k: int, deadline_s: float) -> Routed:
        """The k best items of the whole gallery. backward: (b, d), forward: (b, d') vectors of the same queries.

        Raises:
            UnansweredError: a shard did not answer within ``deadline_s``.
        """
        until = time.monotonic() + deadline_s
        retries = [0] * len(self.shards)
        asked = [self._ask(i, backward, forward, k, until, retries) for i in range(len(self.shards))]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for failed in found:
            if isinstance(failed, TimeoutError):
                raise UnansweredError(sum(retries)) from failed
            if isinstance(failed, BaseException):
                raise failed
        answers = [shard for shard in found if isinstance(shard, ShardAnswer)]
        merged = merge_answers([shard.best for shard in answers], k)
        applied = [shard.applied for shard in answers]
        return Routed(
            merged,
            (min(applied), max(applied)),
            sum(shard.old_items for shard in answers),
            sum(shard.new_items for shard in answers),
            sum(retries),
            self._violations(answers, merged),
        )

    async def _ask(
        self, shard: int, backward: NDArray[Any], forward: NDArray[Any], k: int, until: float, retries: list[int]
    ) -> ShardAnswer:
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            call = self.shards[shard].search.remote(backward, forward, k)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(call.future()), left_s)
            except ray.exceptions.RayActorError:
                retries[shard] += 1
                await asyncio.sleep(_PAUSE_S)

    def _violations(self, answers: Sequence[ShardAnswer], merged: Answer) -> int:
        """Count broken invariants of an answer: every item must be in exactly one partition."""
        sizes = np.array([a.old_items + a.new_items + a.missing_items for a in answers])
        expected = np.array([self.sizes_PS[a.applied, shard] for shard, a in enumerate(answers)])
        return int((sizes != expected).sum()) + (not is_consistent(merged))
