"""Embeds the items of operations in backfill order with Ray Data, and stores them before any shard sees them.

As in ``embed``, operation numbers stream to a pool of actors; an actor embeds an operation's items and writes them
itself, and only numbers come back. An existing file is never made again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import sleep, time
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import ray.data
import torch
from ray.actor import ActorHandle

from ray_backfill.data.folder import StoredSplit
from ray_backfill.drill.operations import DrillPlan, read_plan
from ray_backfill.drill.parts import Embedded, part_path, write_part
from ray_backfill.drill.throttle import ThrottleSettings, TokenBucket
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.images.datasets import open_images
from ray_backfill.images.reading import read_ahead
from ray_backfill.learn.models.backbones import Backbone, load_backbone, pixels_to_float
from ray_backfill.workers.settings import EmbedActors
from ray_backfill.workers.waiting import answer_of

# Niceness of embedding actors, so that other processes of the node go first, above all the shards.
_NICE = 10

Embed = Callable[[IntArray, tuple[str, ...]], Embedded]


@dataclass(frozen=True)
class FromImages:
    """Items are images. data: ``Settings`` of a source. backbones: model -> folder. gallery: the items,
    as far as they are embedded.

    zero_is_broken: treat a zero embedding as a broken image, as it has no cosine distance.
    """

    data: Any
    backbones: dict[str, Path]
    gallery: StoredSplit
    batch: int
    threads: int = 1
    on_gpu: bool = False
    zero_is_broken: bool = True


@dataclass(frozen=True)
class FromStore:
    """Items are rows of a gallery that already has the new embeddings; the backfill only moves them.

    n_items: of the gallery.
    """

    gallery: StoredSplit
    n_items: int


@dataclass(frozen=True)
class EmbedJob:
    """drill: the drill's folder. old, new: models that embed for a rollback, and for all else. actors: their pool."""

    drill: Path
    source: FromImages | FromStore
    old: tuple[str, ...]
    new: tuple[str, ...]
    actors: EmbedActors


class Pacer:
    """An actor that paces all embedding actors, so that together they keep to one rate.

    It also counts how many of them have started: more than expected means that some have died. Ray starts it again if
    it dies, and repeats calls; it then counts from zero.
    """

    def __init__(self, settings: ThrottleSettings) -> None:
        self.bucket = TokenBucket(settings.limit, time())
        self.incarnation, self.pids, self.items = uuid4().hex, dict[str, int](), 0

    def hello(self, actor: str, pid: int) -> None:
        """Called once by each actor that starts."""
        self.pids[actor] = pid

    def state(self) -> "PacerState":
        return PacerState(self.incarnation, self.pids, self.items)

    def reserve(self, items: int) -> float:
        """Seconds to wait before embedding this many items."""
        self.items += items
        return self.bucket.reserve(items, time())

    def set_rate(self, items_per_s: float) -> None:
        self.bucket.set_rate(items_per_s, time())


@dataclass(frozen=True)
class PacerState:
    """pids: of the embedding actors that started, by a name of each. items: let through. Both by this incarnation."""

    incarnation: str
    pids: dict[str, int]
    items: int


def embed_operations(numbers: Sequence[int], job: EmbedJob, pacer: ActorHandle) -> Iterator[int]:
    """Embed and store these operations; yields each number once its file exists, roughly in this order."""
    if not numbers:
        return
    on_gpu = isinstance(job.source, FromImages) and job.source.on_gpu
    ray.data.DataContext.get_current().enable_progress_bars = False
    finished = ray.data.from_items([{"number": n} for n in numbers], override_num_blocks=len(numbers)).map(
        _Embedder,
        fn_constructor_kwargs={"job": job, "pacer": pacer},
        compute=ray.data.ActorPoolStrategy(size=min(job.actors.number, len(numbers))),
        num_cpus=job.actors.cpus,
        num_gpus=1 if on_gpu else 0,
    )
    for row in finished.iter_rows():
        yield int(row["number"])


