"""Traffic without a cluster: the event of every request, answered or not."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.drill.jobs import TrafficJob
from ray_backfill.drill.ray.shards import Routed, Router, UnansweredError
from ray_backfill.drill.ray.traffic import TrafficActor
from ray_backfill.drill.settings import TrafficSettings
from ray_backfill.drill.shard import ShardAnswer
from ray_backfill.drill.traffic import Sender, read_events
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.merges import RAW
from ray_backfill.pipeline.live import Answering


class Answers:
    """A router that answers an actor's warm-up, then in turn answers, exceeds the deadline, or fails."""

    def __init__(self, *turns: str) -> None:
        self.turns = ["answer", *turns]

    async def search(self, backward: Any, forward: Any, queries: Any, deadline_s: float, part: Any) -> Routed:
        turn = self.turns.pop(0) if self.turns else "answer"
        if turn == "late":
            raise UnansweredError(3)
        if turn == "fail":
            raise OSError("out of memory")
        await asyncio.sleep(0.01)
        nothing = np.zeros((len(queries), 4))
        answer = RankedLists(nothing.astype(np.int64), nothing.astype(np.float32), nothing, nothing > 0)
        return Routed(answer, (4, 5), 6, 7, 1, 0)


def sent(folder: Path, router: Answers, seconds: float) -> TrafficActor:
    settings = TrafficSettings(rate_per_s=100.0, arrivals="constant", warm_up_s=0.1, batch=2)
    vectors = np.ones((5, 3), np.float32)
    job = TrafficJob(settings, folder, Sender(0, 0), "test")
    job.sender.begin(folder)
    actor = TrafficActor(job, router, vectors, vectors, np.zeros(5, np.int64))  # type: ignore[arg-type]

    async def run() -> None:
        running = asyncio.create_task(actor.run(time.time()))
        await asyncio.sleep(seconds)
        await actor.stop()
        await running

    asyncio.run(run())
    return actor


def test_every_request_leaves_an_event(tmp_path: Path) -> None:
    sent(tmp_path, Answers("answer", "late", "answer"), 0.3)
    events = read_events(tmp_path)
    assert len(events) >= 25
    np.testing.assert_allclose(np.diff(events.scheduled_s), 0.01, atol=1e-6)
    assert events.is_answered.tolist() == [True, False] + [True] * (len(events) - 2)
    assert events.retries.tolist()[:3] == [1, 3, 1]
    assert (events.queries == 2).all()
    assert (events.latency_ms[events.is_answered] >= 10).all()
    assert events.is_warm_up.sum() == 10
    assert events[["applied_least", "old_items"]].to_numpy()[:2].tolist() == [[4, 6], [-1, -1]]


def test_no_query_waits_for_what_the_first_answer_loads(tmp_path: Path) -> None:
    """The first answer holds up the whole actor, as kernels do while they are loaded."""

    class Loading(Answers):
        async def search(self, *of: Any) -> Routed:
            if self.turns:  # none has been taken yet
                time.sleep(0.6)
            return await super().search(*of)

    sent(tmp_path, Loading(), 1.0)
    events = read_events(tmp_path)
    assert len(events) > 10
    assert events.is_answered.all()
    assert events.latency_ms.max() < 500


def test_what_fails_for_another_reason_is_written_down_and_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="out of memory"):
        sent(tmp_path, Answers("answer", "fail"), 1.0)
    events = read_events(tmp_path)
    assert events.is_answered.tolist()[:2] == [True, False]


def test_a_replaced_incarnation_stops_and_writes_nothing(tmp_path: Path) -> None:
    """As if its node had lost its connection: nobody tells it to stop."""
    settings = TrafficSettings(rate_per_s=100.0, arrivals="constant", warm_up_s=0.0)
    vectors = np.ones((5, 3), np.float32)
    job = TrafficJob(settings, tmp_path, Sender(0, 0), "test")
    job.sender.begin(tmp_path)
    actor = TrafficActor(job, Answers(), vectors, vectors, np.zeros(5, np.int64))  # type: ignore[arg-type]

    async def run() -> None:
        running = asyncio.create_task(actor.run(time.time()))
        await asyncio.sleep(0.5)
        assert len(actor.unwritten) > 20
        Sender(0, 0, incarnation=1).begin(tmp_path)
        await asyncio.wait_for(running, 5)

    asyncio.run(run())
    assert actor.is_stopped
    assert not len(read_events(tmp_path))
    job.sender.end(tmp_path)
    assert not list((tmp_path / "events").iterdir())


def test_the_next_incarnation_continues_the_schedule(tmp_path: Path) -> None:
    settings = TrafficSettings(rate_per_s=100.0, arrivals="constant", warm_up_s=0.0)
    vectors = np.ones((5, 3), np.float32)
    sender = Sender(0, 0, incarnation=1)
    sender.begin(tmp_path)
    job = TrafficJob(settings, tmp_path, sender, "test")
    actor = TrafficActor(job, Answers(), vectors, vectors, np.zeros(5, np.int64))  # type: ignore[arg-type]
    now = time.time()

    async def run() -> None:
        running = asyncio.create_task(actor.run(now - 50.0, now - 30.0))
        await asyncio.sleep(0.3)
        await actor.stop()
        await running

    asyncio.run(run())
    events = read_events(tmp_path)
    assert 50.0 <= events.scheduled_s.min() < 50.1, "nobody asked what was due before"
    np.testing.assert_allclose((events.scheduled_s - 20.0) % 0.01 % 0.01, 0, atol=0.0101)
    assert 10 < len(events) < 60


def test_readers_see_an_item_that_is_lost_or_served_twice() -> None:
    """Two shards that must have 3 and 2 items after one operation; the second has lost one to a broken image."""
    router = Router([], np.array([[9, 9], [3, 2]]), Answering.plain(RAW, 4))

    def answer(*positions: int) -> RankedLists:
        row = np.array([positions])
        return RankedLists(row, row.astype(np.float32), row.astype(np.float64), row > 0)

    def shard(old: int, new: int, missing: int = 0) -> ShardAnswer:
        return ShardAnswer(answer(1), answer(-1), 1, old, new, missing)

    right = [shard(2, 1), shard(0, 1, missing=1)]
    assert router._violations(right, answer(4, 1, -1, -1)) == 0
    assert router._violations(right, answer(4, 1, 4)) == 1, "an item twice"
    assert router._violations([shard(2, 2), right[1]], answer(4)) == 1, "one item too many"
    assert router._violations([right[0], shard(0, 1)], answer(4)) == 1, "one too few"
