"""python jobs/reproduce.py --recipe landmarks"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("reproduce")
