"""python jobs/simulate_gldv2.py --out runs/demo"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("simulate")
