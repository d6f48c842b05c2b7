"""Train one backbone of a recipe by Ray Train: DDP, a checkpoint every epoch, resumable.

python jobs/train_backbone.py --model old --recipe omniglot --data-root PATH --out runs/omniglot
python jobs/train_backbone.py --model new --recipe imagenet --dry-run     (what it would need; needs no data)
"""

import tyro

from ray_backfill.cli.jobs import context_of
from ray_backfill.cli.options import BackboneJob
from ray_backfill.cli.parse import recipe_job
from ray_backfill.cli.shell import run_job, shown
from ray_backfill.runs.images import train_recipe_backbone


def main() -> None:
    job = recipe_job(__doc__ or "", kind=BackboneJob, last_stage="backbones", model=tyro.MISSING)
    print(f"backbone: {shown(train_recipe_backbone(job.settings, job.model, context_of(job)))}")


if __name__ == "__main__":
    run_job(main)