def embed_again(number: int, job: EmbedJob) -> None:
    """Embed one operation immediately, without reserving a CPU; returns when its file exists."""
    if isinstance(job.source, FromImages):
        job = replace(job, source=replace(job.source, on_gpu=False))
    answer_of(ray.remote(num_cpus=0)(lambda: _Embedder(job, None)({"number": number})).remote())


def missing_parts(plan: DrillPlan, drill: Path) -> list[int]:
    """Operations whose embeddings are not stored yet. drill: the drill's folder."""
    return [o.number for o in plan.operations if o.has_vectors and not part_path(drill, o.number).exists()]


class _Embedder:
    """One embedding actor; models and source stay loaded.

    With a pacer (in the pool) it reports its start, runs at low CPU priority and waits for its turn; without one it
    does none of this.
    """

    def __init__(self, job: EmbedJob, pacer: ActorHandle | None) -> None:
        os.nice(_NICE if pacer is not None else 0)
        self.job, self.pacer, self.plan = job, pacer, read_plan(job.drill / "plan")
        source, wait = job.source, self._wait
        self.embed = _from_store(source, wait) if isinstance(source, FromStore) else _from_images(source, wait)
        if pacer is not None:
            pacer.hello.remote(uuid4().hex, os.getpid())

    def __call__(self, row: dict[str, int]) -> dict[str, int]:
        operation = self.plan.operations[row["number"]]
        if not part_path(self.job.drill, operation.number).exists():
            models = self.job.old if operation.kind == "rollback" else self.job.new
            write_part(self.job.drill, operation, self.embed(operation.positions, models))
        return row

    def _wait(self, items: int) -> None:
        if self.pacer is not None:
            sleep(answer_of(self.pacer.reserve.remote(items)))


def _from_store(source: FromStore, wait: Callable[[int], None]) -> Embed:
    @cache
    def vectors_of(models: tuple[str, ...]) -> dict[str, FloatArray]:
        return source.gallery.vectors(0, source.n_items, models)

    def embed(positions: IntArray, models: tuple[str, ...]) -> Embedded:
        wait(len(positions))
        return Embedded(positions, {model: values[positions] for model, values in vectors_of(models).items()})

    return embed


def _from_images(source: FromImages, wait: Callable[[int], None]) -> Embed:
    images = open_images(source.data)
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
        for of_batch, pixels in read_ahead(images, "gallery", batches, source.threads):
            wait(len(of_batch))
            for i, reason in sorted(pixels.broken.items()):
                is_broken[done + i] = True
                broken.append((int(positions[done + i]), reason))
            good = ~is_broken[done : done + len(of_batch)]
            done += len(of_batch)
            if good.any():
                with torch.inference_mode():
                    batch = pixels_to_float(torch.from_numpy(pixels.pixels_BSSC[good]).to(device))
                    for model, network in networks.items():
                        outputs[model].append(network.embed(batch).cpu().numpy())
        vectors: dict[str, FloatArray] = {model: np.concatenate(values) for model, values in outputs.items()}
        return _without_useless(Embedded(positions[~is_broken], vectors, tuple(broken)), source.zero_is_broken)

    return embed


def _without_useless(found: Embedded, zero_is_broken: bool) -> Embedded:
    """Treat items whose embedding cannot be compared as broken, so that they keep their old embedding."""
    is_finite = np.all([np.isfinite(values).all(axis=1) for values in found.vectors.values()], axis=0)
    is_zero = np.any([~values.any(axis=1) for values in found.vectors.values()], axis=0) & zero_is_broken
    good = is_finite & ~is_zero
    useless = [(int(p), "its embedding is zero or not finite") for p in found.positions[~good]]
    vectors = {model: values[good] for model, values in found.vectors.items()}
    return Embedded(found.positions[good], vectors, (*found.broken, *useless))
