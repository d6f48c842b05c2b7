"""Fit what methods need on stored embeddings: heads and transformations by Ray Train, adapters by their formulas.

python jobs/train_mcl.py --recipe omniglot --data-root PATH --out runs/omniglot --methods mcl rm
python jobs/train_mcl.py --data DIR --out runs/mine --methods rm
"""

from ray_backfill.cli.jobs import fit_job
from ray_backfill.cli.shell import run_job

if __name__ == "__main__":
    run_job(lambda: fit_job(__doc__ or ""))
