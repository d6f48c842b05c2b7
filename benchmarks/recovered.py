"""How much of the new model's retrieval from the old gallery maps of queries recover, by Drift-Adapter's own measure.

    python -m benchmarks.recovered FOLDER_OF_EMBEDDINGS [--methods drift_mlp ...]

Adaptation Recall Ratio (ARR; Vejendla 2025, section 4): the right answers of a query are the 10 gallery items closest
to it by the new model, so {new, new} has recall 1. The paper reports 0.95 to 0.99 for its adapters. Two rows say what
to expect: "old" searches with old queries, and "best point" with the mean of the right answers' own old embeddings,
which no adapter can know (it has the largest sum of cosines to them, not provably the best recall). Beside it:
CMC@1 by labels, and the share of the way from old to new that it covers. All by cosine.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.learn.methods import Embeddings, find_methods
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings

METHODS = ("procrustes_query", "drift_procrustes", "drift_low_rank", "drift_mlp", "least_squares_query", "slerp")
K = 10
# Queries searched at a time.
_ROWS = 256


def closest(query_Qd: FloatArray, gallery_Nd: FloatArray, k: int = K) -> IntArray:
    """(Q, k) gallery rows with the largest cosines, the largest first."""
    query, gallery_dN, found = normalise(query_Qd), normalise(gallery_Nd).T, []
    for first in range(0, len(query), _ROWS):
        cosine = query[first : first + _ROWS] @ gallery_dN
        top = np.argpartition(-cosine, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(cosine, top, axis=1), axis=1)
        found.append(np.take_along_axis(top, order, axis=1))
    return np.concatenate(found)


def recall(found_Qk: IntArray, right_Qk: IntArray) -> float:
    """Mean share of the right answers that were found."""
    return float(np.mean([len(np.intersect1d(*pair)) / K for pair in zip(found_Qk, right_Qk, strict=True)]))


def recovered(folder: EmbeddingFolder, names: tuple[str, ...], settings: FitSettings) -> dict[str, tuple[float, float]]:
    """ARR and CMC@1 of each search of the old gallery; the row "new" is {new, new}."""
    assert folder.queries is not None
    assert folder.train is not None
    query, gallery = folder.queries.vectors, folder.gallery.vectors
    right_Qk = closest(query["new"], gallery["new"])
    label, labels = folder.queries.label, folder.gallery.label

    def measure(found_Qk: IntArray) -> tuple[float, float]:
        hit = np.nan if label is None or labels is None else float((labels[found_Qk[:, 0]] == label).mean())
        return recall(found_Qk, right_Qk), hit

    centre_Qd: NDArray[np.float64] = normalise(gallery["old"])[right_Qk].mean(1)
    rows = {"new": measure(right_Qk), "best point": measure(closest(centre_Qd, gallery["old"]))}
    rows["old"] = measure(closest(query["old"], gallery["old"]))
    train = TrainSet(folder.train.vectors, folder.train.label)
    for method in find_methods(names):
        assert method.fit is not None
        network = method.fit.fit(train, settings, "cosine").network
        backward = method.pair(Embeddings(query, gallery), network).backward
        rows[method.name] = measure(closest(backward.query, backward.gallery))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    folder = read_folder(arguments.folder)
    if folder.queries is None or folder.train is None:
        parser.error(f"{arguments.folder} needs queries.parquet and train.parquet")
    print(f"{len(folder.queries):,} queries, {len(folder.gallery):,} gallery items; the paper's ARR: 0.95 to 0.99")
    rows = recovered(folder, tuple(arguments.methods), FitSettings())
    old, new = rows["old"][1], rows["new"][1]
    print(f"{'search of the old gallery':<28}{'ARR':>8}{'CMC@1':>9}{'of old to new':>16}")
    for name, (ratio, hit) in rows.items():
        print(f"{name:<28}{ratio:>8.3f}{100 * hit:>8.1f}%{100 * (hit - old) / (new - old):>15.0f}%")


if __name__ == "__main__":
    main()
