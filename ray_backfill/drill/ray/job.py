"""The inputs of a drill, as plain values."""

from dataclasses import dataclass
from pathlib import Path

from ray_backfill.drill.operations import DrillPlan
from ray_backfill.drill.ray.embedding import EmbedJob
from ray_backfill.drill.ray.shards import ShardJob
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.engine.systems import FloatArray, GroundTruth


@dataclass(frozen=True)
class Questions:
    """The queries of users and checkpoints, and the ground truth and metrics that judge the answers.

    backward, forward: (Q, d) query vectors of both systems. k: number of items that the metrics need per answer.
    """

    backward: FloatArray
    forward: FloatArray
    truth: GroundTruth
    metrics: tuple[str, ...]
    k: int


@dataclass(frozen=True)
class DrillJob:
    """name: the drill's name in its metrics. folder: on storage shared by all nodes."""

    name: str
    folder: Path
    plan: DrillPlan
    questions: Questions
    shards: list[ShardJob]
    embed: EmbedJob
    settings: LiveSettings
