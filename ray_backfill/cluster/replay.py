"""The replay over gallery shards that are Ray actors: thresholds go out, counts or candidates come back.

Each actor reads its own rows of the gallery from the folder, which all nodes must share; queries travel once. The
driver holds a block of queries with its counts at a time, a shard a tile of its rows.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill.cluster.session import placed, session
from ray_backfill.errors import InputError, require_positive
from ray_backfill.methods import Embeddings, Method, find_methods
from ray_backfill.models.checkpoints import load_heads
from ray_backfill.replay import Curve
from ray_backfill.replay.block import Block, KeyArray, Thresholds
from ray_backfill.replay.engine import comparisons_bar, measure_plan
from ray_backfill.replay.plan import Plan, plan_replay
from ray_backfill.replay.shard import Found, GalleryShard
from ray_backfill.store import EmbeddingFolder, read_vectors
from ray_backfill.systems import FloatArray, GroundTruth, IntArray

T = TypeVar("T")

# Blocks of queries under way at a time: one in the shards, one on its way, one being measured.
_BLOCKS = 3
# Vectors of a shard where the number of shards is not given.
_SHARD_BYTES = 4 << 30
_Question = Literal["positive_keys", "count", "nearest"]


@dataclass(frozen=True)
class ReplayShards:
    """Where the replay runs."""

    # Gallery shards, each a Ray actor. 0: this process, unless the gallery takes more than half of its memory.
    number: int = 0
    # CPUs a shard; its threads.
    cpus: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "cpus")
        if self.number < 0:
            raise InputError(f"the number of shards must not be negative, got {self.number}")


def shards_for(gallery_bytes: int, shards: ReplayShards) -> int:
    """How many shards to replay over; 0 for this process. gallery_bytes: of both columns of vectors."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if shards.number or gallery_bytes <= memory / 2:
        return shards.number
    return -(-gallery_bytes // _SHARD_BYTES)


class Measured(Protocol):
    """What of a ``simulation.Evaluation`` the replay needs."""

    @property
    def points(self) -> int: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def distance(self) -> str: ...


@dataclass(frozen=True)
class ShardedReplay:
    """``simulation.replay_methods`` over shards: the same arguments and the same curves."""

    number: int
    cpus: float

    def __call__(
        self,
        folder: EmbeddingFolder,
        truth: GroundTruth,
        methods: Sequence[Method],
        orders: Mapping[str, IntArray],
        evaluation: Measured,
        heads: Mapping[str, Path],
    ) -> dict[tuple[str, str], Curve]:
        """See there.

        Raises:
            InputError: the cluster has too few CPUs, or a shard died.
        """
        plans = {
            switch: plan_replay(truth, orders, evaluation.points, evaluation.metrics, switch)
            for switch in ("progressively", "at_end")
        }
        curves = {}
        with session():
            placed(self.number, self.cpus, "--shards")
            shards = _RemoteShards(folder, self.number, self.cpus, plans, evaluation.distance)
            for method in (bar := tqdm(methods, desc="replay", unit=" methods", dynamic_ncols=True)):
                bar.set_postfix_str(method.title)
                plan = plans[shards.serve(method, heads.get(method.name))]
                with comparisons_bar(plan, show=True) as report:
                    shards.report = report
                    found = measure_plan(plan, truth, shards, _BLOCKS)
                curves.update({(method.name, order): curve for order, curve in found.items()})
        return curves


class _RemoteShards:
    """``replay.shard.Shards`` in actors. What comes out of Ray's object store is read-only, hence the copies."""

    def __init__(
        self, folder: EmbeddingFolder, number: int, cpus: float, plans: Mapping[str, Plan], distance: str
    ) -> None:
        n_gallery = len(folder.gallery)
        edges = np.linspace(0, n_gallery, min(number, n_gallery) + 1).astype(int).tolist()
        self.sizes = np.diff(edges)
        queries = folder.queries or folder.gallery
        shared = ray.put((queries.old, queries.new))
        make = ray.remote(num_cpus=cpus)(_ShardActor)
        self.actors = [
            make.remote(
                folder.gallery.path, first, last, shared,
                {switch: plan.slices_ON[:, first:last] for switch, plan in plans.items()},
                plans["progressively"].points, distance,
            )
            for first, last in pairwise(edges)
        ]  # fmt: skip
        self.report: Any = None

    def serve(self, method: Method, heads: Path | None) -> str:
        """Make the method's systems in every shard; returns when items switch over."""
        return self._answers([actor.serve.remote(method.name, heads) for actor in self.actors])[0]

    def positive_keys(self, block: Block) -> list[KeyArray]:
        return self._ask("positive_keys", block)

    def count(self, block: Block, thresholds: Thresholds) -> list[IntArray]:
        return self._done(block, self._ask("count", block, thresholds))

    def nearest(self, block: Block, k: int) -> list[Found]:
        return self._done(block, self._ask("nearest", block, k))

    def _ask(self, question: _Question, *arguments: Any) -> list[Any]:
        sent = ray.put(arguments)  # once, however many shards
        return [_writable(answer) for answer in self._answers([a.answer.remote(question, sent) for a in self.actors])]

    def _answers(self, calls: list[Any]) -> list[Any]:
        try:
            return ray.get(calls)
        except ray.exceptions.RayActorError as error:
            raise InputError(
                f"a gallery shard died, perhaps for want of memory; run the same command with more --shards.number "
                f"({str(error).splitlines()[0]})"
            ) from error

    def _done(self, block: Block, answers: list[T]) -> list[T]:
        self.report(2 * len(block) * int(self.sizes.sum()))
        return answers


class _ShardActor:
    """One shard of the gallery for all methods, one after the other."""

    def __init__(
        self,
        gallery: Path,
        first: int,
        last: int,
        queries: tuple[FloatArray, FloatArray],
        slices_ON: Mapping[str, NDArray[np.uint16]],
        points: int,
        distance: str,
    ) -> None:
        self.first, self.points, self.distance = first, points, distance
        self.slices_ON = {switch: _writable(slices) for switch, slices in slices_ON.items()}
        (old_query, new_query), (old, new) = _writable(queries), read_vectors(gallery, first, last)
        self.embeddings = Embeddings(old_query, new_query, old, new)
        self.shard: GalleryShard | None = None

    def serve(self, method: str, heads: Path | None) -> str:
        pair = find_methods((method,))[0].pair(self.embeddings, load_heads(heads) if heads else None)
        slices_ON = self.slices_ON[pair.switch]
        self.shard = GalleryShard(pair, self.first, slices_ON, self.points, self.distance)
        return pair.switch

    def answer(self, question: _Question, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.shard, question)(*_writable(arguments))


def _writable(value: Any) -> Any:
    """Plain data with its arrays copied: compiled loops are specialised for arrays that can be written."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(_writable(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: _writable(getattr(value, field.name)) for field in fields(value)})
    return value
