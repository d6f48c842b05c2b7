"""Shows the progress of the workers in the driver.

Senders, such as the first worker of a training or each of several tasks, send their running rows to an actor, which
the driver polls. Ray's own log forwarding would add every other line that they print, and is disabled in jobs.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from statistics import fmean

import ray
from ray.actor import ActorHandle

from ray_backfill.core.job import TrainedEpoch, report, reported_to
from ray_backfill.core.progress import Mirror, State, Task, duration, relay
from ray_backfill.workers.waiting import answer_within
from ray_backfill.workers.watch import EPOCH, LOSS, TRAINING_RATE, Watch

# Polling interval of the driver, which is the sending interval of the workers.
_POLL_S = 0.3
# How long the driver waits for the board, which may take seconds to answer if all CPUs are busy.
_PATIENCE_S = 5.0
# Most senders to show at a time: 64 tasks would fill the screen.
_MOST_SENDERS = 4
# The row of a job (``sent_as_row``) while it counts steps, and seconds of these from which its time is estimated.
_JOB, _MEASURED_S = [("step", "steps")], 3.0


@ray.remote(num_cpus=0)
class _Board:
    """Holds the running rows of each sender, outermost first."""

    def __init__(self) -> None:
        self.states: dict[str, list[State]] = {}
        self.epochs: list[TrainedEpoch] = []

    def write(self, sender: str, states: list[State]) -> None:
        self.states[sender] = states

    def end(self, sender: str) -> None:
        self.states.pop(sender, None)

    def report(self, epoch: TrainedEpoch) -> None:
        self.epochs.append(epoch)

    def read(self, known: int) -> tuple[dict[str, list[State]], list[TrainedEpoch]]:
        """By sender, the earliest first; and the epochs after those that are known."""
        return self.states, self.epochs[known:]


@contextmanager
def shown_in(own: Task) -> Iterator[ActorHandle]:
    """Within the block, show what is sent to the yielded board; an outermost row is shown as ``own``. Report epochs."""
    own.note("starting workers")
    board = _Board.remote()  # type: ignore[attr-defined]
    stop, mirrors, watch, known = threading.Event(), _Mirrors(own), Watch(), 0

    def show() -> None:
        nonlocal known
        states, epochs = answer_within(board.read.remote(known), _PATIENCE_S)
        known += len(epochs)
        for epoch in epochs:
            report(epoch)
            for gauge, value in (
                (EPOCH, epoch.number), (LOSS, epoch.metrics["loss"]), (TRAINING_RATE, epoch.metrics["items_per_s"]),
            ):  # fmt: skip
                watch.set(gauge, value, epoch.folder.name)
        mirrors.show(states)

    def poll() -> None:
        while not stop.wait(_POLL_S):
            with suppress(ray.exceptions.RayError, ConnectionError):  # does not stop the work
                show()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    is_finished = False
    try:
        yield board
        is_finished = True
    finally:
        stop.set()
        thread.join()
        if is_finished:
            with suppress(ray.exceptions.RayError, ConnectionError):
                show()  # the final state
        mirrors.close(is_finished)
        watch.close()
        ray.kill(board)


class _Mirrors:
    """The rows of all senders below ``own``."""

    def __init__(self, own: Task) -> None:
        self._own = own
        self._of_sender: dict[str, Mirror] = {}
        # Of each job, when how many steps were first counted, and how long all of them take by those that are done.
        self._began, self._takes_s = dict[str, tuple[float, int]](), dict[str, float]()

    def show(self, states_of: Mapping[str, Sequence[State]]) -> None:
        """Show the first few of those that send, and close the rows of those that have ended."""
        for sender in [sender for sender in self._of_sender if sender not in states_of]:
            self._of_sender.pop(sender).close(is_finished=True)
        for sender, states in states_of.items():
            if sender not in self._of_sender and len(self._of_sender) < _MOST_SENDERS:
                self._own.note("")  # the workers have started
                self._of_sender[sender] = Mirror(self._own)
            if sender in self._of_sender:
                self._of_sender[sender].show(states)
        jobs = {sender: row[0] for sender, row in states_of.items() if [(s.kind, s.unit) for s in row] == _JOB}
        if jobs or self._began:
            self._own.note(self._left(jobs))

    def _left(self, jobs: Mapping[str, State]) -> str:
        """How long all jobs take, by the steps of those that run side by side now: the others take as long as these."""
        now_s, left_s = time.monotonic(), []
        for sender, job in jobs.items():
            began_s, before = self._began.setdefault(sender, (now_s, job.done))
            if now_s - began_s >= _MEASURED_S and job.total and job.done > before:
                step_s = (now_s - began_s) / (job.done - before)
                self._takes_s[sender] = step_s * job.total
                left_s.append(step_s * (job.total - job.done))
        if not left_s:
            return ""
        others = (self._own.total or 0) - self._own.done - len(left_s)
        all_s = max(*left_s, (sum(left_s) + others * fmean(self._takes_s.values())) / len(jobs))
        return f"about {duration(round(all_s))} left, {len(jobs)} at a time"

    def close(self, is_finished: bool) -> None:
        """Close all rows."""
        for mirror in self._of_sender.values():
            mirror.close(is_finished)


@contextmanager
def sent_to(board: ActorHandle, is_first: bool) -> Iterator[None]:
    """In a worker, within the block: the first worker sends its running rows and epochs, the others show nothing."""
    with (
        relay(partial(board.write.remote, "first worker") if is_first else lambda states: None),
        reported_to(partial(_send_epoch, board) if is_first else lambda epoch: None),
    ):
        yield


@contextmanager
def sent_as_row(board: ActorHandle, sender: str) -> Iterator[None]:
    """In one of several tasks, within the block: send its outermost step with the amount of the innermost."""

    def send(states: list[State]) -> None:
        if states:
            inner = states[-1]
            row = replace(states[0], total=inner.total, unit=inner.unit, done=inner.done)
            board.write.remote(sender, [row])

    try:
        with relay(send), reported_to(partial(_send_epoch, board)):
            yield
    finally:
        board.end.remote(sender)


def _send_epoch(board: ActorHandle, epoch: TrainedEpoch) -> None:
    """Wait until it is there: where it is the last one, this process ends."""
    with suppress(ray.exceptions.RayError, ConnectionError):
        answer_within(board.report.remote(epoch), _PATIENCE_S)
