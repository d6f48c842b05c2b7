"""The driver of a drill: has items embedded, stored and applied while queries are served, and measures on the way.

Everything that it learns goes to disk as it happens (the journal, the answers at checkpoints, the events of the
traffic), so that a driver that was killed is continued by the next one.
"""

import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ray_backfill.cluster.drill.embedding import embed_operations, missing_parts
from ray_backfill.cluster.drill.service import Drill, Service
from ray_backfill.cluster.drill.watch import write_targets
from ray_backfill.live.parts import part_path

# Between two looks at the actors while the driver waits for embeddings; and how long the pipeline may take to stop.
_LOOK_S, _STOP_S = 1.0, 20.0


def run_drill(drill: Drill) -> None:
    """Do what of the plan is not done, in a connected Ray; returns when all of it is applied and measured.

    Leaves ``journal.jsonl``, ``parts``, ``answers`` and ``events`` in the drill's folder.

    Raises:
        RuntimeError: a shard did not come back, or an answer broke an invariant.
    """
    write_targets(drill.folder / "prometheus_targets.json")
    drill.journal.mend()
    entries = drill.journal.entries()
    if any(entry["kind"] == "finished" for entry in entries):
        return
    with _serving(drill, entries) as service:
        if not entries:
            service.rest(drill.settings.traffic.warm_up_s + drill.settings.quiet_s)
        _backfill(drill, service, {entry["moment"] for entry in entries if entry["kind"] == "checkpoint"})
        service.rest(drill.settings.quiet_s)
        service.check_parts()
        service.note("finished")


def _backfill(drill: Drill, service: Service, measured: set[int]) -> None:
    """Apply operation after operation as their embeddings arrive, and measure at every checkpoint."""
    plan, done = drill.plan, drill.journal.applied()
    total = sum(len(o.positions) for o in plan.operations if o.kind == "backfill")
    before = sum(len(o.positions) for o in plan.operations[:done] if o.kind == "backfill")
    with (
        _embedding(drill, service) as arrived,
        tqdm(total=total, initial=before, desc="backfill", unit=" items", dynamic_ncols=True) as bar,
    ):
        for checkpoint in plan.checkpoints:
            for operation in plan.operations[done : checkpoint.applied]:
                if operation.has_vectors:
                    arrived.wait_for(operation.number, partial(service.look_after, operation.number))
                service.apply(operation.number + 1)
                if operation.kind == "backfill":
                    bar.update(len(operation.positions))
            done = max(done, checkpoint.applied)
            if checkpoint.moment not in measured:
                bar.write(service.measure(checkpoint), file=sys.stderr)


class _Arrivals:
    """Which operations have their embeddings on disk, as the pipeline tells."""

    def __init__(self, parts: Path) -> None:
        self.parts = parts
        self.told: queue.Queue[BaseException | int | None] = queue.Queue()

    def wait_for(self, number: int, meanwhile: Callable[[], None]) -> None:
        """Returns when the file is there. meanwhile: is called every second."""
        while not part_path(self.parts, number).exists():
            try:
                told = self.told.get(timeout=_LOOK_S)
            except queue.Empty:
                meanwhile()
                continue
            if isinstance(told, BaseException):
                raise told
            if told is None and not part_path(self.parts, number).exists():
                raise RuntimeError(f"the pipeline has ended without the embeddings of operation {number}")


@contextmanager
def _embedding(drill: Drill, service: Service) -> Iterator[_Arrivals]:
    """The pipeline runs beside the driver for the length of the block, ahead of what is applied."""
    arrived = _Arrivals(drill.embed.parts)

    def run() -> None:
        try:
            missing = missing_parts(drill.plan, drill.embed.parts)
            for number in embed_operations(missing, drill.embed, service.pacer, drill.actors):
                arrived.told.put(number)
            arrived.told.put(None)
        except BaseException as error:  # the driver raises it
            arrived.told.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield arrived
    finally:
        # Left alone it would outlive the connection to Ray, and start a Ray of its own with its next call.
        if thread.is_alive():
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # that it fails now is meant
        service.stop_embedding()
        thread.join(_STOP_S)


@contextmanager
def _serving(drill: Drill, entries: list[dict[str, Any]]) -> Iterator[Service]:
    """Shards and traffic for the length of the block."""
    service = Service(drill, entries)
    try:
        service.start()
        yield service
        service.stop_traffic()
    finally:
        service.close()
