"""A local Ray that is slow to start is started again."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from ray_backfill.cli.models import ModelsJob, embedded
from ray_backfill.core.errors import InputError
from ray_backfill.workers import session, waiting
from ray_backfill.workers.settings import Context, EmbedActors, ReplayPlace, Workers
from ray_backfill.workers.waiting import Room
from tests.head import free_port

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[psutil.Popen]:
    """Starts of a Ray that leaves a process behind and does not come up; as many as ``failing`` says."""
    made: list[psutil.Popen] = []

    def init(**options: Any) -> None:
        assert not any(process.is_running() and process.status() != "zombie" for process in made), "one is left over"
        made.append(psutil.Popen(["sleep", "60"]))
        raise Exception(SLOW)

    monkeypatch.setattr(ray, "init", init)
    return made


def test_it_is_tried_again_and_nothing_is_left_of_what_failed(
    starts: list[psutil.Popen], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="Ray did not start in 5 tries: this machine is too busy"):
        session._start_local()
    assert len(starts) == 5
    assert capfd.readouterr().err.splitlines() == [
        f"Ray did not start in time, on a machine that may be busy: try {number} of 5" for number in range(2, 6)
    ]
    assert not any(psutil.pid_exists(process.pid) for process in starts)


def test_the_second_try_may_succeed(starts: list[psutil.Popen], monkeypatch: pytest.MonkeyPatch) -> None:
    failing = ray.init

    def second(**options: Any) -> None:
        if not starts:
            failing(**options)

    monkeypatch.setattr(ray, "init", second)
    session._start_local()
    assert len(starts) == 1


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ValueError("something else")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match="something else"):
        session._start_local()


def test_where_actors_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    cluster(monkeypatch, {"CPU": 16.0, "GPU": 2.0})
    monkeypatch.setattr(session, "check_gpus", lambda with_faiss=False: asked.append(with_faiss))
    assert session.placed(EmbedActors(2)) == (2, True)
    assert session.placed(EmbedActors(), spare_gpus=1) == (1, True)
    assert session.placed(EmbedActors(4), spare_gpus=2, use_gpus=False) == (4, False), "they read stored vectors"
    with pytest.raises(InputError, match="2 shards on GPUs leave none of 2 for --actors"):
        session.placed(EmbedActors(4), spare_gpus=2)
    with pytest.raises(InputError, match="3 shards on GPUs need more than the 2 there are"):
        session.placed(EmbedActors(4), spare_gpus=3, use_gpus=False)
    assert asked == [False, True, True]
    assert session.placed(EmbedActors(4), use_gpus=False) == (4, False)
    assert len(asked) == 3, "who uses no GPU does not look at them"
    # Two GPUs are four halves or six thirds: three shards leave one or three.
    assert session.placed(EmbedActors(gpus=0.5), spare_gpus=3) == (1, True)
    assert session.placed(EmbedActors(3, gpus=1 / 3), spare_gpus=3) == (3, True)
    assert session.placed(EmbedActors(gpus=0.6)) == (2, True), "a GPU has room for one"
    with pytest.raises(InputError, match="4 shards on GPUs leave none of 4 shares of a GPU for --actors"):
        session.placed(EmbedActors(4, gpus=0.5), spare_gpus=4)
    # Ray rounds to four digits: 6 x 0.1667 would be more than one GPU.
    assert EmbedActors(gpus=1 / 6).gpus == 0.1666
    assert session.placed(EmbedActors(12, gpus=1 / 6)) == (12, True)
    for share in (2, 0.001):
        with pytest.raises(InputError, match=r"--actors\.gpus is a share of one GPU, from 0.01 to 1, got"):
            EmbedActors(gpus=share)
    assert session.placed(Workers(2, 4, decode_cpus=4)) == (2, True)
    wanted = r"\(2 x 4 CPUs and 2 x 5 that decode\) need 18 CPUs, .* has 16; lower .* --workers.decode-cpus"
    with pytest.raises(InputError, match=wanted):
        session.placed(Workers(2, 4, decode_cpus=5))


def test_a_full_disk_is_said_instead_of_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts nothing then: neither itself, nor an actor."""
    full = r"the disk of \S+ is full, so Ray starts no processes: make room there, or set RAY_TMPDIR"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
    monkeypatch.setattr(waiting, "counted_nodes", list)
    monkeypatch.setattr(waiting, "check_room", lambda *of: None)

    def init(**options: Any) -> None:
        raise Exception(SLOW)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(InputError, match=full):
        session._start_local()
    Room("2 shards", {"CPU": 2}, "")(5.0)  # nothing waits for a start yet
    with pytest.raises(InputError, match=full):
        Room("2 shards", {"CPU": 2}, "")(30.0)


