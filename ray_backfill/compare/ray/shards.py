"""The replay over gallery shards: the driver sends thresholds and receives counts or candidates.

Each actor reads all queries and its own rows of the gallery from the folder, which all nodes must share. The driver
holds the counts of one block of queries at a time, a shard one tile of its rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import ray

from ray_backfill.compare.ray.actor import ShardActor, SplitRows, writable
from ray_backfill.compare.replay import Curves, Serving, replay_methods
from ray_backfill.compare.resolve import Comparison
from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import compilation
from ray_backfill.core.progress import Task
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.replay import Curve
from ray_backfill.engine.replay.before import Others
from ray_backfill.engine.replay.block import Block, Thresholds
from ray_backfill.engine.replay.engine import comparisons_bar, measure_prepared
from ray_backfill.engine.replay.first import first_lists, prepare_first
from ray_backfill.engine.replay.keys import KeyArray
from ray_backfill.engine.replay.prepare import Prepared, Served, prepare_replay
from ray_backfill.engine.replay.shard import Found
from ray_backfill.engine.systems import IntArray
from ray_backfill.learn.methods import Method
from ray_backfill.learn.models.apply import StandInMap
from ray_backfill.workers.gpus import check_gpus
from ray_backfill.workers.session import session
from ray_backfill.workers.waiting import Actors, check_room, living_nodes

# Blocks of queries in flight: one in the shards, one being sent, one being measured.
_BLOCKS = 3
_REMEDY = "perhaps because it ran out of memory; run the same command with more --shards"


def shard_needs(device: str) -> dict[str, float]:
    """The resources of one shard. With a GPU, exact keys are the limit, which CPUs make."""
    if device == "cpu":
        return {"CPU": 1}
    nodes = [node.resources for node in living_nodes() if node.resources.get("GPU", 0) >= 1]
    least = min((int(node.get("CPU", 0) // node["GPU"]) for node in nodes), default=1)
    return {"CPU": max(1, min(_BLOCKS, least)), "GPU": 1}


def check_shards(number: int, device: str) -> None:
    """Raises InputError if the living nodes are too small for the shards, or torch cannot use their GPUs."""
    if ":" in device:
        raise InputError(f"device {device!r} for shards: each has one GPU of its own; give device cuda")
    needs = {kind: number * each for kind, each in shard_needs(device).items()}
    check_room(f"{number} gallery shards", needs, "lower --shards")
    if device != "cpu":
        check_gpus()


def replay_in_shards(comparison: Comparison, number: int, device: str = "cpu") -> Curves:
    """``replay_methods`` over Ray actors, each with its part of the gallery; the curves are the same.

    Raises:
        InputError: The cluster has too few CPUs or GPUs, or a shard died.
    """
    with session():
        check_shards(number, device)
        shards = RemoteShards(comparison, number, device)
        try:
            shards.read()
            return replay_methods(comparison, shards.make_systems)
        finally:
            shards.cancel()


class RemoteShards:
    """``replay.shard.Shards`` in actors. Copies what it receives, because Ray's object store is read-only.

    actor: a ``ShardActor``. stand_in: predicts the gallery's new embeddings, which the folder does not have.
    """

    def __init__(
        self, comparison: Comparison, number: int, device: str, actor: type[ShardActor] | None = None,
        stand_in: StandInMap | None = None,
    ) -> None:  # fmt: skip
        self.comparison, folder, evaluation = comparison, comparison.folder, comparison.evaluation
        n_gallery = len(folder.gallery)
        self.edges = np.linspace(0, n_gallery, min(number, n_gallery) + 1).astype(int).tolist()
        queries = folder.queries or folder.gallery
        needs = shard_needs(device)
        several = int(needs["CPU"])  # a GPU computes for one block while others' keys are made
        several_at_once = {"max_concurrency": several, "concurrency_groups": {"progress": 1}}
        make = ray.remote(num_cpus=several, num_gpus=needs.get("GPU", 0), **several_at_once)(actor or ShardActor)
        models = folder.models if stand_in is None else ("old",)
        self.actors = [
            make.remote(
                SplitRows(queries.stored, 0, len(queries), folder.models),
                SplitRows(folder.gallery.stored, first, last, models),
                evaluation.distance, device, stand_in,
            )
            for first, last in pairwise(self.edges)
        ]  # fmt: skip
        self.together = Actors(self.actors, "gallery shard", needs, "--shards")
        self.bar: Task | None = None  # of what they compare

    def read(self) -> None:
        """Start every shard, and read its vectors."""
        self.together.wait_until_started()
        self.answers([actor.read.remote() for actor in self.actors])

    def make_systems(self, methods: Sequence[Method]) -> Serving:
        """Make the systems of some methods in every shard; those that are returned have no vectors."""
        networks = {method.name: self.comparison.maps.folders.get(method.name) for method in methods}
        systems, *_ = self.answers([actor.make_systems.remote(networks) for actor in self.actors])
        return Serving(systems, [None] * len(methods), self.replay, self.find)

    def replay(self, served: Sequence[Served]) -> Sequence[Mapping[str, Curve]]:
        """Replay pairs of the systems that were made last."""
        how, truth = self.comparison.evaluation, self.comparison.truth
        prepared = prepare_replay(truth, served, how.moments, how.metrics)
        with self._serving(prepared):
            return measure_prepared(prepared, truth, self, _BLOCKS)

    def find(self, served: Served, queries: IntArray) -> Mapping[str, RankedLists]:
        """Find the first item of some queries of a pair of the systems that were made last."""
        truth = self.comparison.truth
        prepared = prepare_first(served, truth, queries, self.comparison.evaluation.moments)
        with self._serving(prepared):
            return first_lists(prepared, truth, self, _BLOCKS)

    @contextmanager
    def _serving(self, prepared: Prepared) -> Iterator[None]:
        """Tell the actors what is asked next, and show the progress of it."""
        sent = ray.put(prepared)
        self.answers([actor.serve.remote(sent) for actor in self.actors])
        with comparisons_bar(prepared, show=True) as self.bar:
            yield

    def positive_keys(self, block: Block) -> list[KeyArray]:
        return self._ask("positive_keys", block)

    def count(self, block: Block, thresholds: list[Thresholds]) -> list[list[Others]]:
        return self._ask("count", block, thresholds)

    def nearest(self, block: Block, k: int) -> list[list[Found]]:
        return self._ask("nearest", block, k)

    def cancel(self) -> None:
        """End the actors: left to the garbage collector, they hold CPUs that the next replay waits for."""
        for actor in self.actors:
            ray.kill(actor)

    def _ask(self, question: str, *arguments: Any) -> list[Any]:
        """The answers of all shards. question: a method of ``GalleryShard``."""
        sent = ray.put(arguments)  # once for all shards
        answers = self.answers([actor.answer.remote(question, sent) for actor in self.actors])
        self._show_compared()
        return [writable(answer) for answer in answers]

    def answers(self, calls: list[Any]) -> list[Any]:
        """What all actors answer. Raises InputError if a shard died."""
        try:
            return self.together.answers(calls, _REMEDY, self._show_compared)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(f"in a gallery shard: {error.cause}") from None
            raise

    def _show_compared(self, waited_s: float = 0) -> None:
        """Show how far the shards are: a block can take minutes."""
        if self.bar is not None:
            of_shards = self.together.answers([actor.compared.remote() for actor in self.actors], _REMEDY)
            self.bar.advance(sum(compared for compared, _ in of_shards))
            self.bar.note(compilation.title if any(compiles for _, compiles in of_shards) else "")
