"""python jobs/plan.py /shared/runs/mine --fleet /shared/fleet.yaml"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("plan")
