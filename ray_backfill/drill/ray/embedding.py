"""Embeds the items of operations in backfill order with Ray Data, and stores them before any shard sees them.

As in ``embed``, operation numbers stream to a pool of actors; an actor embeds an operation's items and writes them
itself, and only numbers come back. An existing file is never made again. In the driver, a supervisor handles the
failures of actors and of files.
"""

import asyncio
import logging
import os
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data  # sets levels of logs, so it is imported before a session sets them
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import remove_folder
from ray_backfill.data.columns import part_files
from ray_backfill.drill.jobs import FromImages, FromItems, FromStore, PartsJob
from ray_backfill.drill.parts import BadPartError, Embedded, part_path, read_broken, read_part, set_aside, write_part
from ray_backfill.drill.plan import DrillPlan, read_plan
from ray_backfill.drill.settings import ThrottleSettings
from ray_backfill.drill.throttle import TokenBucket
from ray_backfill.encode.encoder import Model, same_model
from ray_backfill.encode.kinds import load_model
from ray_backfill.encode.part import ATTEMPTS, attempt, contents_of
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.images.reading import read_ahead
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.session import embedded_parts
from ray_backfill.workers.settings import number_of
from ray_backfill.workers.waiting import Look, answer_of

# Niceness of embedding actors, so that other processes of the node go first, above all the shards.
_NICE = 10
# Number of times the embeddings of an operation are rebuilt before the drill is aborted.
_ATTEMPTS = 3
# Texts or images of a user that are embedded before the throttle is asked again.
_ITEMS = 64
# Seconds between checks of the actors while waiting for embeddings; seconds that the pipeline may take to stop.
_LOOK_S, _STOP_S = 1.0, 20.0
# Seconds between two looks whether all actors have started, and after which some of them are enough.
_POLL_S, _START_S = 0.1, 60.0

Embed = Callable[[IntArray, tuple[str, ...]], Embedded]


class Pacer:
    """An actor that paces all embedding actors, so that together they keep to one rate. None embeds before it has one.

    Ray starts it again if it dies, and repeats calls; it then counts from zero.
    """

    def __init__(self, settings: ThrottleSettings) -> None:
        self.bucket, self.has_rate = TokenBucket(settings.limit, time()), asyncio.Event()
        self.incarnation, self.items = uuid4().hex, 0

    async def state(self) -> "PacerState":
        return PacerState(self.incarnation, self.items)

    async def reserve(self, items: int) -> float:
        """Seconds that an actor waits before it embeds this many items."""
        self.items += items
        await self.has_rate.wait()
        return self.bucket.reserve(items, time())

    async def set_rate(self, items_per_s: float) -> None:
        self.bucket.set_rate(items_per_s, time())
        self.has_rate.set()


@dataclass(frozen=True)
class PacerState:
    """items: that the actors asked this incarnation for."""

    incarnation: str
    items: int


def embed_again(number: int, job: PartsJob) -> None:
    """Embed one operation immediately, without reserving a CPU; returns when its file exists."""
    if isinstance(job.source, FromImages):
        job = replace(job, source=replace(job.source, on_gpu=False, lent=0))
    elif isinstance(job.source, FromItems):
        job = replace(job, source=replace(job.source, device=replace(job.source.device, name="cpu")))
    row = answer_of(ray.remote(num_cpus=0)(lambda: _OperationEmbedder(job)({"number": number})).remote())
    if row["problem"]:
        raise InputError(row["problem"])


