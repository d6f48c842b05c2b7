"""What a comparison runs on Ray: the replay over gallery shards, and fits and trials side by side or under DDP.

The driver of a replay sends thresholds and receives counts or candidates. Each actor reads all queries and its own rows
of the gallery from the folder, which all nodes must share. The driver holds the counts of one block of queries at a
time, a shard one tile of its rows.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray
from ray.actor import ActorHandle

from ray_backfill.compare.fitted import FittedMaps, MapJob
from ray_backfill.compare.replay import Curves, Serving, Systems, distinct_systems, replay_methods
from ray_backfill.compare.resolve import Comparison
from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import compilation
from ray_backfill.core.progress import State, Task, task
from ray_backfill.data.folder import EmbeddingFolder, StoredSplit
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.replay import Curve
from ray_backfill.engine.replay.before import Others
from ray_backfill.engine.replay.block import Block, Thresholds
from ray_backfill.engine.replay.engine import comparisons_bar, full_float32, measure_prepared
from ray_backfill.engine.replay.first import first_lists, prepare_first
from ray_backfill.engine.replay.keys import KeyArray
from ray_backfill.engine.replay.prepare import Prepared, Served, prepare_replay
from ray_backfill.engine.replay.shard import Found, GalleryShard, make_forms
from ray_backfill.engine.systems import IntArray, RetrievalSystem
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.models.apply import StandInMap
from ray_backfill.learn.models.gather import rank_and_size
from ray_backfill.learn.training.fit import fit_into, read_train_set, train_set
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.gpus import check_gpus, gpu_of_task
from ray_backfill.workers.progress import sent_as_row, sent_to, shown_in
from ray_backfill.workers.session import has_gpus, placed, session
from ray_backfill.workers.settings import Workers, number_of
from ray_backfill.workers.side_by_side import OfMethod, run_side_by_side
from ray_backfill.workers.train import run_ddp
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
        self, comparison: Comparison, number: int, device: str, actor: type["ShardActor"] | None = None,
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
                _SplitRows(queries.stored, 0, len(queries), folder.models),
                _SplitRows(folder.gallery.stored, first, last, models),
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


class _SplitRows(NamedTuple):
    """Rows first .. last - 1 of a split, and the models whose vectors are read."""

    split: StoredSplit
    first: int
    last: int
    models: tuple[str, ...]


class ShardActor:
    """One shard of the gallery, for all groups of methods one after the other."""

    def __init__(
        self, queries: _SplitRows, gallery: _SplitRows, distance: str, device: str, stand_in: StandInMap | None = None
    ) -> None:  # fmt: skip
        self.first, self.distance, self.stand_in = gallery.first, distance, stand_in
        self.torch_device = None if device == "cpu" else device
        self._exact = full_float32(self.torch_device)  # of this process: several blocks are answered at a time
        self._exact.__enter__()
        self.rows = queries, gallery
        self.embeddings: Embeddings | None = None
        self.systems: list[RetrievalSystem] = []
        self.shard: GalleryShard | None = None
        self.bar, self.told = Task(State("detail", "compare")), 0

    def read(self) -> None:
        """Read all queries and the shard's rows of the gallery."""
        query, gallery = (rows.split.vectors(rows.first, rows.last, rows.models) for rows in self.rows)
        if self.stand_in is not None:
            gallery |= {"new": self.stand_in(gallery["old"])}
        self.embeddings = Embeddings(query, gallery)

    def make_systems(self, networks: Mapping[str, Path | None]) -> Systems:
        """Make the systems of these methods. networks: method -> folder of its network."""
        assert self.embeddings is not None
        methods, maps = find_methods(tuple(networks)), FittedMaps({n: f for n, f in networks.items() if f})
        pairs = [method.pair(self.embeddings, maps.of(method)) for method in methods]
        distinct = distinct_systems(methods, pairs)
        self.systems = distinct.systems
        return replace(distinct, systems=[])

    def serve(self, prepared: Prepared) -> None:
        forms = make_forms(self.systems, prepared, self.distance)
        self.shard = GalleryShard(forms, self.first, writable(prepared), self.bar.advance, self.torch_device)

    @ray.method(concurrency_group="progress")  # type: ignore[untyped-decorator]
    def compared(self) -> tuple[int, bool]:
        """How many pairs it has compared since the last call, and whether it compiles loops. Answered at once."""
        before, self.told = self.told, self.bar.done
        return self.told - before, compilation.depth > 0

    def answer(self, question: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.shard, question)(*writable(arguments))


