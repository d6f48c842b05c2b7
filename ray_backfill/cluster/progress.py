"""Shows the progress of the workers in the driver.

The first worker sends its running stages to an actor, which the driver polls. Ray's own log forwarding would add every
other line that the workers print, and is disabled in jobs.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import ray
from ray.actor import ActorHandle

from ray_backfill.progress import Mirror, Stage, State, relay

# Polling interval of the driver, which is the sending interval of the workers.
_POLL_S = 0.3
# How long the driver waits for the board, which may take seconds to answer if all CPUs are busy.
_PATIENCE_S = 5.0


@ray.remote(num_cpus=0)
class _Board:
    """Holds the running stages of the workers, outermost first."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def write(self, states: list[State]) -> None:
        self.states = states

    def read(self) -> list[State]:
        return self.states


@contextmanager
def shown_in(own: Stage) -> Iterator[ActorHandle]:
    """Within the block, show what workers send to the yielded board; their outermost stage is shown as ``own``."""
    own.note("starting workers")
    board = _Board.remote()  # type: ignore[attr-defined]
    stop, mirror = threading.Event(), Mirror(own)

    def show() -> None:
        mirror.show(ray.get(board.read.remote(), timeout=_PATIENCE_S))

    def poll() -> None:
        while not stop.wait(_POLL_S):
            with suppress(ray.exceptions.RayError, ConnectionError):  # does not stop the work
                show()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    is_finished = False
    try:
        yield board
        is_finished = True
    finally:
        stop.set()
        thread.join()
        if is_finished:
            with suppress(ray.exceptions.RayError, ConnectionError):
                show()  # the final state
        mirror.close(is_finished)
        ray.kill(board)


def sent_to(board: ActorHandle, is_first: bool) -> AbstractContextManager[None]:
    """In a worker, within the block: the first worker sends its running stages, the others show nothing."""
    return relay(board.write.remote if is_first else lambda states: None)