class _OperationEmbedder:
    """One embedding actor; models and source stay loaded.

    With a pacer (in the pool) it runs at low CPU priority and waits for its turn; without one it does neither.
    """

    def __init__(self, job: PartsJob) -> None:
        os.nice(_NICE if job.pacer is not None else 0)
        self.job, self.plan = job, read_plan(job.drill / "plan")
        source, wait = job.source, self._wait
        if isinstance(source, FromStore):
            self.embed = _from_store(source, wait)
        else:
            self.embed = _from_items(source, wait) if isinstance(source, FromItems) else _from_images(source, wait)

    def __call__(self, row: dict[str, int]) -> dict[str, Any]:
        operation = self.plan.operations[row["number"]]
        if not part_path(self.job.drill, operation.number).is_file():
            models = self.job.old if operation.kind == "rollback" else self.job.new
            what = f"the {len(operation.positions)} items of operation {operation.number}"
            try:
                with attempt(self.job.drill / ATTEMPTS, str(operation.number), what) as mark:
                    mark.write_text(f"embedded them with the model {' and '.join(models)}")
                    write_part(self.job.drill, operation, self.embed(operation.positions, models))
            except InputError as error:  # Ray Data would wrap it in a long traceback and lose its type
                return row | {"problem": str(error)}
        return row | {"problem": ""}

    def _wait(self, items: int) -> None:
        if self.job.pacer is not None:
            sleep(answer_of(self.job.pacer.reserve.remote(items)))


def _from_store(source: FromStore, wait: Callable[[int], None]) -> Embed:
    @cache
    def vectors_of(models: tuple[str, ...]) -> dict[str, FloatArray]:
        return source.gallery.vectors(0, source.n_items, models)

    def embed(positions: IntArray, models: tuple[str, ...]) -> Embedded:
        wait(len(positions))
        return Embedded(positions, {model: values[positions] for model, values in vectors_of(models).items()})

    return embed


def _from_items(source: FromItems, wait: Callable[[int], None]) -> Embed:
    sys.path[:0] = [folder for folder in source.path if folder not in sys.path]
    items = pa.concat_tables([pq.read_table(part) for part in part_files(source.items / "gallery.parquet")])
    place = {item: row for row, item in enumerate(items["id"].to_pylist())}
    ids_N = source.gallery.ids().tolist()

    @cache
    def model_of(name: str) -> Model:
        model = load_model(source.specs[name], source.modality, source.device)
        if not same_model(model.probes(), source.probes[name]):
            raise InputError(f"the {name} model gives other vectors in an actor than here; use one model on all nodes")
        return model

    def embed(positions: IntArray, models: tuple[str, ...]) -> Embedded:
        rows, parts = [place[ids_N[position]] for position in positions.tolist()], []
        before = {name: model_of(name).tokens for name in models}
        for first in range(0, len(rows), _ITEMS):  # the throttle lets a few items through at a time
            wait(len(rows[first : first + _ITEMS]))
            contents, broken = contents_of(items.take(pa.array(rows[first : first + _ITEMS])), source.device.threads)
            kept = [i for i in range(len(contents)) if i not in broken]
            vectors = {name: model_of(name).embed([contents[i] for i in kept], "document") for name in models}
            of_part = positions[first : first + _ITEMS]
            parts.append((of_part[kept], vectors, [(int(of_part[i]), why) for i, why in broken.items()]))
        joined = {name: np.concatenate([vectors[name] for _, vectors, _ in parts]) for name in models}
        lost = tuple(item for *_, broken in parts for item in broken)
        tokens = {name: model_of(name).tokens - read for name, read in before.items()}
        embedded = np.concatenate([of_part for of_part, *_ in parts])
        return _without_useless(Embedded(embedded, joined, lost, tokens), True)

    return embed


