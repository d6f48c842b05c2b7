"""``ray-backfill drill`` as a script for ``ray job submit``.

python jobs/drill.py --out runs/live
"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("drill")
