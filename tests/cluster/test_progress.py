"""What runs in a worker is shown by the driver."""

import pickle
import time

import pytest
import ray
from ray.actor import ActorHandle

from ray_backfill.core import progress
from ray_backfill.core.progress import State, step, task
from ray_backfill.workers.progress import _Mirrors, sent_to, shown_in


def _work(board: ActorHandle, is_first: bool) -> None:
    with sent_to(board, is_first), task("train", 2, "epochs") as shown:
        with step("epoch 1", 46, "steps") as steps:
            steps.advance(12)
            time.sleep(8)  # workers send, and the driver asks, three times a second; a busy machine is slower
        shown.advance(2)
        shown.note("loss 1.0" if is_first else "of the second worker")


@pytest.mark.usefixtures("ray_session")
def test_the_first_worker_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.5)
    monkeypatch.setattr(progress, "LONGEST_HEARTBEAT_S", 0.5)
    work = ray.remote(num_cpus=0)(_work)
    with task("train old backbone") as own, shown_in(own) as board:
        assert own.text == "starting workers"
        ray.get([work.remote(board, is_first) for is_first in (True, False)])
    beat, *beats, end = capsys.readouterr().err.splitlines()
    assert beat.startswith("train old backbone: ")
    assert any("; epoch 1: 12 of 46 steps after " in line for line in (beat, *beats))
    assert end.startswith("train old backbone: 2 epochs in ")
    assert end.endswith(", loss 1.0")


@pytest.mark.usefixtures("ray_session")
def test_a_board_that_does_not_answer_costs_only_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with task("train old backbone") as own, shown_in(own) as board:
        ray.kill(board)
        time.sleep(1)
    assert capsys.readouterr().err.startswith("train old backbone: done in ")


@pytest.mark.usefixtures("ray_session")
def test_a_task_cannot_take_a_stage_along() -> None:
    with task("train") as own, pytest.raises((TypeError, pickle.PicklingError), match="another process"):
        ray.get(ray.remote(lambda: own.advance()).remote())


def test_of_many_tasks_the_first_four_have_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(progress, "LONGEST_HEARTBEAT_S", 0.1)
    tasks = {str(i): [State("step", f"map {i}", 10, "steps", i)] for i in range(6)}
    with task("fit maps", 6, "methods") as own:
        mirrors = _Mirrors(own)
        for running in (tasks, {"5": tasks["5"]}):  # the others have ended
            mirrors.show(running)
            time.sleep(1.5)
        mirrors.close(is_finished=True)
    beats = capsys.readouterr().err.splitlines()[:-1]
    shown = [{i for i in range(6) if f"; map {i}: {i} of 10 steps after " in line} for line in beats]
    assert {0, 1, 2, 3} in shown
    assert shown[-1] == {5}
    assert all(each <= {0, 1, 2, 3} or each == {5} for each in shown)  # a line may fall between two rows
