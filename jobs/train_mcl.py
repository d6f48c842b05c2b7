"""python jobs/train_mcl.py --methods mcl rm --out runs/demo"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("fit")
