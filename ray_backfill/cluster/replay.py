"""The replay over gallery shards that are Ray actors: thresholds go out, counts or candidates come back.

Each actor reads all queries and its own rows of the gallery from the folder, which all nodes must share. The driver
holds a block of queries with its counts at a time, a shard a tile of its rows.
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

from ray_backfill.cluster.session import session
from ray_backfill.errors import InputError
from ray_backfill.methods import Embeddings, Method, find_methods
from ray_backfill.models.checkpoints import load_heads
from ray_backfill.replay import Curve
from ray_backfill.replay.block import Block, KeyArray, Thresholds
from ray_backfill.replay.engine import check_device_name, comparisons_bar, full_float32, measure_plan
from ray_backfill.replay.plan import Plan, plan_replay
from ray_backfill.replay.shard import Found, GalleryShard
from ray_backfill.store import EmbeddingFolder, read_vectors
from ray_backfill.systems import GroundTruth, IntArray

T = TypeVar("T")

# Blocks of queries under way at a time: one in the shards, one on its way, one being measured.
_BLOCKS = 3
# Vectors of a shard where the number of shards is not given.
_SHARD_BYTES = 4 << 30
_Question = Literal["positive_keys", "count", "nearest"]


@dataclass(frozen=True)
class ReplayPlace:
    """Where the replay runs; the results are the same everywhere."""

    # Gallery shards, each a Ray actor. 0: this process, unless the gallery takes more than half of its memory.
    shards: int = 0
    # cpu, or cuda for a GPU (each shard takes one).
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.shards < 0:
            raise InputError(f"the number of shards must not be negative, got {self.shards}")
        check_device_name(self.device)

    def shards_for(self, gallery_bytes: int) -> int:
        """How many shards to replay over; 0 for this process. gallery_bytes: of both columns of vectors."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.shards or (-(-gallery_bytes // _SHARD_BYTES) if gallery_bytes > memory / 2 else 0)


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
    device: str = "cpu"

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
            self.check_cluster()
            shards = _RemoteShards(folder, self.number, plans, evaluation.distance, self.device)
            for method in (bar := tqdm(methods, desc="replay", unit=" methods", dynamic_ncols=True)):
                bar.set_postfix_str(method.title)
                plan = plans[shards.serve(method, heads.get(method.name))]
                with comparisons_bar(plan, show=True) as report:
                    shards.report = report
                    found = measure_plan(plan, truth, shards, _BLOCKS)
                curves.update({(method.name, order): curve for order, curve in found.items()})
        return curves

    def check_cluster(self) -> None:
        """Raises InputError where the connected cluster is too small: Ray would wait for ever."""
        for kind in ("CPU",) if self.device == "cpu" else ("CPU", "GPU"):
            there = ray.cluster_resources().get(kind, 0)
            if self.number > there:
                raise InputError(
                    f"{self.number} shards need {self.number} {kind}s, but the Ray cluster has {there:g}; "
                    "lower --shards"
                )


class _RemoteShards:
    """``replay.shard.Shards`` in actors. What comes out of Ray's object store is read-only, hence the copies."""

    def __init__(
        self, folder: EmbeddingFolder, number: int, plans: Mapping[str, Plan], distance: str, device: str
    ) -> None:
        n_gallery = len(folder.gallery)
        edges = np.linspace(0, n_gallery, min(number, n_gallery) + 1).astype(int).tolist()
        self.sizes = np.diff(edges)
        queries = folder.queries or folder.gallery
        make = ray.remote(num_cpus=1, num_gpus=0 if device == "cpu" else 1)(_ShardActor)
        self.actors = [
            make.remote(
                folder.gallery.path, first, last, queries.path, len(queries),
                {switch: plan.slices_ON[:, first:last] for switch, plan in plans.items()},
                plans["progressively"].points, distance, device,
            )
            for first, last in pairwise(edges)
        ]  # fmt: skip
        self._answers([actor.read.remote() for actor in self.actors])
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

    def cancel(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def _ask(self, question: _Question, *arguments: Any) -> list[Any]:
        sent = ray.put(arguments)  # once, however many shards
        return [_writable(answer) for answer in self._answers([a.answer.remote(question, sent) for a in self.actors])]

    def _answers(self, calls: list[Any]) -> list[Any]:
        try:
            return ray.get(calls)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(f"in a gallery shard: {error.cause}") from None
            raise
        except ray.exceptions.RayActorError as error:
            raise InputError(
                "a gallery shard died, perhaps for want of memory; run the same command with more --shards"
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
        queries: Path,
        n_queries: int,
        slices_ON: Mapping[str, NDArray[np.uint16]],
        points: int,
        distance: str,
        device: str,
    ) -> None:
        self.first, self.points, self.distance = first, points, distance
        self.torch_device = None if device == "cpu" else device
        self.slices_ON = {switch: _writable(slices) for switch, slices in slices_ON.items()}
        self.files = (queries, 0, n_queries), (gallery, first, last)
        self.embeddings: Embeddings | None = None
        self.shard: GalleryShard | None = None

    def read(self) -> None:
        """All queries, and the shard's rows of the gallery."""
        (old_query, new_query), (old, new) = (read_vectors(*file) for file in self.files)
        self.embeddings = Embeddings(old_query, new_query, old, new)

    def serve(self, method: str, heads: Path | None) -> str:
        assert self.embeddings is not None
        pair = find_methods((method,))[0].pair(self.embeddings, load_heads(heads) if heads else None)
        slices_ON = self.slices_ON[pair.switch]
        self.shard = GalleryShard(
            pair, self.first, slices_ON, self.points, self.distance, torch_device=self.torch_device
        )
        return pair.switch

    def answer(self, question: _Question, arguments: tuple[Any, ...]) -> Any:
        with full_float32(self.torch_device):
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
