"""Rank merge by raw distances in a second way: numpy alone, no code of the project.

    python -m reproduction.atlas.brute_force OUT/cranfield/upgrades/glove_minilm [more folders of upgrades]

Prints nDCG@10 of the old and the new model, and of the merged search when a tenth, half and nine tenths of the gallery
are backfilled: with the permutation of the atlas, and the range of five others.
"""

import sys

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

_TIMES, _CUT = (0.1, 0.5, 0.9), 10


def main() -> None:
    for folder in sys.argv[1:]:
        gallery, queries = (pq.read_table(f"{folder}/{split}.parquet") for split in ("gallery", "queries"))
        place = {item: row for row, item in enumerate(gallery["id"].to_pylist())}
        listed = zip(queries["positives"].to_pylist(), queries["grades"].to_pylist(), strict=True)
        grades = [{place[item]: grade for item, grade in zip(*each, strict=True)} for each in listed]
        scores = {}
        for model in ("old", "new"):
            q, g = (np.stack(table[model].to_pylist()).astype(np.float64) for table in (queries, gallery))
            q, g = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (q, g))
            scores[model] = q @ g.T
        alone = ", ".join(f"{model} {ndcg(each, grades):.2f}" for model, each in scores.items())
        print(f"{folder}: {alone}")
        for t in _TIMES:
            values = []
            for seed in range(6):
                rank = np.argsort(np.random.default_rng(seed).permutation(len(gallery)))
                is_new = np.zeros(len(gallery), bool)
                is_new[rank[: round(t * len(gallery))]] = True
                values.append(ndcg(np.where(is_new, scores["new"], scores["old"]), grades))
            print(f"  {100 * t:.0f} %: {values[0]:.2f}; five others {min(values[1:]):.2f} to {max(values[1:]):.2f}")


def ndcg(scores_QN: NDArray[np.float64], grades: list[dict[int, float]]) -> float:
    """The mean over queries with answers, in per cent; gains are the grades (Järvelin and Kekäläinen 2002)."""
    discount, found = 1 / np.log2(np.arange(2, _CUT + 2)), []
    for scores, own in zip(scores_QN, grades, strict=True):
        if own:
            gains = [own.get(int(item), 0.0) for item in np.argsort(-scores, kind="stable")[:_CUT]]
            ideal = sorted(own.values(), reverse=True)[:_CUT]
            found.append(gains @ discount[: len(gains)] / (ideal @ discount[: len(ideal)]))
    return 100 * float(np.mean(found))


if __name__ == "__main__":
    main()
