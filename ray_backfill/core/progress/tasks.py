"""A running stage: what it counts, and the words for it."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

# When it ends, a stage leaves a line, a step leaves one if it took long, and a detail leaves none.
Kind = Literal["stage", "step", "detail"]

LONG_S = 2.0
# The time left is estimated from the last counts, which are at least so far apart, and not from fewer than these.
_MARK_S, _MARKS, _FEWEST_MARKS = 0.5, 60, 6


@dataclass(frozen=True)
class State:
    """What a stage says about itself, as plain data for other processes. total: None if it is not known."""

    kind: Kind
    title: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    text: str = ""


class Task:
    """A running stage, step or detail. Any thread may report to it. It stays in its process: it does not pickle.

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
        raise TypeError("a stage cannot be sent to another process; see ray_backfill.workers.progress for workers")

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
        """Show the amount and the text of another stage as this one's."""
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
        title = ", ".join(stage.title for stage in (*self.outer, self))
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
