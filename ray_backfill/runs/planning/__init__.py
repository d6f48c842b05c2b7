"""What a run will need before it runs: images, steps, GPU hours, storage. Nothing here computes, trains or decodes."""

from ray_backfill.runs.planning.counts import Counts, ModelCounts, count_images
from ray_backfill.runs.planning.describe import describe_plan
from ray_backfill.runs.planning.dry_run import dry_run
from ray_backfill.runs.planning.plan import STAGES, Plan, Stage, plan_upgrade
from ray_backfill.runs.planning.settings import PlanningSettings

__all__ = [
    "STAGES",
    "Counts",
    "ModelCounts",
    "Plan",
    "PlanningSettings",
    "Stage",
    "count_images",
    "describe_plan",
    "dry_run",
    "plan_upgrade",
]
