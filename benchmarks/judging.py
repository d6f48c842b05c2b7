"""What judging a few queries tells: how often ``simulate --judge`` names the better of two models.

    make atlas DATA=PATH
    python -m benchmarks.judging runs/atlas/cranfield runs/atlas/nfcorpus runs/atlas/banking77

Each folder holds embeddings by several models, which know right answers. For each two of these models the labels are
hidden, queries are drawn and the file is written, filled from the labels for the first queries, and read again. Prints
how often the verdict was right, open and wrong, by the number of judged queries and the true difference of nDCG@10 over
all queries, and how often the 95 % interval contained the true difference of precision.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pandas as pd

import ray_backfill as rb
from ray_backfill.data import judging
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.truth import find_truth
from ray_backfill.engine.systems import GroundTruth, IntArray
from reproduction.atlas.comparison import TRAIN
from reproduction.atlas.embeddings import join

NUMBERS = (25, 50, 100)
BINS = [0, 2, 5, 10, 20, 100]
FIELDS = ["models", "|difference|", "judged", "items", "right", "open", "wrong", "covered"]


def ndcg(folder: EmbeddingFolder, model: str, truth: GroundTruth) -> float:
    assert folder.queries is not None
    system = rb.RetrievalSystem(folder.queries.vectors[model], folder.gallery.vectors[model])
    pair = rb.UpgradePair(system, system)
    return float(rb.replay(pair, truth, np.arange(len(folder.gallery)), 2, "nDCG@10").values("nDCG@10")[0])


def fill(path: Path, to: Path, right: set[tuple[str, str]], judged: int) -> int:
    """Fill the rows of the first queries; returns their number."""
    with path.open(encoding="utf-8-sig", newline="") as opened:
        head, *rows = csv.reader(opened)
    some = set(list(dict.fromkeys(row[0] for row in rows))[:judged])
    filled = [[*row[:4], str(int((row[0], row[2]) in right)) if row[0] in some else ""] for row in rows]
    with to.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([head, *filled])
    return sum(bool(row[4]) for row in filled)


def verdicts(folder: EmbeddingFolder, truth: GroundTruth, draws: int) -> Iterator[dict[str, float]]:
    """For each draw and number of judged queries: the facts, and what is true."""
    assert folder.queries is not None
    found = {m: judging.first_found(folder, m, judging.DEPTH, "cosine", None) for m in ("old", "new")}
    positives = [truth.positives_of(query) for query in range(truth.n_queries)]
    old, new = (np.mean([np.isin(f, p).sum() for f, p in zip(found[m], positives, strict=True)]) for m in found)
    ids, of_query = folder.gallery.id, folder.queries.id
    right = {(str(of_query[query]), str(item)) for query, of in enumerate(positives) for item in ids[of]}
    true = 100 * (ndcg(folder, "new", truth) - ndcg(folder, "old", truth))

    def known(folder: EmbeddingFolder, model: str, k: int, distance: str, by: None, rows: IntArray) -> list[IntArray]:
        return [found[model][row] for row in rows]

    with TemporaryDirectory() as scratch, patch.object(judging, "first_found", known):
        for seed in range(draws):
            empty, filled = Path(scratch) / f"{seed}.csv", Path(scratch) / "filled.csv"
            drawn = judging.draw(folder, "cosine", seed=seed)
            judging.write_sheet(folder, empty, drawn)
            for judged in NUMBERS:
                items = fill(empty, filled, right, judged)
                facts = judging.read_sheet(folder, filled, drawn)
                side = 1 if facts["low"] > 0 else -1 if facts["high"] < 0 else 0
                covered = facts["low"] <= (new - old) / judging.DEPTH <= facts["high"]
                yield {"seed": seed, "judged": judged, "items": items, "side": side, "true": true, "covered": covered}


def table(found: pd.DataFrame) -> pd.DataFrame:
    """Percentages by number of judged queries and true difference; "50, 100": 100 where 50 left it open."""
    keys = ["pair", "seed"]
    first, last = (found[found.judged == number].set_index(keys) for number in NUMBERS[1:])
    both = first.where(first.side != 0, last).reset_index().assign(judged="50, 100")
    every = pd.concat([found, both], ignore_index=True)
    sign = every.side * np.sign(every.true)
    every = every.assign(right=sign == 1, open=sign == 0, wrong=sign == -1)
    bins = pd.cut(every.true.abs(), BINS, right=False).rename("|difference|")
    grouped = every.assign(judged=every.judged.astype(str)).groupby([bins, "judged"], observed=True, sort=False)
    shares = (100 * grouped[["right", "open", "wrong", "covered"]].mean()).round(1)
    shares.insert(0, "items", grouped["items"].mean().round(0))
    shares.insert(0, "models", grouped["pair"].nunique())
    return shares.sort_index(level=0, sort_remaining=False).reset_index()[FIELDS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=100)
    arguments = parser.parse_args()
    lines, draws = [], arguments.draws
    for each in arguments.folders:
        for old, new in combinations(sorted((each / "models").iterdir()), 2):
            with TemporaryDirectory() as scratch:
                folder = read_folder(join(Path(scratch), old, new, TRAIN))
                truth, queries = find_truth(folder).ground, folder.queries
                assert queries is not None
                rows = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
                folder, truth = (
                    replace(folder, queries=queries.take(rows)),
                    truth.part(rows, np.arange(truth.n_gallery)),
                )
                own = [line | {"pair": f"{each.name}/{old.name}_{new.name}"} for line in verdicts(folder, truth, draws)]
            print(f"{own[0]['pair']}: {own[0]['true']:+.1f} points of nDCG@10", flush=True)
            lines += own
    found = pd.DataFrame(lines)
    print(table(found).to_string(index=False))
    print(f"covered: {100 * found.covered.mean():.1f} % of all")


if __name__ == "__main__":
    main()
