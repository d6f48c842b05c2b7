"""What the terminal shows while work runs.

    with task("embed", total=1730, unit="images") as bar:
        bar.advance(256)

On a terminal all that runs has a row in a live display. Elsewhere nothing is redrawn: a line says that a task has
ended, and after ten seconds of silence, then after twenty, forty and so on, a line says what still runs. A *task* is a
part of a run that users know by name, and always leaves a line. A *step* leaves a line if it took long; within a task
only on a terminal. A *detail* leaves none.

In a worker ``relay`` sends what runs there to the driver, where a ``Mirror`` shows it: see ``workers.progress``.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TextIO, TypeVar

from ray_backfill.core.job import as_line, says_json
from ray_backfill.core.printable import printable
from ray_backfill.core.streams import lasting

T = TypeVar("T")
# When it ends, a task leaves a line, a step leaves one if it took long, and a detail leaves none.
TaskKind = Literal["task", "step", "detail"]
LONG_S = 2.0
# The time left is estimated from the last counts, which are at least so far apart, and not from fewer than these.
_MARK_S, _MARKS, _FEWEST_MARKS = 0.5, 60, 6
# In a pipe a line says what runs after so many seconds without one. The pause doubles with every such line.
HEARTBEAT_S, LONGEST_HEARTBEAT_S = 10.0, 600.0
# What is shorter is not worth a row or a word.
VISIBLE_S: dict[TaskKind, float] = {"task": 0.0, "step": 0.5, "detail": 2.0}
_BAR_WIDTH = 16


@dataclass(frozen=True)
class State:
    """What a task says about itself, as plain data for other processes. total: None if it is not known."""

    kind: TaskKind
    title: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    text: str = ""


class Task:
    """A running task, step or detail. Any thread may report to it. It stays in its process: it does not pickle.

    outer: what it is a part of, outermost first.
    """

    def __init__(self, state: State, outer: Sequence["Task"] = ()) -> None:
        self.outer = tuple(outer)
        self.kind, self.title = state.kind, state.title
        self.total, self.unit, self.text = state.total, state.unit, state.text
        self.began_s = time.monotonic()
        self._done = state.done
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)  # when so many units were done
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("a task cannot be sent to another process; see ray_backfill.workers.progress for workers")

    @property
    def done(self) -> int:
        """Number of units that are done."""
        return self._done

    @done.setter
    def done(self, done: int) -> None:
        if done == self._done:
            return
        if done < self._done:  # it has begun anew
            self._marks.clear()
        self._done, now_s = done, time.monotonic()
        # The first mark is the first count, not the start: loading and warming up say nothing about the rate.
        if not self._marks or now_s - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now_s, done))

    def advance(self, amount: int = 1) -> None:
        """So many more units are done."""
        with self._lock:
            self.done += amount

    def expect(self, total: int, done: int | None = None) -> None:
        """Set the total where it was not known at the start. The time left is estimated from what is done from now on.

        done: units that were done before.
        """
        self.total = total
        self._done = self._done if done is None else done
        self._marks.clear()

    def note(self, text: str) -> None:
        """A few words about the work, shown behind its amount."""
        self.text = text

    def state(self) -> State:
        """A copy that can travel."""
        return State(self.kind, self.title, self.total, self.unit, self.done, self.text)

    def take(self, state: State) -> None:
        """Show the amount and the text of another task as this one's."""
        if state.total is not None and state.total != self.total:
            self.expect(state.total, state.done)
        self.done, self.unit, self.text = state.done, state.unit, state.text

    def status(self) -> str:
        """``1,024 of 1,730 images after 20 s, 14 s left, model-bound``, or ``running for 20 s``."""
        seconds = duration(int(time.monotonic() - self.began_s))
        amount = self._amount(f"{number(self.done)} of ")
        parts = (f"{amount} after {seconds}" if amount else f"running for {seconds}", self._left(), self.text)
        return ", ".join(part for part in parts if part)

    def end(self) -> str:
        """``embed: 1,730 images in 34 s, model-bound``; empty where it leaves no line."""
        seconds = time.monotonic() - self.began_s
        if self.kind == "detail" or (self.kind == "step" and seconds < LONG_S):
            return ""
        title = ", ".join(part.title for part in (*self.outer, self))
        return f"{title}: {self._amount() or 'done'} in {duration(seconds)}{f', {self.text}' if self.text else ''}"

    def _amount(self, done_of: str = "") -> str:
        """Empty where nothing is counted."""
        if self.total is None and not self.done:
            return ""
        one = (self.done if self.total is None else self.total) == 1
        unit = f" {self.unit.removesuffix('s') if one else self.unit}" if self.unit else ""
        return f"{number(self.done)}{unit}" if self.total is None else f"{done_of}{number(self.total)}{unit}"

    def _left(self) -> str:
        """Empty where the time left cannot be estimated."""
        marks = tuple(self._marks)
        if self.total is None or len(marks) < _FEWEST_MARKS or self.done >= self.total:
            return ""
        since_s, before = marks[0]
        left_s = round((time.monotonic() - since_s) * (self.total - self.done) / (self.done - before))
        return f"{duration(left_s)} left" if left_s else ""


