"""What the terminal shows while work runs.

    with task("embed", total=1730, unit="images") as bar:
        bar.advance(256)

On a terminal all that runs has a row in a live display. Elsewhere nothing is redrawn: a line says that a stage has
ended, and after ten seconds of silence, then after twenty, forty and so on, a line says what still runs. A *stage* is a
part of a run that users know by name, and always leaves a line. A *step* leaves a line if it took long; within a stage
only on a terminal. A *detail* leaves none.

In a worker ``relay`` sends what runs there to the driver, where a ``Mirror`` shows it: see ``cluster.progress``.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from ray_backfill.core.printable import printable
from ray_backfill.core.progress.outputs import Output, Relay, output_for_stderr
from ray_backfill.core.progress.tasks import State, Task

__all__ = ["Mirror", "State", "Task", "detail", "relay", "say", "stage", "step", "track"]

T = TypeVar("T")


@contextmanager
def task(title: str, total: int | None = None, unit: str = "", done: int = 0) -> Iterator[Task]:
    """A part of a run that users know by name. done: what earlier runs have done of the total."""
    with _shown(State("stage", title, total, unit, done)) as running:
        yield running


@contextmanager
def step(title: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
    """A part of a stage that users know by name, too, or something that is seldom long."""
    with _shown(State("step", title, total, unit)) as running:
        yield running


@contextmanager
def detail(title: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
    """How far a stage or a step is."""
    with _shown(State("detail", title, total, unit)) as running:
        yield running


def track(items: Iterable[T], title: str, unit: str = "", total: int | None = None) -> Iterator[T]:
    """The items one by one, as a detail that counts them."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    with detail(title, total, unit) as running:
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
    """Shows what runs in another process: its outermost stage as ``own``, the rest below that."""

    def __init__(self, own: Task) -> None:
        self._own = own
        self._below: list[Task] = []

    def show(self, states: Sequence[State]) -> None:
        """What runs there now, outermost first."""
        if states and states[0].kind == "stage":
            self._own.take(states[0])
            states = states[1:]
        titles = [state.title for state in states]
        while [shown.title for shown in self._below] != titles[: len(self._below)]:
            _display.close(self._below.pop(), is_finished=True)
        for state in states[len(self._below) :]:
            self._below.append(_display.open(state, outer=(*self._own.outer, self._own, *self._below)))
        for shown, state in zip(self._below, states, strict=True):
            shown.take(state)

    def close(self, is_finished: bool) -> None:
        """Nothing runs there any more."""
        while self._below:
            _display.close(self._below.pop(), is_finished)


class _Display:
    """All that runs in this process, and the thread that shows it while something does."""

    def __init__(self) -> None:
        self.make_output: Callable[[], Output] = output_for_stderr
        self._lock = threading.RLock()
        self._running: list[Task] = []  # outermost first
        self._output: Output | None = None
        self._ended = threading.Event()

    def open(self, state: State, outer: Sequence[Task] | None = None) -> Task:
        """outer: what it is a part of; None: everything that runs."""
        with self._lock:
            opened = Task(state, self._running if outer is None else outer)
            self._running.append(opened)
            if self._output is None:
                self._output, self._ended = self.make_output(), threading.Event()
                threading.Thread(target=self._keep_showing, args=(self._output, self._ended), daemon=True).start()
        return opened

    def close(self, closed: Task, is_finished: bool) -> None:
        with self._lock:
            assert self._output is not None
            self._running.remove(closed)
            self._output.end(closed, closed.end() if is_finished else "", self._running)
            if not self._running:
                self._ended.set()
                self._output.close()
                self._output = None

    def say(self, line: str) -> None:
        with self._lock:
            output = self._output or self.make_output()
            output.tell(printable(line))
            if self._output is None:
                output.close()

    def _keep_showing(self, output: Output, ended: threading.Event) -> None:
        while not ended.wait(output.pause_s):
            with self._lock:
                if not ended.is_set():
                    output.beat(self._running)


@contextmanager
def _shown(state: State) -> Iterator[Task]:
    """Show it for the length of the block. What fails leaves no line: the error says it."""
    running = _display.open(state)
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
