"""What Ray's servers do and say, in one line each: the run ends if one that it needs dies, and notices become lines.

Without these servers, calls of the driver wait for a minute; then Ray ends the process without a word. What servers
publish to every driver, Ray prints as paragraphs on stdout; no setting prevents that: ``log_to_driver`` concerns the
output of workers only.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import ray

from ray_backfill.core.job import as_line
from ray_backfill.core.progress import say
from ray_backfill.core.streams import all_is_said, said_if_it_dies
from ray_backfill.workers.waiting import answers_at

_POLL_S = 0.25
# The processes that Ray cannot do without, as Ray names them.
_SERVERS = ("gcs_server", "raylet")
# Seconds between two looks at a cluster. How long its head may be silent: one that keeps its state elsewhere can come
# back, and Ray waits a minute for it. How long the server of this node may: it cannot come back, and the next call that
# needs it ends the process without a word.
_LOOK_S, _SILENT_S, _GONE_S = 0.5, 40.0, 4.0

_DEAD = re.compile(r"node id: (\w+) and address: (\S+) .*has been marked dead", re.DOTALL)
_MEMORY = re.compile(r"memory pressure \(OOM\)|running low on memory")
_PLACE = re.compile(r"\bIP: ([\d.]+)|\baddress: ([\d.]+)")


@contextmanager
def watched(watch: Callable[[threading.Event, int], None]) -> Iterator[None]:
    """Within the block, end the process with exit code 1 if Ray's servers die. watch: which ones, a function below."""
    # Standard error is another file while Ray starts.
    ended, stderr = threading.Event(), os.dup(2)
    watcher = threading.Thread(target=watch, args=(ended, stderr), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()  # before Ray is shut down
        watcher.join()
        os.close(stderr)


def _without_rays_threads(hook: Callable[[threading.ExceptHookArgs], object]) -> Callable[..., object]:
    """The hook for exceptions in threads, but silent about those that Ray starts in the driver.

    If a server dies, they print tracebacks, on a busy machine before the watcher prints its line; and so does what Ray
    Data still runs when Ray is shut down.
    """

    def hook_of_others(raised: threading.ExceptHookArgs) -> None:
        if raised.thread is None or not raised.thread.name.startswith(("ray_", "StreamingExecutor")):
            hook(raised)

    return hook_of_others


def watch_own(ended: threading.Event, stderr: int) -> None:
    """End the process if a server of the Ray that it started dies."""
    node = ray._private.worker._global_node
    while not ended.wait(_POLL_S):
        dead = [(name, process) for name, process in node.dead_processes() if name in _SERVERS]
        if dead and not ended.is_set():
            name, server = dead[0]
            code = server.returncode
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            how += ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
            line = (
                f"error: Ray's {name} died (process {server.pid}, {how}), so the run cannot go on; Ray's logs are in "
                f"{node.get_logs_dir_path()}; the same command continues where it was"
            )
            _end(stderr, line, [process.pid for _, process in node.live_processes()])


def watch_cluster(ended: threading.Event, stderr: int) -> None:
    """End the process if the head of the cluster of RAY_ADDRESS, or the server of this node, is silent for too long."""
    head, this = "head of the Ray cluster", "Ray of this node"
    limits, heard = {head: _SILENT_S, this: _GONE_S}, dict[str, float]()
    again = "start Ray again, and the same command continues where it was"
    # Ray's C++ code ends a process that calls the server of its node before that is noticed to be gone.
    with said_if_it_dies(f"error: this process was killed, or the {this} died; {again}", stderr):
        while not ended.wait(_LOOK_S):
            node = ray._private.worker._global_node  # None: not connected yet
            servers = {head: node.gcs_address if node else os.environ.get("RAY_ADDRESS", "")}
            servers |= {this: f"{node.node_ip_address}:{node.node_manager_port}"} if node else {}
            for name, address in servers.items():
                if answers_at(address):
                    heard[name] = time.monotonic()
                silent_s = time.monotonic() - heard.setdefault(name, time.monotonic())
                if silent_s > limits[name] and not ended.is_set():
                    silent = f"the {name} ({address}) has not answered for {limits[name]:g} s"
                    _end(stderr, f"error: {silent}; {again}")


def _end(stderr: int, line: str, others: Sequence[int] = ()) -> None:
    """End the process, and these others. An exception would not reach a main thread that waits for Ray."""
    start = "\n\x1b[?25h" if os.isatty(stderr) else ""  # a live display hides the cursor
    os.write(stderr, f"{start}{as_line(line)}\n".encode())
    kill(others)
    all_is_said()
    os._exit(1)


def kill(processes: Sequence[int]) -> None:
    """Kill these processes and all that they have started, which would wait for the dead server."""
    for number in processes:
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(number)
            for process in (*server.children(recursive=True), server):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@contextmanager
def rays_notices_as_lines() -> Iterator[None]:
    """Within the block, print each line once on stderr, above the live display if there is one.

    Ray's threads in the driver print nothing.
    """
    module: Any = ray._private.worker
    hook, threading.excepthook = threading.excepthook, _without_rays_threads(threading.excepthook)
    before, said = module.print_to_stdstream, set[str]()

    def tell(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        message, line = "\n".join(data["lines"]), ""  # the rest says nothing that a user needs
        if dead := _DEAD.search(message):
            line = f"node {dead[2]} ({dead[1][:8]}) of the Ray cluster died"
        elif _MEMORY.search(message):
            place = _PLACE.search(message)
            where = f"node {place[1] or place[2]}" if place else "a node"
            line = f"{where} of the Ray cluster is short of memory: Ray ended processes on it"
        if line and line not in said:
            said.add(line)
            say(line, "warning")

    module.print_to_stdstream = tell
    try:
        yield
    finally:
        module.print_to_stdstream, threading.excepthook = before, hook
