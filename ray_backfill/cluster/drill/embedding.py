"""Embeds the items of operations in the order of the backfill, by Ray Data, and stores them before any shard sees them.

As in ``embed``: numbers of operations stream to a pool of actors, an actor embeds an operation's items and writes them
itself, and only numbers come back. A file that is there is never made twice.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep, time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import ray
import ray.data
import torch
from numpy.typing import NDArray
from ray.actor import ActorHandle

from ray_backfill.cluster.embed import EmbedActors
from ray_backfill.datasets import open_source
from ray_backfill.images.reading import read_ahead
from ray_backfill.live.operations import DrillPlan, Operation, read_plan
from ray_backfill.live.parts import Embedded, part_path, write_part
from ray_backfill.live.throttle import ThrottleSettings, TokenBucket
from ray_backfill.models.backbones import Backbone, pixels_to_float
from ray_backfill.models.checkpoints import load_backbone
from ray_backfill.store import read_table
from ray_backfill.systems import FloatArray, IntArray

# How much embedding actors stand back behind the other processes of their node, the shards above all.
_NICE = 10

Embed = Callable[[IntArray, Sequence[str]], Embedded]


@dataclass(frozen=True)
class FromImages:
    """Items are images. data: ``Settings`` of a source. backbones: model -> folder. gallery: table with their ids.

    zero_is_broken: an embedding of zeros counts as a broken image: it has no cosine distance.
    """

    data: Any
    backbones: dict[str, Path]
    gallery: Path
    batch: int
    threads: int = 1
    on_gpu: bool = False
    zero_is_broken: bool = True


@dataclass(frozen=True)
class FromStore:
    """Items are rows of a table that has the new embeddings already: the backfill only brings them in."""

    gallery: Path


@dataclass(frozen=True)
class EmbedJob:
    """drill: its folder. old, new: models that embed for a rollback, and for everything else. actors: that do it."""

    drill: Path
    source: FromImages | FromStore
    old: tuple[str, ...]
    new: tuple[str, ...]
    actors: EmbedActors


class Pacer:
    """An actor that tells embedding actors when to go on, so that all together keep to one rate.

    It also counts how many of them were started: more than there should be means that some have died.
    """

    def __init__(self, settings: ThrottleSettings) -> None:
        self.bucket = TokenBucket(settings.limit, time())
        self.pids: list[int] = []
        self.items = 0

    def hello(self, pid: int) -> None:
        self.pids.append(pid)

    def started(self) -> list[int]:
        return self.pids

    def reserve(self, items: int) -> float:
        """Seconds to wait before that many items may be embedded."""
        self.items += items
        return self.bucket.reserve(items, time())

    def reserved(self) -> int:
        """Items let through so far."""
        return self.items

    def set_rate(self, items_per_s: float) -> None:
        self.bucket.set_rate(items_per_s, time())


def embed_operations(numbers: Sequence[int], job: EmbedJob, pacer: ActorHandle) -> Iterator[int]:
    """Embed these operations and store them; yields each number when its file is there, about in this order."""
    if not numbers:
        return
    on_gpu = isinstance(job.source, FromImages) and job.source.on_gpu
    finished = ray.data.from_items([{"number": n} for n in numbers], override_num_blocks=len(numbers)).map_batches(
        _PoolEmbedder,
        fn_constructor_kwargs={"job": job, "pacer": pacer},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(job.actors.number, len(numbers))),
        num_cpus=job.actors.cpus,
        num_gpus=1 if on_gpu else 0,
    )
    for row in finished.iter_rows():
        yield int(row["number"])


def embed_again(number: int, job: EmbedJob) -> None:
    """Embed one operation at once, on a CPU that nobody has set aside; returns when its file is there."""
    if isinstance(job.source, FromImages):
        job = replace(job, source=replace(job.source, on_gpu=False))
    ray.get(ray.remote(num_cpus=0)(_embed_one).remote(number, job))


def _embed_one(number: int, job: EmbedJob) -> None:
    _Embedder(job, None)({"number": np.array([number])})


def missing_parts(plan: DrillPlan, drill: Path) -> list[int]:
    """Operations whose embeddings are not stored yet. drill: its folder."""
    return [o.number for o in plan.operations if o.has_vectors and not part_path(drill, o.number).exists()]


class _PoolEmbedder:
    """One actor of the pool: says that it has started, and lets queries go first on the CPUs that it shares."""

    def __init__(self, job: EmbedJob, pacer: ActorHandle) -> None:
        os.nice(_NICE)
        self.embedder = _Embedder(job, pacer)
        pacer.hello.remote(os.getpid())

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return self.embedder(batch)


class _Embedder:
    """Models and source stay loaded. Without a pacer it does not wait."""

    def __init__(self, job: EmbedJob, pacer: ActorHandle | None) -> None:
        self.job, self.pacer, self.plan = job, pacer, read_plan(job.drill / "plan")
        self.embed = _open(job.source, self._wait)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for number in batch["number"]:
            operation = self.plan.operations[int(number)]
            if not part_path(self.job.drill, operation.number).exists():
                write_part(self.job.drill, operation, self.embed(operation.positions, self._models(operation)))
        return {"number": batch["number"]}

    def _models(self, operation: Operation) -> tuple[str, ...]:
        return self.job.old if operation.kind == "rollback" else self.job.new

    def _wait(self, items: int) -> None:
        if self.pacer is not None:
            sleep(ray.get(self.pacer.reserve.remote(items)))


def _open(source: FromImages | FromStore, wait: Callable[[int], None]) -> Embed:
    return _open_store(source, wait) if isinstance(source, FromStore) else _open_images(source, wait)


def _open_store(source: FromStore, wait: Callable[[int], None]) -> Embed:
    tables: dict[tuple[str, ...], dict[str, FloatArray]] = {}

    def embed(positions: IntArray, models: Sequence[str]) -> Embedded:
        wait(len(positions))
        key = tuple(models)
        if key not in tables:
            tables[key] = read_table(source.gallery, key, key).vectors
        return Embedded(positions, {model: values[positions] for model, values in tables[key].items()})

    return embed


def _open_images(source: FromImages, wait: Callable[[int], None]) -> Embed:
    images = open_source(source.data)
    device = torch.device("cuda" if source.on_gpu else "cpu")
    torch.set_num_threads(source.threads)
    loaded: dict[str, Backbone] = {}
    ids_N = np.concatenate([pq.read_table(f, columns=["id"])["id"].to_numpy() for f in _files(source.gallery)])
    all_ids = images.items("gallery").ids_N
    by_id = np.argsort(all_ids, kind="stable")

    def embed(positions: IntArray, models: Sequence[str]) -> Embedded:
        for model in models:
            if model not in loaded:
                loaded[model] = load_backbone(source.backbones[model])[0].to(device)
        networks = {model: loaded[model] for model in models}
        rows = by_id[np.searchsorted(all_ids, ids_N[positions], sorter=by_id)]
        batches = [rows[i : i + source.batch] for i in range(0, len(rows), source.batch)]
        kept, broken, outputs = [], [], []
        done = 0
        for of_batch, pixels in read_ahead(images, "gallery", batches, source.threads):
            wait(len(of_batch))
            at = positions[done : done + len(of_batch)]
            done += len(of_batch)
            good = np.setdiff1d(np.arange(len(of_batch)), list(pixels.broken))
            kept.append(at[good])
            broken += [(int(at[i]), reason) for i, reason in sorted(pixels.broken.items())]
            if len(good):
                with torch.inference_mode():
                    batch = pixels_to_float(torch.from_numpy(pixels.pixels_BSSC[good]).to(device))
                    outputs.append({model: network.embed(batch).cpu().numpy() for model, network in networks.items()})
        vectors = {
            model: np.concatenate(
                [np.empty((0, network.classifier.in_features), np.float32)] + [o[model] for o in outputs]
            )
            for model, network in networks.items()
        }
        found = Embedded(np.concatenate([np.empty(0, np.int64), *kept]), vectors, tuple(broken))
        return _without_useless(found, source.zero_is_broken)

    return embed


def _without_useless(found: Embedded, zero_is_broken: bool) -> Embedded:
    """Items whose embedding nothing can be compared with are as good as broken: they keep what they have."""
    is_finite = np.all([np.isfinite(values).all(axis=1) for values in found.vectors.values()], axis=0)
    is_zero = np.any([~values.any(axis=1) for values in found.vectors.values()], axis=0) & zero_is_broken
    good = is_finite & ~is_zero
    useless = [(int(p), "its embedding is zero or not finite") for p in found.positions[~good]]
    vectors = {model: values[good] for model, values in found.vectors.items()}
    return Embedded(found.positions[good], vectors, (*found.broken, *useless))


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]
