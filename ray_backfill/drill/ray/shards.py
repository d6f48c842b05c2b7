"""Shards of the live gallery as Ray actors, searched by several threads while another one applies operations.

An actor's state is on disk: the old embeddings, the plan, the embeddings of operations and the journal. If an actor is
killed, Ray restarts it, and it restores its state from there.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.actor import ActorHandle

from ray_backfill.data.folder import StoredSplit
from ray_backfill.drill.answers import ShardAnswer
from ray_backfill.drill.journal import Journal
from ray_backfill.drill.operations import read_plan
from ray_backfill.drill.parts import BadPartError, read_part
from ray_backfill.drill.settings import ShardSettings
from ray_backfill.drill.shard import Shard, ShardPlace, ShardSize
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.learn.sides import SIDES, Sides, new_models, old_models

# Maximum number of train items used to train indexes.
_TRAIN_ITEMS = 50_000


@dataclass(frozen=True)
class ShardJob:
    """The inputs of a shard: names, and paths on storage shared by all nodes.

    drill: the drill's folder with plan, parts and journal. gallery, train: splits of a folder of embeddings.
    network: folder of the method's fitted network, if it has one. dims: embedding dimension of the method's models.
    """

    drill: Path
    gallery: StoredSplit
    train: StoredSplit | None
    n_train: int
    method: str
    network: Path | None
    merge: Merge
    distance: str
    dims: dict[str, int]
    place: ShardPlace

    def sides(self) -> Sides:
        (method,) = find_methods((self.method,))
        network = load_network(self.network) if self.network else None
        return Sides(method, network, self.merge, self.distance, self.dims)


class ShardActor:
    """One shard; see the module. ``start_shards`` sets the actor's threads and concurrent searches."""

    def __init__(self, job: ShardJob) -> None:
        self.job, self.plan = job, read_plan(job.drill / "plan")
        sides = job.sides()
        old = old_models(sides.method)
        self.shard = Shard(
            self.plan,
            sides,
            job.place,
            lambda first, last: job.gallery.vectors(first, last, old),
            self._train_vectors(sides),
        )
        with suppress(BadPartError):  # the driver calls apply again, which reports it
            self.apply(Journal(job.drill).applied())
        for queries in (1, 2):  # load compiled code before the first query
            backward, forward = (np.ones((queries, dim), np.float32) for dim in map(sides.dim, SIDES))
            self.shard.search(backward, forward, 1)

    @ray.method(concurrency_group="search")  # type: ignore[untyped-decorator]
    def search(self, backward: NDArray[Any], forward: NDArray[Any], k: int) -> ShardAnswer:
        """See ``Shard.search``. Copies the arrays: those from Ray are read-only, which the kernels do not accept."""
        return self.shard.search(np.array(backward), np.array(forward), k)

    @ray.method(concurrency_group="write")  # type: ignore[untyped-decorator]
    def apply(self, applied: int) -> tuple[ShardSize, int]:
        """Apply the plan's first ``applied`` operations, except those already applied.

        Returns: the size of the shard, and its process id.

        Raises:
            BadPartError: the embeddings of an operation cannot be read; the operations before it are applied.
        """
        for operation in self.plan.operations[self.shard.view.applied : applied]:
            self.shard.apply(operation, read_part(self.job.drill, operation) if operation.has_vectors else None)
            self.shard.compact()
        return self.shard.size(), os.getpid()

    def _train_vectors(self, sides: Sides) -> dict[str, FloatArray] | None:
        job = self.job
        if job.train is None or (job.place.old_index.kind == job.place.new_index.kind == "exact"):
            return None
        old, new = (
            job.train.vectors(0, min(job.n_train, _TRAIN_ITEMS), models)
            for models in (old_models(sides.method), new_models(sides.method))
        )
        return {"backward": sides.gallery("backward", old), "forward": sides.gallery("forward", new)}


def shard_edges(n_items: int, number: int) -> list[int]:
    """(S + 1) boundaries of the shards' ranges."""
    return np.linspace(0, n_items, min(number, n_items) + 1).astype(int).tolist()


def shards_need(jobs: list[ShardJob], settings: ShardSettings) -> dict[str, float]:
    """The resources of all shards together."""
    return {"CPU": len(jobs) * settings.cpus} | ({"GPU": len(jobs)} if jobs[0].place.on_gpu else {})


def start_shards(jobs: list[ShardJob], settings: ShardSettings) -> list[ActorHandle]:
    """Start one actor per job; returns at once, without waiting until they are ready.

    Ray always restarts an actor that dies, but does not repeat the call: the caller decides on that.
    """
    threads = str(settings.threads)
    variables = {f"{library}_NUM_THREADS": threads for library in ("OMP", "OPENBLAS", "MKL")}
    make = ray.remote(
        num_cpus=settings.cpus,
        num_gpus=1 if jobs[0].place.on_gpu else 0,
        max_restarts=-1,
        max_task_retries=0,
        concurrency_groups={"search": settings.searches, "write": 1},
        runtime_env={"env_vars": variables},
    )(ShardActor)
    return [make.remote(job) for job in jobs]
