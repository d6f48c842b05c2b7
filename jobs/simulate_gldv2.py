"""Simulate the online backfill of a landmark gallery in the protocol of Google Landmarks v2 (open class, mAP@100).

python jobs/simulate_gldv2.py                 (rendered landmarks at demo size; needs no data)
python jobs/simulate_gldv2.py --scale full    (761,757 invented embeddings; --gallery.items for other sizes)
ray job submit --working-dir . -- python jobs/simulate_gldv2.py --out /shared/runs/demo
"""

from ray_backfill.cli.jobs import simulate_landmarks_job
from ray_backfill.cli.shell import run_job

if __name__ == "__main__":
    run_job(lambda: simulate_landmarks_job(__doc__ or ""))
