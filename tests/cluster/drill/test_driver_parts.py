"""The parts of a driver, each in isolation."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from ray_backfill.data.folder import StoredSplit
from ray_backfill.drill.jobs import FromStore, PartsJob
from ray_backfill.drill.journal import Applied, Incident, Journal, Started, Throttled, of_type
from ray_backfill.drill.parts import BadPartError, Embedded, part_path, write_part
from ray_backfill.drill.plan import DrillPlan, Operation, write_plan
from ray_backfill.drill.ray import driver as driving
from ray_backfill.drill.ray import embedding as embedding_actors
from ray_backfill.drill.ray.driver import Recorder, ThrottleLoop
from ray_backfill.drill.ray.embedding import EmbeddingSupervisor, PartReports
from ray_backfill.drill.settings import ThrottleSettings
from ray_backfill.drill.tables import Checkpoint
from ray_backfill.workers.settings import EmbedActors
from tests.cluster.drill._drill import ITEMS, write_folder

# What Ray calls the process of an embedding actor that runs nothing.
IDLE = "ray::MapWorker(Map(_OperationEmbedder))"


def test_the_clock_goes_on_where_the_last_driver_stopped(tmp_path: Path) -> None:
    Journal(tmp_path).add(Started(0.0, 0, 1.0))
    Journal(tmp_path).add(Applied(12.5, 1, "backfill", 30))
    recorder = Recorder("test", tmp_path)
    assert (recorder.leg, recorder.now_s()) == (1, 12.5), "starting up is not on the clock"
    assert time.time() - recorder.start_clock() == pytest.approx(12.5, abs=0.5)
    recorder.incident("shard restarted", "shard 1")
    (incident,) = of_type(Journal(tmp_path).entries(), Incident)
    assert (incident.what, incident.detail) == ("shard restarted", "shard 1")
    assert 12.5 <= incident.elapsed_s < 14


def test_the_throttle_slows_the_embedding_down_and_writes_it_down(tmp_path: Path) -> None:
    rates: list[float] = []
    embedding: Any = SimpleNamespace(reserved=lambda: 3000, set_rate=rates.append)
    latencies_ms: list[float] = []
    traffic: Any = SimpleNamespace(recent_ms=lambda seconds: latencies_ms)
    loop = ThrottleLoop(ThrottleSettings(p99_ms=20), embedding, traffic, Recorder("test", tmp_path))
    loop.step()
    assert rates == [np.inf], "no query was due"
    loop.reserved, latencies_ms[:] = 0, [50.0] * 100
    loop.step()
    assert rates[1] == pytest.approx(0.7 * 1000), "of 3,000 items in 3 s"
    assert [(e.items_per_s, e.p99_ms) for e in of_type(Journal(tmp_path).entries(), Throttled)] == [(700.0, 50.0)]


def test_a_driver_waits_for_a_file_and_hears_what_stopped_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_actors, "_LOOK_S", 0.01)
    reports, path = PartReports(tmp_path), part_path(tmp_path, 3)
    path.parent.mkdir()
    reports.queue.put(2)
    reports.wait_for(3, path.touch)
    for told, said in ((OSError("disk is full"), "disk is full"), (None, "without the embeddings of operation 4")):
        reports.queue.put(told)
        with pytest.raises((OSError, RuntimeError), match=said):
            reports.wait_for(4, path.touch)


def test_embeddings_are_made_again_three_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_session: None
) -> None:
    def embed_again(number: int, job: PartsJob) -> None:
        embedded = Embedded(np.array([7]), {"new": np.ones((1, 2), np.float32)}, ((2, "cut"),))
        write_part(job.drill, Operation(number, "backfill", np.array([7, 2])), embedded)

    monkeypatch.setattr(embedding_actors, "embed_again", embed_again)
    job = PartsJob(tmp_path, FromStore(StoredSplit(tmp_path), 8), ("old",), ("new",), EmbedActors())
    told: list[tuple[str, str]] = []
    embedding = EmbeddingSupervisor(job, ThrottleSettings(), lambda what, detail: told.append((what, detail)))
    for _ in range(3):
        embedding.make_again(BadPartError(5, "damaged"))
    assert told == [("part rebuilt", "damaged")] * 3
    assert embedding.broken[5].tolist() == [2]
    with pytest.raises(RuntimeError, match=r"damaged \(rebuilt 3 times\); check the disk"):
        embedding.make_again(BadPartError(5, "damaged"))
    embedding.close()


@pytest.mark.heavy
def test_an_idle_embedding_actor_that_dies_is_an_incident(
    tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three operations of one item and one of six, which waits 30 s: one of two actors is idle meanwhile.

    Both run at low priority, so that a busy machine takes minutes. An actor that waits keeps its CPU after the drill.
    Ray Data would end the idle one, at some moment before or after the test kills it.
    """
    monkeypatch.setattr(
        "ray.data._internal.execution.operators.actor_pool_map_operator._ActorPool._try_remove_idle_actor",
        lambda pool: False,
    )
    data, told = write_folder(tmp_path / "data"), list[tuple[str, str]]()
    items = [np.array([0]), np.array([1]), np.array([2]), np.arange(3, 9)]
    operations = tuple(Operation(number, "backfill", positions) for number, positions in enumerate(items))
    plan = DrillPlan(ITEMS, np.arange(ITEMS), np.empty(0, int), operations, (Checkpoint(0, 0, 0.0),))
    write_plan(tmp_path / "plan", plan)
    source = FromStore(StoredSplit(data / "gallery.parquet"), ITEMS)
    job = PartsJob(tmp_path, source, ("old",), ("new",), EmbedActors(number=2, cpus=0.5))
    embedding = EmbeddingSupervisor(job, ThrottleSettings(0.2), lambda what, detail: told.append((what, detail)))
    with embedding.running(plan):
        embedding.set_rate(0.2)
        until = time.monotonic() + 270
        known: list[psutil.Process] = []
        while len(known) < 2:
            assert time.monotonic() < until
            known = [psutil.Process(actor["Pid"]) for actor in embedding.actors() if actor["State"] == "ALIVE"]
        embedding.look_after()
        assert not told
        idle: list[psutil.Process] = []
        while sum(1 for _ in tmp_path.glob("parts/*.parquet")) < 3 or len(idle) != 1:
            assert time.monotonic() < until
            time.sleep(0.01)
            idle = [process for process in known if process.name() == IDLE]
        idle[0].kill()
        until = time.monotonic() + 270
        while not told:
            assert time.monotonic() < until, "nobody has noticed"
            time.sleep(0.1)
            embedding.look_after()
    assert [what for what, _ in told] == ["embedding actor died"]


