"""Shows in the driver how far work on other machines is.

Workers tell an actor, the driver asks it a few times a second. Ray's own log forwarding would mix in every other line
that the workers print, and is off in jobs.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from tqdm import tqdm

# A log file does not need a line several times a second.
_POLL_S = 0.3 if sys.stderr.isatty() else 10.0


@ray.remote(num_cpus=0)
class Progress:
    """Holds how many units are done and one line of text about the last of them."""

    def __init__(self) -> None:
        self.done, self.text = 0, ""

    def set(self, done: int, text: str) -> None:
        self.done, self.text = done, text

    def get(self) -> tuple[int, str]:
        return self.done, self.text


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[ActorHandle]:
    """A bar in the driver for the length of the block; hand the yielded actor to the workers and call its ``set``."""
    actor = Progress.remote()  # type: ignore[attr-defined]
    stop = threading.Event()
    with tqdm(total=total, desc=title, unit=f" {unit}", dynamic_ncols=True) as bar:

        def show() -> None:
            done, text = ray.get(actor.get.remote())
            bar.set_postfix_str(text, refresh=False)
            bar.n = done
            bar.refresh()

        def poll() -> None:
            while not stop.wait(_POLL_S):
                show()

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield actor
            stop.set()
            thread.join()
            show()
        finally:
            stop.set()
            ray.kill(actor)