def duration(seconds: float, most: int = 120) -> str:
    """``0.4 s``, ``27 s``, ``3 min 20 s``, ``2 h 5 min``; of an int without decimals.

    most: so many seconds are said in minutes, and so many minutes in hours.
    """
    if isinstance(seconds, float) and seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < most:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < most else f"{minutes // 60} h {minutes % 60} min"


def number(count: int) -> str:
    """``1,730``; from ten million on ``12 M``."""
    return f"{count:,}" if count < 10_000_000 else f"{count / 1e6:,.0f} M"


def task(title: str, total: int | None = None, unit: str = "", done: int = 0) -> AbstractContextManager[Task]:
    """A part of a run that users know by name. done: what earlier runs have done of the total."""
    return _shown(State("task", title, total, unit, done))


def step(title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Task]:
    """A part of a task that users know by name, too, or something that is seldom long."""
    return _shown(State("step", title, total, unit))


def detail(title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Task]:
    """How far a task or a step is."""
    return _shown(State("detail", title, total, unit))


def track(items: Iterable[T], title: str, unit: str = "", total: int | None = None) -> Iterator[T]:
    """The items one by one, as a detail that counts them."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    with detail(title, total, unit) as running:
        for count, item in enumerate(items, 1):
            yield item
            running.done = count


def is_shown() -> bool:
    """Whether anything runs that is shown, so that a further row has a place."""
    return bool(_display.running)


def say(line: str, level: Literal["info", "warning"] = "info") -> None:
    """Print a line on stderr, above the live display if there is one. level: of a line as JSON."""
    _display.say(as_line(printable(line), level))


@contextmanager
def relay(send: Callable[[list[State]], Any]) -> Iterator[None]:
    """Send what runs in this process, a few times a second, instead of showing it here."""
    _display.make_output = lambda: Relay(send)
    try:
        yield
    finally:
        _display.make_output = output_for_stderr


class Mirror:
    """Shows what runs in another process: its outermost task as ``own``, the rest below that."""

    def __init__(self, own: Task) -> None:
        self._own = own
        self._below: list[Task] = []

    def show(self, states: Sequence[State]) -> None:
        """What runs there now, outermost first."""
        if states and states[0].kind == "task":
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


class Output:
    """Shows what runs; this one shows nothing."""

    pause_s: float

    def beat(self, running: Sequence[Task]) -> None:
        """Called after every pause. running: outermost first."""

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        """Called when a task has ended. line: what to say about it, or empty. running: what still runs."""

    def tell(self, line: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Called when nothing runs any more."""


class Relay(Output):
    """Sends what runs to where it can be seen. The other side says itself when something has ended."""

    pause_s = 0.3

    def __init__(self, send: Callable[[list[State]], Any]) -> None:
        self._send = send

    def beat(self, running: Sequence[Task]) -> None:
        self._send([shown.state() for shown in running])

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        if closed.kind == "task":  # the others may be many and short
            self.beat([*running, closed])


