"""Run a recipe with several seeds and all methods, and write one page: tables, the papers' tables beside, every claim.

python jobs/reproduce.py --recipe omniglot --data-root PATH --subgroups omniglot_biased --page docs/results/omniglot.md
"""

from ray_backfill.cli.shell import run_job
from ray_backfill.papers.job import reproduce_job

if __name__ == "__main__":
    run_job(lambda: reproduce_job(__doc__ or ""))
