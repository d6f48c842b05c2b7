"""How far retention is from the truth: what the new model finds taken as right, beside real right answers.

    python -m benchmarks.retention FOLDER [FOLDER:QRELS ...] [--methods NAME ...] [--truths new-top1 ...]

Each folder holds embeddings of both models and knows right answers: by labels or positives, or by judgements in the
file QRELS. The same methods are replayed with the truth and with each pseudo-truth. True quality is relative to the
finished upgrade's, M_t / M of {new, new}, so that both are 1 there. Prints, over all methods and 11 moments: the mean
of retention minus true relative quality, the mean absolute and the largest difference, and Kendall's tau of the
methods' areas; and the median number of right answers of a query.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kendalltau

import ray_backfill as rb
from ray_backfill.data.folder import read_folder
from ray_backfill.data.truth import find_truth

METHODS = (
    *("instant", "rm_naive", "procrustes_gallery", "procrustes_query", "least_squares_gallery", "least_squares_query"),
    *("ridge_gallery", "low_rank_gallery", "slerp", "drift_procrustes", "drift_low_rank", "fct", "rm"),
)
TRUE = ("mAP", "CMC@1", "nDCG@10")
# Pseudo-truth -> the metrics that it is read by.
PSEUDO = {
    "new-top1": ("CMC@1", "MRR", "nDCG@10", "recall@5", "recall@10", "recall@20"),
    "new-top10": ("recall@10", "mAP", "nDCG@10"),
    "new-top100": ("recall@100", "mAP"),
}
Curves = dict[str, NDArray[np.float64]]


def curves_of(found: rb.Results, metric: str) -> Curves:
    """Method -> (T,) M_t relative to {new, new}."""
    rows = {row.method: row for row in found.rows if row.metric == metric}
    end = rows["new"].end
    lines = {name: found.line(row) for name, row in rows.items()}
    return {name: line.value / end for name, line in lines.items() if line is not None and name != "new"}


def compare(true: Curves, pseudo: Curves) -> tuple[float, float, float, float]:
    """Mean, mean absolute and largest difference, and tau of the areas."""
    names = [name for name in true if name in pseudo]
    differences = np.array([pseudo[name] - true[name] for name in names])
    areas = [[float(curves[name].mean()) for name in names] for curves in (true, pseudo)]
    tau = float(kendalltau(*areas).statistic)
    return float(differences.mean()), float(abs(differences).mean()), float(abs(differences).max()), tau


def right_answers(folder: str, truth: tuple[str, ...]) -> float:
    """Median number of right answers of a query that has any."""
    number = np.diff(find_truth(read_folder(Path(folder)), truth, "cosine").ground.positive_starts)
    return float(np.median(number[number > 0]))


def measure(given: str, methods: Sequence[str], truths: Sequence[str], scratch: Path) -> list[dict[str, str]]:
    folder, _, qrels = given.partition(":")
    truth = ("qrels", qrels) if qrels else ()
    print(f"{given}: {right_answers(folder, truth):g} right answers of a query", flush=True)
    simulate = partial(rb.simulate, folder, out=scratch, methods=methods, overwrite=True)
    real = simulate(truth=truth, metrics=TRUE)
    lines = []
    for name, metrics in ((name, PSEUDO[name]) for name in truths):
        found = simulate(truth=name, metrics=metrics)
        for metric, wanted in product(metrics, TRUE):
            bias, mean, largest, tau = compare(curves_of(real, wanted), curves_of(found, metric))
            numbers = {"bias": bias, "mean error": mean, "largest": largest}
            line = {"pseudo-truth": f"{name} {metric}", "true metric": wanted}
            lines.append(line | {key: f"{100 * value:+.1f}" for key, value in numbers.items()} | {"tau": f"{tau:.2f}"})
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--truths", nargs="+", choices=PSEUDO, default=list(PSEUDO))
    arguments = parser.parse_args()
    for each in arguments.folders:
        with TemporaryDirectory() as scratch:
            lines = measure(each, arguments.methods, arguments.truths, Path(scratch))
            print(f"{pd.DataFrame(lines).to_string(index=False)}\n", flush=True)
