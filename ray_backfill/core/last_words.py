"""A line for a process that ends without a word, as C++ code and the system's killer of processes end it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

_CODE = "import sys; sys.stdin.read() or print(sys.argv[1], file=sys.stderr)"
_watchers: list["Popen[str]"] = []


@contextmanager
def said_if_it_dies(line: str, stderr: int | None = None) -> Iterator[None]:
    """If this process dies in the block, another one says the line. stderr: where; None: standard error as it is now.

    Cost: one start of Python, some 20 ms.
    """
    command = [sys.executable, "-ISc", _CODE, line]
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