def test_a_drill_whose_parts_are_all_there_continues_without_actors(tmp_path: Path, ray_session: None) -> None:
    """As after a power cut between the last part and the last checkpoint."""
    operation = Operation(0, "backfill", np.array([7, 2]))
    plan = DrillPlan(ITEMS, np.arange(ITEMS), np.empty(0, int), (operation,), (Checkpoint(0, 0, 0.0),))
    write_part(tmp_path, operation, Embedded(np.array([7, 2]), {"new": np.ones((2, 2), np.float32)}, ()))
    job = PartsJob(tmp_path, FromStore(StoredSplit(tmp_path), 8), ("old",), ("new",), EmbedActors(number=2))
    embedding = EmbeddingSupervisor(job, ThrottleSettings(), lambda *_: None)
    with embedding.running(plan) as reports:
        embedding.wait_until_started(lambda _: None)
        assert reports.queue.get(timeout=60) is None
        assert not embedding.actors()


def test_no_thread_of_a_driver_calls_ray_after_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call while Ray is shut down ends the process by SIGSEGV."""
    monkeypatch.setattr(driving, "_CONTROL_S", 0.01)
    asked: list[float] = []

    def slowly(seconds: float) -> list[float]:
        asked.append(seconds)
        time.sleep(0.5)
        return []

    embedding: Any = SimpleNamespace(reserved=lambda: 0, set_rate=lambda rate: None)
    recorder = Recorder("test", tmp_path)
    loop = ThrottleLoop(ThrottleSettings(p99_ms=20), embedding, SimpleNamespace(recent_ms=slowly), recorder)  # type: ignore[arg-type]
    loop.start()
    while not asked:
        time.sleep(0.01)
    before = set(threading.enumerate())
    assert {loop.thread, recorder.watch._thread} <= before
    loop.close()
    recorder.watch.close()
    assert not {loop.thread, recorder.watch._thread} & set(threading.enumerate())
