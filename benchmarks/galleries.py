"""The data of the serving benchmarks: two models' embeddings of a gallery, and shards of it as in a drill."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import ray_backfill as rb
from ray_backfill.compare.fitted import FittedMaps
from ray_backfill.compare.orders import embeddings_of
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder
from ray_backfill.data.truth import ground_truth
from ray_backfill.drill.parts import Embedded
from ray_backfill.drill.plan import DrillPlan, make_plan
from ray_backfill.drill.settings import ChurnSettings
from ray_backfill.drill.shard import Shard, ShardPlace, View
from ray_backfill.engine.index import IndexSettings, Partition
from ray_backfill.engine.index.exact import ExactPartition
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.sides import Sides, check_live, dims_of

D = 128
# Dimensions in which classes differ; real embeddings also have fewer than they are stored with.
_INNER = 40
# Spread of the images of a class, by model, and noise of an embedding.
_SPREAD = {"old": 1.0, "new": 0.75}
_NOISE = 0.3
# Number of train vectors of a shard, as in ``cluster.drill.shards``.
_TRAIN_ITEMS = 50_000


@dataclass(frozen=True)
class Case:
    """A gallery with embeddings of two models. train_label: classes of the train items, None if unknown."""

    name: str
    method: Method
    network: Any
    distance: str
    embedded: Embeddings
    train: Mapping[str, FloatArray]
    train_label: IntArray | None
    truth: GroundTruth

    @property
    def pair(self) -> UpgradePair:
        return self.method.pair(self.embedded, self.network)

    @property
    def train_pair(self) -> UpgradePair:
        """Train items as both queries and gallery, to train indexes and fit merges."""
        return self.method.pair(Embeddings(self.train, self.train), self.network)

    @property
    def sides(self) -> Sides:
        dims = dims_of([self.embedded.query, self.embedded.gallery])
        return Sides(self.method, self.network, RAW, self.distance, dims)


def synthetic(n_items: int, n_queries: int, n_train: int, per_class: int = 50) -> Case:
    """Clustered classes, which the old model separates less well. Train items have classes of their own."""
    rng = np.random.default_rng(0)
    n_classes = max(2, n_items // per_class)
    labels = {
        "gallery": rng.permutation(np.arange(n_items) % n_classes),
        "query": rng.integers(0, n_classes, n_queries),
        "train": n_classes + rng.permutation(np.arange(n_train) % max(2, n_train // per_class)),
    }
    n_all = int(labels["train"].max()) + 1
    splits: dict[str, dict[str, FloatArray]] = {split: {} for split in labels}
    for model, spread in _SPREAD.items():
        # Directions have decreasing weight and differ between the models, so cross-model distances are meaningless.
        mix = rng.normal(size=(_INNER, D)) * (np.arange(1, _INNER + 1) ** -0.4)[:, None]
        centres = rng.normal(size=(n_all, _INNER))
        for split, label in labels.items():
            inner = centres[label] + spread * rng.normal(size=(len(label), _INNER))
            splits[split][model] = (inner @ mix + _NOISE * rng.normal(size=(len(label), D))).astype(np.float32)
    (method,) = find_methods(("rm_naive",))
    truth = rb.GroundTruth.from_labels(labels["query"], labels["gallery"])
    name = f"clustered vectors, {n_queries:,} queries x {n_items:,} items x {D}"
    embedded = Embeddings(splits["query"], splits["gallery"])
    return Case(name, method, None, "cosine", embedded, splits["train"], labels["train"], truth)


def from_folder(data: Path, name: str, maps: Path | None, distance: str) -> Case:
    """A folder of embeddings. maps: folder of maps of the run that fitted the method, if it needs fitting."""
    (method,) = find_methods((name,))
    check_live(method, RAW)
    folder = read_folder(data, method.models)
    if folder.train is None:
        raise InputError(f"{data} has no train.parquet to train indexes and merges on; add one")
    if method.fit and maps is None:
        raise InputError(f"method {name!r} needs a fitted network: give --maps RUN/maps of the run with --data")
    network = FittedMaps({name: (maps or Path()) / name}).of(method)
    rows = slice(0, min(len(folder.train), _TRAIN_ITEMS))
    train: dict[str, FloatArray] = {model: vectors[rows] for model, vectors in folder.train.vectors.items()}
    label = None if folder.train.label is None else np.unique(folder.train.label[rows], return_inverse=True)[1]
    embedded = embeddings_of(folder)
    dim = next(iter(embedded.gallery.values())).shape[1]
    shape = f"{len(folder.queries or folder.gallery):,} queries x {len(folder.gallery):,} items x {dim}"
    return Case(
        f"{data.parent.name}/{data.name}, {shape}", method, network, distance, embedded, train, label,
        ground_truth(folder, refuse_unknown_ids=False),
    )  # fmt: skip


def random_plan(n_items: int, points: int, parts: int) -> DrillPlan:
    """A backfill in random order with ``points`` checkpoints and about ``parts`` operations."""
    order = np.random.default_rng(1).permutation(n_items)
    return make_plan(order, points, max(1, n_items // parts), ChurnSettings())


def new_shard(case: Case, plan: DrillPlan, old: IndexSettings, new: IndexSettings) -> Shard:
    """A shard of the whole gallery before the first operation."""
    train = case.train_pair
    sides = case.sides
    gallery = case.embedded.gallery
    return Shard(
        plan,
        sides,
        ShardPlace(0, plan.n_items, old, new),
        lambda first, last: {model: vectors[first:last] for model, vectors in gallery.items()},
        {"backward": train.backward.gallery, "forward": train.forward.gallery},
    )


def backfill(case: Case, shard: Shard, until: int) -> Iterator[View]:
    """Apply operations up to ``until`` like a serving shard; yields the view after each, then compacts."""
    models = case.method.new_models
    for operation in shard.plan.operations[shard.view.applied : until]:
        vectors = {model: case.embedded.gallery[model][operation.positions] for model in models}
        shard.apply(operation, Embedded(operation.positions, vectors))
        yield shard.view
        shard.compact()


def waste(partition: Partition) -> tuple[int, int]:
    """Number of dead rows, and of rows not yet merged into the main index (reads private fields)."""
    inside: Any = partition
    if isinstance(partition, ExactPartition):
        return inside._last - inside._first - partition.n, 0
    return inside._main.rows.n_dead + inside._fresh.rows.n_dead, len(inside._fresh.rows)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the threads of OpenMP and both OpenBLAS copies (numpy's and faiss's) within this block."""
    with threadpool_limits(limits=number):
        yield


def of_length_one(system: RetrievalSystem, distance: str) -> RetrievalSystem:
    """The vectors as an index compares them: under cosine, with length 1."""
    if distance != "cosine":
        return system
    return RetrievalSystem(*(_normalised(vectors) for vectors in (system.query, system.gallery)))


def _normalised(vectors: FloatArray) -> NDArray[np.float32]:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def row(*cells: str) -> None:
    """One row of a Markdown table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def header(*cells: str) -> None:
    print()
    row(*cells)
    row(*("---" for _ in cells))


Work = Callable[[], object]