class _OnStderr(Output):
    """Writes to a private copy of stderr, because ``workers.session`` redirects that of the process while Ray starts.

    Where a notebook or a test has replaced ``sys.stderr``, it is that.
    """

    def __init__(self) -> None:
        given = sys.__stderr__
        self._is_own = given is not None and sys.stderr is given
        self._stream: TextIO = sys.stderr
        if self._is_own:
            self._stream = lasting(os.dup(sys.stderr.fileno()), sys.stderr.encoding)

    def tell(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        if self._is_own:
            self._stream.close()


class Lines(_OnStderr):
    """Plain lines for pipes, log files and notebooks: one for each task, and rarer and rarer signs of life."""

    pause_s = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._last_s, self._patience_s = time.monotonic(), HEARTBEAT_S

    def beat(self, running: Sequence[Task]) -> None:
        visible = _visible(running)
        if visible and time.monotonic() - self._last_s >= self._patience_s:
            line, of = "; ".join(f"{shown.title}: {shown.status()}" for shown in visible), visible[0]
            self.tell(as_line(line, done=of.done, total=of.total, unit=of.unit))
            self._patience_s = min(2 * self._patience_s, LONGEST_HEARTBEAT_S)

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        is_part = closed.kind == "step" and bool(running)  # dozens of methods would be dozens of lines
        if line and not is_part:
            self.tell(as_line(line, done=closed.done, total=closed.total, unit=closed.unit))

    def tell(self, line: str) -> None:
        super().tell(line)
        self._last_s = time.monotonic()


class LiveRows(_OnStderr):
    """A row for each running task below the lines that stay; redrawn in place, and gone when nothing runs."""

    pause_s = 0.2

    def __init__(self) -> None:
        super().__init__()
        self._live: Any = None  # the part of the terminal that is redrawn, once there is a row
        self._spinner: Any = None

    def beat(self, running: Sequence[Task]) -> None:
        visible = _visible(running)
        if self._live is None and visible:
            self._start()
        if self._live is not None:
            self._live.update(self._table(visible), refresh=True)

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        if self._live is not None:
            self.beat(running)  # the row goes before the line comes
        if line:
            self.tell(line)

    def tell(self, line: str) -> None:
        if self._live is None:
            super().tell(line)
        else:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        super().close()

    def _start(self) -> None:
        from rich.console import Console  # slow to import, and seldom needed
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots")
        self._live = Live(
            console=Console(file=self._stream),
            auto_refresh=False,  # ``beat`` comes a few times a second
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file must not end up here
        )
        self._live.start()

    def _table(self, shown: Sequence[Task]) -> Any:
        """A row for each of these tasks, outermost first."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = self._live.console.width
        bar_width = min(_BAR_WIDTH, width // 5)
        titles = [Text("  " * depth + task.title) for depth, task in enumerate(shown)]
        title_width = min(width // 3, max((title.cell_len for title in titles), default=0))
        # The bar's column is there if one of them has a bar.
        used = 2 + title_width + 1 + (bar_width + 1 if any(task.total for task in shown) else 1)
        rows = Table.grid(padding=(0, 1))
        for title, task in zip(titles, shown, strict=True):
            title.truncate(title_width, overflow="ellipsis", pad=True)
            bar = ProgressBar(task.total, min(task.done, task.total), bar_width) if task.total else ""
            status = Text(task.status(), style="dim")
            status.truncate(max(0, width - used), overflow="ellipsis")
            rows.add_row(self._spinner, title, bar, status)
        return rows


def _visible(running: Sequence[Task]) -> list[Task]:
    now = time.monotonic()
    return [task for task in running if now - task.began_s >= VISIBLE_S[task.kind]]


class _Display:
    """All that runs in this process, and the thread that shows it while something does."""

    def __init__(self) -> None:
        self.make_output: Callable[[], Output] = output_for_stderr
        self._lock = threading.RLock()
        self.running: list[Task] = []  # outermost first
        self._output: Output | None = None
        self._ended = threading.Event()

    def open(self, state: State, outer: Sequence[Task] | None = None) -> Task:
        """outer: what it is a part of; None: everything that runs."""
        with self._lock:
            opened = Task(state, self.running if outer is None else outer)
            self.running.append(opened)
            if self._output is None:
                self._output, self._ended = self.make_output(), threading.Event()
                threading.Thread(target=self._keep_showing, args=(self._output, self._ended), daemon=True).start()
        return opened

    def close(self, closed: Task, is_finished: bool) -> None:
        with self._lock:
            assert self._output is not None
            self.running.remove(closed)
            self._output.end(closed, closed.end() if is_finished else "", self.running)
            if not self.running:
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
                    output.beat(self.running)


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


def output_for_stderr() -> Output:
    """Live rows if stderr is a terminal that can redraw them, else lines."""
    can_redraw = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", None)
    return LiveRows() if can_redraw and not says_json() else Lines()


def _start_anew() -> None:
    """A forked process has no thread that shows, and perhaps a lock that nobody holds."""
    global _display
    _display = _Display()


_display = _Display()
os.register_at_fork(after_in_child=_start_anew)
