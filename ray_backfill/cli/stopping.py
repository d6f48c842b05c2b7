"""Ctrl-C and SIGTERM: whatever a command does, it ends with one line and exit code 130 or 143."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ray_backfill.core.errors import Stopped

LINE = "stopped; the same command continues where it was"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the block, a signal ends the process at once. For what leaves nothing to tidy up, such as imports.

    A module that is being imported would turn an exception into a long traceback, or into another error.
    """
    with _handled_by(_end_at_once):
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, a signal raises ``Stopped``, and the second one ends the process at once.

    Raises:
        Stopped: Also in place of an error that the signal caused, for example in a library that was being imported, or
            of the plain KeyboardInterrupt that Ray makes of it.
    """
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if came:
            _end_at_once(number, frame)
        came.append(number)
        raise Stopped(number)

    with _handled_by(stop):
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if came and not isinstance(error, Stopped):
                raise Stopped(came[0]) from error
            raise


@contextmanager
def _handled_by(handler: _Handler) -> Iterator[None]:
    """Handle the signals within the block. Only the main thread can; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, signal.SIG_DFL if handled is None else handled)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    # A live display hides the cursor. No print here: the signal may have interrupted another print.
    start = "\n\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{start}{LINE}\n".encode())
    os._exit(128 + number)


def exit_stopped(stopped: KeyboardInterrupt) -> NoReturn:
    """Print the line and exit."""
    start = "\n" if sys.stderr.isatty() else ""  # the terminal has already printed ^C
    print(f"{start}{LINE}", file=sys.stderr)
    sys.exit(128 + (stopped.signal if isinstance(stopped, Stopped) else signal.SIGINT))
