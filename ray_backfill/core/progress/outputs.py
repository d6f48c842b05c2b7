"""Where running stages are shown: as lines, as rows that are redrawn, or in another process."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from ray_backfill.core.progress.tasks import Kind, State, Task

# In a pipe a line tells what runs after so many seconds without one. The pause doubles with every such line.
HEARTBEAT_S, LONGEST_HEARTBEAT_S = 10.0, 600.0
# What is shorter is not worth a row or a word.
VISIBLE_S: dict[Kind, float] = {"stage": 0.0, "step": 0.5, "detail": 2.0}


class Output(Protocol):
    """Shows what runs."""

    pause_s: float

    def beat(self, running: Sequence[Task]) -> None:
        """Called after every pause. running: outermost first."""

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        """Called when a stage has ended. line: what to tell about it, or empty. running: what still runs."""

    def tell(self, line: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Called when nothing runs any more."""


def output_for_stderr() -> Output:
    """Rows if stderr is a terminal that can redraw them, else lines."""
    return Rows() if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", None) else Lines()


class Lines:
    """Plain lines for pipes, log files and notebooks: one for each stage, and rarer and rarer signs of life."""

    pause_s = 0.5

    def __init__(self) -> None:
        self._stderr, self._last_s, self._patience_s = _Stderr(), time.monotonic(), HEARTBEAT_S

    def beat(self, running: Sequence[Task]) -> None:
        visible = _visible(running)
        if visible and time.monotonic() - self._last_s >= self._patience_s:
            self.tell("; ".join(f"{stage.title}: {stage.status()}" for stage in visible))
            self._patience_s = min(2 * self._patience_s, LONGEST_HEARTBEAT_S)

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        is_part = closed.kind == "step" and bool(running)  # dozens of methods would be dozens of lines
        if line and not is_part:
            self.tell(line)

    def tell(self, line: str) -> None:
        self._stderr.print(line)
        self._last_s = time.monotonic()

    def close(self) -> None:
        self._stderr.close()


class Rows:
    """A row for each running stage below the lines that stay; redrawn in place, and gone when nothing runs."""

    pause_s = 0.2

    def __init__(self) -> None:
        self._stderr = _Stderr()
        self._drawing: Any = None

    def beat(self, running: Sequence[Task]) -> None:
        visible = _visible(running)
        if self._drawing is None and visible:
            from ray_backfill.core.progress.drawing import Drawing

            self._drawing = Drawing(self._stderr.stream)
        if self._drawing is not None:
            self._drawing.draw(visible)

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        if self._drawing is not None:
            self.beat(running)  # the row goes before the line comes
        if line:
            self.tell(line)

    def tell(self, line: str) -> None:
        if self._drawing is None:
            self._stderr.print(line)
        else:
            self._drawing.print_above(line)

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()
        self._stderr.close()


class Relay:
    """Sends what runs to where it can be seen."""

    pause_s = 0.3

    def __init__(self, send: Callable[[list[State]], Any]) -> None:
        self._send = send

    def beat(self, running: Sequence[Task]) -> None:
        self._send([stage.state() for stage in running])

    def end(self, closed: Task, line: str, running: Sequence[Task]) -> None:
        if closed.kind == "stage":  # the others may be many and short
            self.beat([*running, closed])

    def tell(self, line: str) -> None:
        """The other side tells the ends of what it shows."""

    def close(self) -> None:
        """The other side knows when this one has ended."""


def _visible(running: Sequence[Task]) -> list[Task]:
    now = time.monotonic()
    return [stage for stage in running if now - stage.began_s >= VISIBLE_S[stage.kind]]


class _Stderr:
    """Standard error by a descriptor of our own: while Ray starts, that of the process goes elsewhere.

    See ``cluster.session``. Where a notebook or a test has replaced ``sys.stderr``, it is that.
    """

    def __init__(self) -> None:
        given = sys.__stderr__
        self._is_own = given is not None and sys.stderr is given
        self.stream: TextIO = sys.stderr
        if self._is_own:
            number = os.dup(sys.stderr.fileno())
            self.stream = open(number, "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)  # noqa: PTH123, SIM115

    def print(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def close(self) -> None:
        if self._is_own:
            self.stream.close()