def _from_images(source: FromImages, wait: Callable[[int], None]) -> Embed:
    import torch

    from ray_backfill.learn.models.backbones import Backbone, embedding, load_backbone, pixels_to_float

    images = source_for(source.data, source.threads, source.lent)
    device = torch.device("cuda" if source.on_gpu else "cpu")
    torch.set_num_threads(source.threads)
    ids_N = source.gallery.ids()
    all_ids = images.items("gallery").ids_N
    by_id = np.argsort(all_ids, kind="stable")

    @cache
    def network_of(model: str) -> Backbone:
        return load_backbone(source.backbones[model])[0].to(device)

    def embed(positions: IntArray, models: tuple[str, ...]) -> Embedded:
        networks = {model: network_of(model) for model in models}
        outputs = {m: [np.empty((0, n.classifier.in_features), np.float32)] for m, n in networks.items()}
        rows = by_id[np.searchsorted(all_ids, ids_N[positions], sorter=by_id)]
        batches = [rows[i : i + source.batch] for i in range(0, len(rows), source.batch)]
        is_broken, broken, done = np.zeros(len(rows), np.bool_), [], 0
        for of_batch, pixels in read_ahead(images, "gallery", batches, source.threads + source.lent):
            wait(len(of_batch))
            for i, reason in sorted(pixels.broken.items()):
                is_broken[done + i] = True
                broken.append((int(positions[done + i]), reason))
            good = ~is_broken[done : done + len(of_batch)]
            done += len(of_batch)
            if good.any():
                with embedding():
                    batch = pixels_to_float(torch.from_numpy(pixels.pixels_BSSC[good]).to(device))
                    for model, network in networks.items():
                        outputs[model].append(network.embed(batch).cpu().numpy())
        vectors: dict[str, FloatArray] = {model: np.concatenate(values) for model, values in outputs.items()}
        return _without_useless(Embedded(positions[~is_broken], vectors, tuple(broken)), source.zero_is_broken)

    return embed


def _without_useless(embedded: Embedded, zero_is_broken: bool) -> Embedded:
    """Treat items whose embedding cannot be compared as broken, so that they keep their old embedding."""
    is_finite = np.all([np.isfinite(values).all(axis=1) for values in embedded.vectors.values()], axis=0)
    is_zero = np.any([~values.any(axis=1) for values in embedded.vectors.values()], axis=0) & zero_is_broken
    good = is_finite & ~is_zero
    useless = [(int(p), "its embedding is zero or not finite") for p in embedded.positions[~good]]
    vectors = {model: values[good] for model, values in embedded.vectors.items()}
    return Embedded(embedded.positions[good], vectors, (*embedded.broken, *useless), embedded.tokens)


class PartReports:
    """Tracks which operations have their embeddings on disk. drill: the drill's folder."""

    def __init__(self, drill: Path) -> None:
        self.drill = drill
        self.queue: queue.Queue[BaseException | int | None] = queue.Queue()

    def wait_for(self, number: int, meanwhile: Callable[[], None]) -> None:
        """Returns when the operation's file exists. meanwhile: called every second."""
        while not part_path(self.drill, number).is_file():
            try:
                report = self.queue.get(timeout=_LOOK_S)
            except queue.Empty:
                meanwhile()
                continue
            if isinstance(report, BaseException):
                raise report
            if report is None and not part_path(self.drill, number).is_file():
                raise RuntimeError(f"the embedding pipeline ended without the embeddings of operation {number}")


