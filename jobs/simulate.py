"""Simulate the online backfill of a gallery: the whole chain of a recipe, or a folder of embeddings.

python jobs/simulate.py --recipe omniglot --data-root PATH --out runs/omniglot
python jobs/simulate.py --recipe imagenet --dry-run     (what it would need: GPU hours, storage; needs no data)
python jobs/simulate.py --recipe cifar100 --data-root PATH --download
python jobs/simulate.py --data DIR --out runs/mine --metrics mAP@100 CMC@1 --orders random
"""

from ray_backfill.cli.jobs import simulate_job
from ray_backfill.cli.shell import run_job

if __name__ == "__main__":
    run_job(lambda: simulate_job(__doc__ or ""))
