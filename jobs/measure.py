"""python jobs/measure.py --new hf:FOLDER --texts /shared/corpus.csv --out /shared/rates.json"""

from ray_backfill.cli.main import main

if __name__ == "__main__":
    main("measure")
