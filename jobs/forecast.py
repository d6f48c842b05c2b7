"""python jobs/forecast.py DIR --new /shared/embedded.parquet --out /shared/runs/early"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("forecast")