def cluster(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float]) -> None:
    """A cluster that has these resources."""
    for module in (session, waiting):
        monkeypatch.setattr(module, "living_resources", lambda: resources)
    monkeypatch.setattr(session, "check_gpus", lambda with_faiss=False: None)
    monkeypatch.setattr(waiting, "Deaths", lambda: None)
    monkeypatch.setattr(waiting, "but_died", lambda deaths: "")


@pytest.mark.parametrize("processes", [Workers(), EmbedActors()])
@pytest.mark.parametrize(
    ("resources", "number", "on_gpus"),
    [
        ({"CPU": 1.0}, 1, False), ({"CPU": 2.0}, 2, False), ({"CPU": 8.0}, 2, False),
        ({"CPU": 8.0, "GPU": 1.0}, 1, True), ({"CPU": 1.0, "GPU": 2.0}, 1, True), ({"CPU": 8.0, "GPU": 4.0}, 2, True),
    ],
)  # fmt: skip
def test_a_number_that_nobody_gave_fits_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], processes: Workers | EmbedActors,
    resources: dict[str, float], number: int, on_gpus: bool,
) -> None:  # fmt: skip
    cluster(monkeypatch, resources)
    assert session.placed(processes) == (number, on_gpus)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (number < 2), "a line where it is fewer than elsewhere"
    assert all(" instead of 2: the Ray cluster has " in line for line in said)
    # What was asked for is not lowered.
    with pytest.raises(InputError, match=rf"need 9 CPUs, but the Ray cluster has {resources['CPU']:g}; lower --"):
        session.placed(replace(processes, number=9))
    if on_gpus and resources["CPU"] == 8:
        with pytest.raises(InputError, match=rf"need 5 GPUs, but the Ray cluster has {resources['GPU']:g}; lower --"):
            session.placed(replace(processes, number=5))


def test_a_drill_leaves_its_actors_what_its_shards_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, {"CPU": 2.0})
    assert session.placed(EmbedActors(), spare_cpus=1) == (1, False)
    with pytest.raises(InputError, match=r"^embedding actors \(1 x 1 CPUs\) and the drill's shards \(2\) need 3 CPUs"):
        session.placed(EmbedActors(), spare_cpus=2)


def test_everything_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, {"CPU": 2.0})
    asked = [partial(session.placed, each) for each in (Workers(3), EmbedActors(), EmbedActors(4))]
    with pytest.raises(InputError, match=r"^training workers \(3 .* need 3 .*; embedding actors \(4 .* need 4 [^\n]*$"):
        session.all_of(*asked)
    assert session.all_of(asked[1]) == [(2, False)]


def test_no_model_embeds_before_its_actors_and_shards_have_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster(monkeypatch, {"CPU": 2.0})
    monkeypatch.setenv("RAY_ADDRESS", "a cluster")
    monkeypatch.setattr(session, "session", nullcontext)
    context = Context(tmp_path, actors=EmbedActors(3), place=ReplayPlace(4))
    job = ModelsJob(out=tmp_path, old="openai:old", new="openai:new", texts="missing.csv")
    with pytest.raises(InputError, match=r"^embedding actors \(3 .* need 3 .*; 4 gallery shards need 4 [^\n]*$"):
        embedded(job.checked(), job, context)
    assert not list(tmp_path.iterdir())


def test_where_no_ray_answers_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with (
        pytest.raises(InputError, match=r"^no Ray answers at RAY_ADDRESS=127.0.0.1:\d+; start its head"),
        session.session(),
    ):
        pass
