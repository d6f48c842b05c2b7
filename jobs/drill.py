"""python jobs/drill.py --out runs/live"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("drill")
