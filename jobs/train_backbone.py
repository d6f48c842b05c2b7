"""Train one backbone of a recipe by Ray Train: DDP, a checkpoint every epoch, resumable.

python jobs/train_backbone.py --model old --recipe omniglot --data-root PATH --out runs/omniglot
"""

import tyro

from ray_backfill.cli import BackboneJob, checked_out, parse_recipe_job, run_job, shown
from ray_backfill.pipeline import train_recipe_backbone


def main() -> None:
    job = parse_recipe_job(__doc__ or "", kind=BackboneJob, model=tyro.MISSING)
    print(f"backbone: {shown(train_recipe_backbone(job.settings, job.model, checked_out(job.out), job.workers))}")


if __name__ == "__main__":
    run_job(main)
