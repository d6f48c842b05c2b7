"""Embeds the items of a drill ahead of the driver, and handles the failures of embedding actors and files."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.actor import ActorHandle

from ray_backfill.drill.operations import DrillPlan
from ray_backfill.drill.parts import BadPartError, part_path, read_broken, read_part, set_aside
from ray_backfill.drill.ray.embedding import EmbedJob, Pacer, PacerState, embed_again, embed_operations, missing_parts
from ray_backfill.drill.throttle import ThrottleSettings
from ray_backfill.engine.systems import IntArray
from ray_backfill.workers.waiting import answer_of

# Number of times the embeddings of an operation are rebuilt before the drill is aborted.
_ATTEMPTS = 3
# Seconds between checks of the actors while waiting for embeddings; seconds that the pipeline may take to stop.
_LOOK_S, _STOP_S = 1.0, 20.0


class Arrivals:
    """Tracks which operations have their embeddings on disk. drill: the drill's folder."""

    def __init__(self, drill: Path) -> None:
        self.drill = drill
        self.told: queue.Queue[BaseException | int | None] = queue.Queue()

    def wait_for(self, number: int, meanwhile: Callable[[], None]) -> None:
        """Returns when the operation's file exists. meanwhile: called every second."""
        while not part_path(self.drill, number).exists():
            try:
                told = self.told.get(timeout=_LOOK_S)
            except queue.Empty:
                meanwhile()
                continue
            if isinstance(told, BaseException):
                raise told
            if told is None and not part_path(self.drill, number).exists():
                raise RuntimeError(f"the embedding pipeline ended without the embeddings of operation {number}")


class EmbeddingSupervisor:
    """The embedding actors with their pacer, and the files that they write.

    broken: operation -> positions of its items whose image could not be read. tell: receives incidents.
    """

    def __init__(self, job: EmbedJob, throttle: ThrottleSettings, tell: Callable[[str, str], None]) -> None:
        self.job, self.tell = job, tell
        restarted = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        self.pacer: ActorHandle = restarted(Pacer).remote(throttle)
        self.paced: PacerState | None = None
        self.items_before, self.rate = 0, throttle.limit
        self.embedders: set[str] = set()
        self.lock = threading.Lock()
        self.broken: dict[int, IntArray] = {}
        self.made_again: Counter[int] = Counter()
        self.started = job.actors.number

    @contextmanager
    def running(self, plan: DrillPlan) -> Iterator[Arrivals]:
        """Embed the missing operations in the background for the duration of the block."""
        arrivals = Arrivals(self.job.drill)

        def run() -> None:
            try:
                for number in embed_operations(missing_parts(plan, self.job.drill), self.job, self.pacer):
                    arrivals.told.put(number)
                arrivals.told.put(None)
            except BaseException as error:  # the driver raises it
                arrivals.told.put(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield arrivals
        finally:
            # A running pipeline would outlive the connection to Ray, and its next call would start another Ray.
            if thread.is_alive():
                logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the failure is intended
            self.close()
            thread.join(_STOP_S)

    def note_broken(self, number: int) -> int:
        """Record which items of an operation could not be read; returns their number."""
        found = read_broken(self.job.drill, number)
        self.broken.pop(number, None)
        if len(found):
            self.broken[number] = found
        return len(found)

    def make_again(self, bad: BadPartError) -> None:
        """Set aside the embeddings of an operation, and rebuild them.

        Raises:
            RuntimeError: they have been rebuilt too often already.
        """
        self.made_again[bad.number] += 1
        if self.made_again[bad.number] > _ATTEMPTS:
            raise RuntimeError(f"{bad.reason} (rebuilt {_ATTEMPTS} times); check the disk") from bad
        self.tell("part rebuilt", bad.reason)
        set_aside(self.job.drill, bad.number)
        embed_again(bad.number, self.job)
        self.note_broken(bad.number)

    def check_parts(self, plan: DrillPlan) -> None:
        """Read all embeddings once more and rebuild unreadable ones, as later stages need them."""
        for operation in plan.operations:
            if operation.has_vectors:
                try:
                    read_part(self.job.drill, operation)
                except BadPartError as error:
                    self.make_again(error)

    def look_after(self) -> None:
        """Report embedding actors and a pacer that were restarted."""
        self.embedders |= set(self._state().pids)
        for _ in range(self.started, len(self.embedders)):
            self.tell("embedding actor restarted", "Ray Data started another one")
        self.started = max(self.started, len(self.embedders))

    def reserved(self) -> int:
        """Number of items that the pacer has let through so far."""
        state = self._state()
        return self.items_before + state.items

    def set_rate(self, items_per_s: float) -> None:
        """Set how many items all actors together may embed per second from now on."""
        self.rate = items_per_s
        answer_of(self.pacer.set_rate.remote(items_per_s))

    def _state(self) -> PacerState:
        """The pacer's state. One that was restarted gets the last rate."""
        with self.lock:  # the throttle asks, too
            state: PacerState = answer_of(self.pacer.state.remote())
            if self.paced is not None and state.incarnation != self.paced.incarnation:
                self.items_before += self.paced.items
                self.tell("pacer restarted", "the embedding actors waited for it")
                self.set_rate(self.rate)
            self.paced = state
            return state

    def close(self) -> None:
        """Kill the pacer. A running pipeline then fails with its embedding actors; a finished one is not affected."""
        ray.kill(self.pacer)
