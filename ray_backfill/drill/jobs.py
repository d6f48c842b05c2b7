"""The work of a drill as plain values, which travel to the actors that do it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.data.folder import StoredSplit
from ray_backfill.drill.plan import DrillPlan
from ray_backfill.drill.settings import LiveSettings, TrafficSettings
from ray_backfill.drill.shard import ShardPlace
from ray_backfill.drill.traffic import Sender
from ray_backfill.encode.encoder import Device
from ray_backfill.encode.part import Rows
from ray_backfill.encode.spec import Spec
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray
from ray_backfill.pipeline.live import Answering
from ray_backfill.workers.settings import EmbedActors


@dataclass(frozen=True)
class FromImages:
    """Items are images. data: ``Settings`` of a source. backbones: model -> folder. gallery: has the items' ids.

    zero_is_broken: treat a zero embedding as a broken image, as it has no cosine distance. threads: of an actor. lent:
    further CPUs, on any node, that decode for it.
    """

    data: Any
    backbones: dict[str, Path]
    gallery: StoredSplit
    batch: int
    threads: int = 1
    on_gpu: bool = False
    zero_is_broken: bool = True
    lent: int = 0


@dataclass(frozen=True)
class FromItems:
    """Items are texts or images of a user, which models embed as they are. items: folder of ``encode.items``. specs:
    model -> its spec. gallery: has the items' ids, in their order. probes: model -> its vectors of the fixed items.
    path: where modules of the user are found.
    """

    items: Path
    modality: str
    specs: dict[str, Spec]
    gallery: StoredSplit
    device: Device
    probes: Mapping[str, Rows]
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class FromStore:
    """Items are rows of a gallery that already has the new embeddings; the backfill only moves them."""

    gallery: StoredSplit
    n_items: int


@dataclass(frozen=True)
class PartsJob:
    """Which models embed the items of operations, and from what.

    drill: the drill's folder. old, new: models that embed for a rollback, and for all else. actors: their pool. pacer:
    the Ray actor that paces them; None: they do not wait.
    """

    drill: Path
    source: FromImages | FromItems | FromStore
    old: tuple[str, ...]
    new: tuple[str, ...]
    actors: EmbedActors
    pacer: Any = None


@dataclass(frozen=True)
class ShardJob:
    """What a shard is made from: names, and paths on storage shared by all nodes.

    drill: the drill's folder with plan, parts and journal. gallery, train: splits of a folder of embeddings.
    network: folder of the method's fitted network, if it has one. dims: embedding dimension of the method's models.
    part_n: part of each of its items, of which a query finds its own only; None without a filter.
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
    part_n: IntArray | None = None


@dataclass(frozen=True)
class TrafficJob:
    """What one actor sends. drill: the drill's folder. name: the drill's in its metrics."""

    settings: TrafficSettings
    drill: Path
    sender: Sender
    name: str


@dataclass(frozen=True)
class Questions:
    """The queries of users and checkpoints, and the ground truth and metrics that judge the answers.

    backward, forward: (Q, d) query vectors of both systems. answering: makes the answers.
    """

    backward: FloatArray
    forward: FloatArray
    truth: GroundTruth
    metrics: tuple[str, ...]
    answering: Answering

    @property
    def part(self) -> IntArray:
        """(Q,) the part of the gallery in which each query finds items; all 0 without a filter."""
        return np.zeros(len(self.backward), np.int64) if self.truth.filter is None else self.truth.filter.of_query


@dataclass(frozen=True)
class LiveJob:
    """A whole drill. name: its name in its metrics. folder: on storage shared by all nodes. models: for the journal."""

    name: str
    folder: Path
    plan: DrillPlan
    questions: Questions
    shards: list[ShardJob]
    embed: PartsJob
    settings: LiveSettings
    models: dict[str, str]
