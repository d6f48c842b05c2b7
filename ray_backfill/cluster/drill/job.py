"""All that is needed to run a drill, as values."""

from dataclasses import dataclass
from pathlib import Path

from ray_backfill.cluster.drill.embedding import EmbedJob
from ray_backfill.cluster.drill.shards import ShardJob
from ray_backfill.live.operations import DrillPlan
from ray_backfill.live.settings import LiveSettings
from ray_backfill.systems import FloatArray, GroundTruth


@dataclass(frozen=True)
class Questions:
    """What users and checkpoints ask, and by what the answers are judged.

    backward, forward: (Q, d) the queries as both systems see them. k: items that an answer needs for the metrics.
    """

    backward: FloatArray
    forward: FloatArray
    truth: GroundTruth
    metrics: tuple[str, ...]
    k: int


@dataclass(frozen=True)
class DrillJob:
    """name: of the drill, for who watches. folder: on storage that all nodes share."""

    name: str
    folder: Path
    plan: DrillPlan
    questions: Questions
    shards: list[ShardJob]
    embed: EmbedJob
    settings: LiveSettings
