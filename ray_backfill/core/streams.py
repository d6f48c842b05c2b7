"""Standard output and error that outlast a full disk, a closed pipe and an encoding of few characters; and a line for a
process that ends without a word, as C++ code and the system's killer of processes end it.
"""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any, TextIO

from ray_backfill.core.job import as_line

# What the encoding of a terminal may lack -> the same in ASCII. A minus sign must not be lost.
_IN_ASCII = {"−": "-", "–": "-", "’": "'", "“": '"', "”": '"', "…": "...", "→": "->", "✓": "yes", "×": "x", "≤": "<="}

_CODE = """import sys, datetime as d
if not sys.stdin.read():
    print(sys.argv[1].replace("@now", d.datetime.now(d.UTC).isoformat(timespec="milliseconds")), file=sys.stderr)"""
_watchers: list["Popen[str]"] = []


class _Lasting(io.FileIO):
    """Drops what cannot be written. problem: why, the first time."""

    problem: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.problem is None:
            try:
                return super().write(data)
            except OSError as error:
                self.problem = error
        return memoryview(data).nbytes


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(c, c.encode("ascii", "backslashreplace").decode()) for c in lacking), error.end


codecs.register_error("ray_backfill.in_ascii", _in_ascii)


def lasting(number: int, encoding: str) -> TextIO:
    """A stream to this file descriptor, which it closes. It raises no error; ``problem_of`` has what went wrong."""
    raw, lines = _Lasting(number, "w", closefd=number > 2), number > 1 or os.isatty(number)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "ray_backfill.in_ascii", line_buffering=lines)


def problem_of(stream: TextIO) -> OSError | None:
    """Why something that was written to the stream is lost; None if nothing is."""
    stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.problem if isinstance(raw, _Lasting) else None


def make_lasting() -> None:
    """Make standard output and error last. Where the caller has closed them, what a command opens is none of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest free number; to write there is an error
    for number, name in ((1, "stdout"), (2, "stderr")):
        if (given := getattr(sys, name)) is getattr(sys, f"__{name}__"):  # no test or notebook reads it
            made = lasting(number, getattr(given, "encoding", "utf-8"))
            for replaced in (name, f"__{name}__"):
                setattr(sys, replaced, made)


@contextmanager
def said_if_it_dies(line: str, stderr: int | None = None) -> Iterator[None]:
    """If this process dies in the block, another one says the line. stderr: where; None: standard error as it is now.

    Cost: one start of Python, some 20 ms.
    """
    command = [sys.executable, "-ISc", _CODE, as_line(line, time="@now")]
    watcher = Popen(command, stdin=PIPE, stderr=stderr, text=True, start_new_session=True)  # Ctrl-C does not reach it
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        watcher.communicate("alive")


def all_is_said() -> None:
    """Call before a deliberate ``os._exit``, which has a line of its own."""
    for watcher in _watchers:
        watcher.kill()
