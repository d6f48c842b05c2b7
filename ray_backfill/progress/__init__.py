"""What the terminal shows while work runs.

    with stage("embed", total=1730, unit="images") as bar:
        bar.advance(256)

On a terminal each running stage has a row in a live display. Elsewhere nothing is redrawn: a line says that a stage has
ended, and after ten seconds of silence a line says what still runs. A *stage* is a part of a run that users know by
name, and always leaves a line. A *step* is a part of a stage, or of no stage, and leaves a line if it took long.

In a worker ``relay`` sends what runs there to the driver, where a ``Mirror`` shows it: see ``cluster.progress``.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from ray_backfill.progress.outputs import Output, Relay, output_for_stderr
from ray_backfill.progress.stages import Stage, State

__all__ = ["Mirror", "Stage", "State", "relay", "say", "stage", "step", "track"]

T = TypeVar("T")

# A step shorter than this leaves no line; nor does a step inside of a step.
_TOLD_S = 2.0


@contextmanager
def stage(title: str, total: int | None = None, unit: str = "", done: int = 0) -> Iterator[Stage]:
    """A part of a run that users know by name. done: what earlier runs have done of the total."""
    with _shown(Stage(State(title, total, unit, done=done))) as running:
        yield running


@contextmanager
def step(title: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
    """A part of a stage, or what is seldom long."""
    with _shown(Stage(State(title, total, unit, is_step=True))) as running:
        yield running


def track(items: Iterable[T], title: str, unit: str = "", total: int | None = None) -> Iterator[T]:
    """The items one by one, as a step that counts them."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    with step(title, total, unit) as running:
        for count, item in enumerate(items, 1):
            yield item
            running.done = count


def say(line: str) -> None:
    """Print a line on stderr, above the live display if there is one."""
    _display.say(line)


@contextmanager
def relay(send: Callable[[list[State]], Any]) -> Iterator[None]:
    """Send what runs in this process, a few times a second, instead of showing it here."""
    _display.make_output = lambda: Relay(send)
    try:
        yield
    finally:
        _display.make_output = output_for_stderr


class Mirror:
    """Shows what runs in another process: its outermost stage as ``own``, and its steps below that."""

    def __init__(self, own: Stage) -> None:
        self._own = own
        self._steps: list[Stage] = []

    def show(self, states: Sequence[State]) -> None:
        """What runs there now, outermost first."""
        if states and not states[0].is_step:
            self._own.take(states[0])
            states = states[1:]
        titles = [state.title for state in states]
        while [shown.title for shown in self._steps] != titles[: len(self._steps)]:
            _display.close(self._steps.pop(), is_finished=True)
        for title in titles[len(self._steps) :]:
            self._steps.append(_display.open(Stage(State(title, is_step=True))))
        for shown, state in zip(self._steps, states, strict=True):
            shown.take(state)

    def close(self, is_finished: bool) -> None:
        """Nothing runs there any more."""
        while self._steps:
            _display.close(self._steps.pop(), is_finished)


class _Display:
    """All that runs in this process, and the thread that shows it while something does."""

    def __init__(self) -> None:
        self.make_output: Callable[[], Output] = output_for_stderr
        self._lock = threading.RLock()
        self._running: list[Stage] = []  # outermost first
        self._output: Output | None = None
        self._ended = threading.Event()

    def open(self, opened: Stage) -> Stage:
        with self._lock:
            self._running.append(opened)
            if self._output is None:
                self._output, self._ended = self.make_output(), threading.Event()
                threading.Thread(target=self._keep_showing, args=(self._output, self._ended), daemon=True).start()
        return opened

    def close(self, closed: Stage, is_finished: bool) -> None:
        with self._lock:
            assert self._output is not None
            outer = self._running[: self._running.index(closed)]
            self._running.remove(closed)
            line = closed.end(outer) if is_finished and _is_told(closed, outer) else ""
            self._output.end(closed, line, self._running)
            if not self._running:
                self._ended.set()
                self._output.close()
                self._output = None

    def say(self, line: str) -> None:
        with self._lock:
            output = self._output or self.make_output()
            output.tell(line)
            if self._output is None:
                output.close()

    def _keep_showing(self, output: Output, ended: threading.Event) -> None:
        while not ended.wait(output.pause_s):
            with self._lock:
                if not ended.is_set():
                    output.beat(self._running)


def _is_told(closed: Stage, outer: Sequence[Stage]) -> bool:
    """Whether a stage or step that has ended leaves a line."""
    if not closed.is_step:
        return True
    return not any(stage.is_step for stage in outer) and time.monotonic() - closed.began_s >= _TOLD_S


@contextmanager
def _shown(running: Stage) -> Iterator[Stage]:
    """Show it for the length of the block. What fails is not told: the error is."""
    _display.open(running)
    is_finished = False
    try:
        yield running
        is_finished = True
    finally:
        _display.close(running, is_finished)


def _start_anew() -> None:
    """A forked process has no thread that shows, and perhaps a lock that nobody holds."""
    global _display
    _display = _Display()


_display = _Display()
os.register_at_fork(after_in_child=_start_anew)
