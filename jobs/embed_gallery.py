"""python jobs/embed_gallery.py --out runs/demo"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("embed")
