"""Every wait for Ray says what it waits for, and ends; a long computation is not cut off."""

import ast
import os
import time
from pathlib import Path

import pytest
import ray

from ray_backfill.core.errors import InputError
from ray_backfill.workers import waiting
from ray_backfill.workers.waiting import Actors, answer_of, answers_of, ended, wait_for_one

CLUSTER = Path(waiting.__file__).parent


@pytest.mark.parametrize("file", sorted(CLUSTER.rglob("*.py")), ids=lambda path: str(path.relative_to(CLUSTER)))
def test_nothing_else_waits_for_ray(file: Path) -> None:
    waits = [
        f"{file.name}:{node.lineno}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("ray", "get"), ("ray", "wait")}
    ]
    assert bool(waits) == (file.name == "waiting.py"), waits


def test_every_wait_of_ray_has_a_timeout() -> None:
    calls = [node for node in ast.walk(ast.parse((CLUSTER / "waiting.py").read_text())) if isinstance(node, ast.Call)]
    waits = [call for call in calls if ast.unparse(call.func) in ("ray.get", "ray.wait")]
    assert len(waits) >= 3
    assert all("timeout" in [keyword.arg for keyword in call.keywords] for call in waits)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_S", 0.1), ("_TELL_S", 0.2), ("_START_S", 1.0)):
        monkeypatch.setattr(waiting, name, seconds)


@ray.remote(num_cpus=1)
class Actor:
    def __init__(self, seconds: float = 0) -> None:
        time.sleep(seconds)

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def die(self) -> None:
        os._exit(1)

    def late(self) -> None:
        raise ray.exceptions.GetTimeoutError("its own")


def test_actors_without_room_are_told_and_given_up(
    ray_session: None, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cpus = int(ray.cluster_resources()["CPU"])
    others = [Actor.remote() for _ in range(cpus - 1)]  # type: ignore[attr-defined]
    answers_of([actor.__ray_ready__.remote() for actor in others])
    actors = [Actor.remote() for _ in range(2)]  # type: ignore[attr-defined]
    try:
        room = rf"[01] of {cpus} CPUs are free"
        with pytest.raises(
            InputError, match=rf"^2 shards could not be started in 1 s \({room}\); try later, or lower -n$"
        ):
            Actors(actors, "shard", {"CPU": 1}, "-n").wait_until_started()
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith("waiting for 2 shards to start: ")
    finally:
        for actor in (*others, *actors):
            ray.kill(actor)


def test_a_long_call_is_watched_and_not_cut_off(
    ray_session: None, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_START_S", 120.0)  # on a busy machine, too
    actor, looked = Actor.remote(), list[float]()  # type: ignore[attr-defined]
    try:
        together = Actors([actor], "shard", {"CPU": 1}, "-n")
        together.wait_until_started()
        assert together.answers([actor.sleep.remote(2.5)], "as it happens") == [2.5]
        assert answer_of(actor.sleep.remote(1.5), looked.append) == 1.5
        assert len(looked) > 2
        assert looked == sorted(looked)
        with pytest.raises(ray.exceptions.GetTimeoutError, match="its own"):
            answer_of(actor.late.remote())
        calls = [actor.sleep.remote(0.0), actor.sleep.remote(3.0)]
        done, running = wait_for_one(calls)
        assert (done, running) == (calls[:1], calls[1:])
        assert ended(calls) == calls[:1]
        with pytest.raises(InputError, match=r"^a shard died, as it happens$"):
            together.answers([actor.die.remote()], "as it happens")
    finally:
        ray.kill(actor)
