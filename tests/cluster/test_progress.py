"""What runs in a worker is shown by the driver."""

import pickle
import re
import time

import pytest
import ray
from ray.actor import ActorHandle

from ray_backfill.core import progress
from ray_backfill.core.progress import State, Task, step, task
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


def test_the_time_of_trainings_is_measured_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trainings of 100 steps, two at a time on a clock of our own: 2 s for a step of the first, 1 s of others."""
    now_s, left = 1000.0, {}
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    own = Task(State("task", "fit maps", 3, "methods"))
    mirrors = _Mirrors(own)
    for spent_s in range(200):
        now_s = 1000.0 + spent_s
        own.done = spent_s // 100  # the second one takes 100 s, and so does the third, which begins after it
        steps = {"a": spent_s // 2, "bc"[spent_s // 100]: spent_s % 100}
        mirrors.show({name: [State("step", name, 100, "steps", done)] for name, done in steps.items()})
        left[spent_s] = own.text
    assert left[0] == left[2] == "", "no step is measured yet"
    for spent_s, text in left.items():
        if spent_s >= 10:
            seconds, share = re.fullmatch(r"about (\d+ min \d+|\d+) s left, (\d) at a time", text).groups()  # type: ignore[union-attr]
            minutes, _, rest = seconds.rpartition(" min ")
            assert share == "2"
            assert 0.8 * (200 - spent_s) <= 60 * int(minutes or 0) + int(rest) <= 1.3 * (200 - spent_s) + 2, spent_s
    mirrors.show({})
    assert own.text == ""


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
