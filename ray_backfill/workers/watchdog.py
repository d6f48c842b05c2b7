"""What Ray's servers do and say, in one line each: the run ends if one of a local Ray dies, and notices become lines.

Without its servers, calls of the driver wait for a minute; then Ray ends the process without a word. What they publish
to every driver, Ray prints as paragraphs on stdout; no setting prevents that: ``log_to_driver`` concerns the output of
workers only.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import Popen
from typing import Any

import psutil
import ray

from ray_backfill.core.progress import say

_POLL_S = 0.25
# The processes that Ray cannot do without, as Ray names them.
_SERVERS = ("gcs_server", "raylet")

_DEAD = re.compile(r"node id: (\w+) and address: (\S+) .*has been marked dead", re.DOTALL)
_MEMORY = re.compile(r"memory pressure \(OOM\)|running low on memory")
_PLACE = re.compile(r"\bIP: ([\d.]+)|\baddress: ([\d.]+)")


@contextmanager
def watched() -> Iterator[None]:
    """Within the block, end the process with exit code 1 if a server of the Ray that it started dies."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ended,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()  # before Ray is shut down
        watcher.join()


def _without_rays_threads(hook: Callable[[threading.ExceptHookArgs], object]) -> Callable[..., object]:
    """The hook for exceptions in threads, but silent about those that Ray starts in the driver.

    If a server dies, they print tracebacks, on a busy machine before the watcher prints its line; and so does what Ray
    Data still runs when Ray is shut down.
    """

    def hook_of_others(raised: threading.ExceptHookArgs) -> None:
        if raised.thread is None or not raised.thread.name.startswith(("ray_", "StreamingExecutor")):
            hook(raised)

    return hook_of_others


def _watch(ended: threading.Event) -> None:
    node = ray._private.worker._global_node
    while not ended.wait(_POLL_S):
        dead = [(name, process) for name, process in node.dead_processes() if name in _SERVERS]
        if dead and not ended.is_set():
            start = "\n\x1b[?25h" if sys.stderr.isatty() else ""  # a live display hides the cursor
            print(start + _line(*dead[0], node.get_logs_dir_path()), file=sys.stderr, flush=True)
            kill([process.pid for _, process in node.live_processes()])
            # An exception would not reach a main thread that waits for Ray.
            os._exit(1)


def kill(processes: list[int]) -> None:
    """Kill these processes and all that they have started, which would wait for the dead server."""
    for number in processes:
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(number)
            for process in (*server.children(recursive=True), server):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _line(name: str, process: "Popen[bytes]", logs: str) -> str:
    code = process.returncode
    how = f"exit code {code}"
    if code < 0:
        how = f"signal {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += ", perhaps for lack of memory"
    return (
        f"error: Ray's {name} died (process {process.pid}, {how}), so the run cannot go on; Ray's logs are in {logs}; "
        "the same command continues where it was"
    )


def in_own_words(message: str) -> str | None:
    """The line for a message, or None if it says nothing that a user needs: the details are in Ray's logs."""
    if dead := _DEAD.search(message):
        return f"node {dead[2]} ({dead[1][:8]}) of the Ray cluster died"
    if _MEMORY.search(message):
        place = _PLACE.search(message)
        where = f"node {place[1] or place[2]}" if place else "a node"
        return f"{where} of the Ray cluster is short of memory: Ray ended processes on it"
    return None


@contextmanager
def rays_notices_as_lines() -> Iterator[None]:
    """Within the block, print each line once on stderr, above the live display if there is one.

    Ray's threads in the driver print nothing.
    """
    module: Any = ray._private.worker
    hook, threading.excepthook = threading.excepthook, _without_rays_threads(threading.excepthook)
    before, said = module.print_to_stdstream, set[str]()

    def tell(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        line = in_own_words("\n".join(data["lines"]))
        if line is not None and line not in said:
            said.add(line)
            say(line)

    module.print_to_stdstream = tell
    try:
        yield
    finally:
        module.print_to_stdstream, threading.excepthook = before, hook