def writable(value: Any) -> Any:
    """Plain data with copied arrays, because compiled loops are specialised for writable arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(writable(part) for part in value)
    if isinstance(value, list):
        return [writable(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: writable(getattr(value, field.name)) for field in fields(value)})
    return value


class FitJob(OfMethod, Protocol):
    """A map to fit, or a trial of settings. out: a stage that has begun."""

    @property
    def out(self) -> Path: ...

    def run(self, device: str | None = None) -> None: ...


def fit_side_by_side(jobs: Sequence[FitJob], train_bytes: int, shown: Task, max_failures: int) -> None:
    """Fit every map, or try settings; a map whose training diverges is left unfinished.

    train_bytes: size of what every task reads (``EmbeddingFolder.train_bytes``). shown: counts the jobs on the
    terminal. max_failures: number of deaths of a task's process to recover from.

    Raises:
        InputError: A fit failed. The others are stopped; what is finished is kept.
    """
    run_side_by_side(_run_alone, jobs, train_bytes, shown, max_failures)


def _run_alone(job: FitJob, board: ActorHandle) -> None:
    with sent_as_row(board, str(job.out)):
        job.run(gpu_of_task())


def train_maps(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: Mapping[str, FitSettings],
    distance: str,
    workers: Workers,
    shown: Task,
    is_only: bool,
) -> None:
    """Train the maps of these methods into ``out/<method>``: side by side, or a single one by DDP on all GPUs.

    is_only: whether it is the only map of the run, so that a map does not depend on what is finished already. settings:
    method name -> its settings. shown: the row that counts methods on the terminal. See ``fit_stage``.
    """
    data = train_set(folder)
    with session():
        by_ddp = is_only and has_gpus()
        together = for_maps(workers) if by_ddp else replace(workers, number=1, cpus=1)
        for method in methods:
            assert method.fit is not None
            method.fit.check(data, settings[method.name], number_of(together))
        jobs = [MapJob(m.name, settings[m.name], distance, folder.train_path, out / m.name) for m in methods]
        if not by_ddp:
            fit_side_by_side(jobs, folder.train_bytes, shown, workers.max_failures)
            return
        with shown_in(shown) as board:
            config = {"job": jobs[0], "models": tuple(data.vectors), "board": board, "shown": shown.state()}
            run_ddp(_worker, config, together, "_ray", out)
        shutil.rmtree(out / "_ray", ignore_errors=True)


def for_maps(workers: Workers) -> Workers:
    """The workers that train one map: on a cluster with GPUs as many as it has, otherwise one CPU.

    Raises:
        InputError: The connected cluster has GPUs, but too few CPUs.
    """
    if not has_gpus():
        return replace(workers, number=1, cpus=1)
    number, _ = placed(replace(workers, decode_cpus=0))
    return replace(workers, number=number)


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: trains a map; the first worker reports progress."""
    from ray.train.torch import get_device  # takes a second to import, and shards do without

    job: MapJob = config["job"]
    before: State = config["shown"]
    with (
        sent_to(config["board"], rank_and_size()[0] == 0),
        task(before.title, before.total, before.unit, before.done) as shown,
    ):
        data, (method,) = read_train_set(job.data, config["models"]), find_methods((job.method,))
        assert method.fit is not None
        fit_into(job.out, method.title, method.fit, data, job.settings, job.distance, get_device())
        shown.advance()
