"""``python -m ray_backfill``: the same as the command ``ray-backfill``."""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main()