class EmbeddingSupervisor:
    """The embedding actors with their pacer, and the files that they write.

    broken: operation -> positions of its items whose image could not be read. tell: receives incidents.
    """

    def __init__(self, job: PartsJob, throttle: ThrottleSettings, tell: Callable[[str, str], None]) -> None:
        self.job, self.tell = job, tell
        restarted = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        self.pacer: ActorHandle = restarted(Pacer).remote(throttle)
        self.paced: PacerState | None = None
        self.items_before = 0
        self.rate: float | None = None
        self.earlier, self.deaths = set[str](), 0
        self.earlier = {actor["ActorID"] for actor in self.actors()}  # of another drill of this process
        self.lock = threading.Lock()
        self.broken: dict[int, IntArray] = {}
        self.made_again: Counter[int] = Counter()
        self.wanted = 0

    @contextmanager
    def running(self, plan: DrillPlan) -> Iterator[PartReports]:
        """Embed the missing operations in the background for the duration of the block, from ``set_rate`` on."""
        reports = PartReports(self.job.drill)
        remove_folder(self.job.drill / ATTEMPTS)  # of an earlier command
        there = set(part_path(self.job.drill, 0).parent.glob("*.parquet"))
        missing = [o.number for o in plan.embedded if part_path(self.job.drill, o.number) not in there]

        self.wanted = min(number_of(self.job.actors), len(missing))
        source = self.job.source
        on_gpu = (isinstance(source, FromImages) and source.on_gpu) or (
            isinstance(source, FromItems) and source.device.name == "cuda"
        )
        job, pool = replace(self.job, pacer=self.pacer), replace(self.job.actors, number=max(1, self.wanted))
        numbers = [{"number": number} for number in missing]

        def run() -> None:
            try:
                for row in embedded_parts(_OperationEmbedder, job, numbers, pool, on_gpu) if missing else ():
                    reports.queue.put(row["number"])  # its file exists; roughly in this order
                reports.queue.put(None)
            except BaseException as error:  # the driver raises it
                reports.queue.put(error)

        self.thread = thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield reports
        finally:
            # A running pipeline would outlive the connection to Ray, and its next call would start another Ray.
            if thread.is_alive():
                logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the failure is intended
            self.close()
            thread.join(_STOP_S)

    def wait_until_started(self, look: Look) -> None:
        """Returns when all actors have started and one waits for a rate, with its model, or if nothing is missing.

        look: called meanwhile. Actors that other work of the cluster leaves no room are waited for a minute.
        """
        began = monotonic()
        while self.thread.is_alive():
            started = sum(actor["State"] == "ALIVE" for actor in self.actors())
            if self._state().items and (started >= self.wanted or monotonic() - began > _START_S):
                return
            look(monotonic() - began)
            sleep(_POLL_S)

    def note_broken(self, number: int) -> int:
        """Record which items of an operation could not be read; returns their number."""
        positions = read_broken(self.job.drill, number)
        self.broken.pop(number, None)
        if len(positions):
            self.broken[number] = positions
        return len(positions)

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
        """Read all embeddings once more and rebuild unreadable ones, as the tables need them."""
        for operation in plan.embedded:
            try:
                read_part(self.job.drill, operation)
            except BadPartError as error:
                self.make_again(error)

    def look_after(self) -> None:
        """Report embedding actors and a pacer that died."""
        self._state()
        before, self.deaths = self.deaths, sum(actor["NumRestarts"] for actor in self.actors())
        for _ in range(before, self.deaths):
            self.tell("embedding actor died", "Ray starts it again if it is needed")

    def reserved(self) -> int:
        """Number of items that the pacer has let through so far."""
        state = self._state()
        return self.items_before + state.items

    def set_rate(self, items_per_s: float) -> None:
        """Set how many items all actors together may embed per second from now on. The first rate starts them."""
        self.rate = items_per_s
        answer_of(self.pacer.set_rate.remote(items_per_s))

    def actors(self) -> list[dict[str, Any]]:
        """What Ray knows of the embedding actors, dead ones included; it also counts the restarts of idle ones."""
        job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
        known = ray._private.state.actors(job_id=job)
        name = f"MapWorker(Map({_OperationEmbedder.__name__}))"
        return [of for actor, of in known.items() if of["ActorClassName"] == name and actor not in self.earlier]

    def _state(self) -> PacerState:
        """The pacer's state. One that was restarted gets the last rate."""
        with self.lock:  # the throttle asks, too
            state: PacerState = answer_of(self.pacer.state.remote())
            if self.paced is not None and state.incarnation != self.paced.incarnation:
                self.items_before += self.paced.items
                self.tell("pacer restarted", "the embedding actors waited for it")
                if self.rate is not None:
                    self.set_rate(self.rate)
            self.paced = state
            return state

    def close(self) -> None:
        """Kill the pacer. A running pipeline then fails with its embedding actors; a finished one is not affected."""
        ray.kill(self.pacer)
