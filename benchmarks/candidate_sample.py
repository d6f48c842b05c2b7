"""Whether a sample of candidates could settle recall@10, nDCG@10 and CMC@1, which ``forecast`` refuses.

    python -m benchmarks.candidate_sample FOLDER[:QRELS] ... [--shares 0.02 0.05 0.1] [--samples 200] [--candidates 30]

FOLDER: embeddings by both models with queries of their own. A share of the gallery is embedded: a fifth of it evenly,
the rest as the nearest items of queries that are chosen at random, by the new embeddings that a ridge regression
predicts from the old ones (``fit_stand_in``). The distances of the other items are drawn: the predicted distance plus
the error of a uniformly drawn item at about the same predicted distance, for right answers and others apart. The metric
of a chosen query is the mean of such drawings; the mean over all queries is a regression on the metric at t = 0, which
is known. Rank merge in random order.

Prints for each share, metric and figure: the exact value, bias, root mean square error, mean half-width of the 95 %
interval (Student's t over the chosen queries), the share of intervals that hold the exact value, and the half-width
that would be left if every new embedding of the chosen queries were known: no sample of so many queries is better.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

from ray_backfill.data.folder import read_folder
from ray_backfill.data.truth import find_truth
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem
from ray_backfill.forecast.sample import free_pairs
from ray_backfill.learn.models.apply import StandInMap, fit_stand_in

METRICS = ("recall@10", "nDCG@10", "CMC@1")
K = 10
# Moments: the new model alone, and half of the backfill.
MOMENTS = {"M_0.5": 0.5, "M_1": 1.0}
PILOT = 0.2
WORLDS, BINS = 16, 20
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Case:
    """old, new: (Q, N) distances. gain: (Q, N) grade of each right answer, 0 for others. done_N: moment of each item in
    one random order, in [0, 1).
    """

    name: str
    old: NDArray[np.float32]
    new: NDArray[np.float32]
    gain: NDArray[np.float32]
    done_N: Floats
    new_queries: NDArray[np.float32]
    old_gallery: NDArray[np.float32]
    new_gallery: NDArray[np.float32]
    free: tuple[NDArray[np.float32], NDArray[np.float32]]


def read_case(given: str) -> Case:
    path, _, qrels = given.partition(":")
    folder = read_folder(Path(path))
    truth = find_truth(folder, ("qrels", qrels) if qrels else (), "cosine").ground
    assert folder.queries is not None
    rows = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    old, new = (
        ProductForm.of(
            RetrievalSystem(folder.queries.vectors[m][rows], folder.gallery.vectors[m]), "cosine"
        ).approximate(np.arange(len(rows)))
        for m in ("old", "new")
    )
    done_N = np.random.default_rng(5).permutation(len(folder.gallery)) / len(folder.gallery)
    new_queries = folder.queries.new[rows].astype(np.float32)
    galleries = [folder.gallery.vectors[m].astype(np.float32) for m in ("old", "new")]
    both = [x.astype(np.float32) for x in free_pairs(folder)]
    return Case(
        given, old, new, gains_of(truth, rows, old.shape[1]), done_N, new_queries, galleries[0], galleries[1],
        (both[0], both[1]),
    )  # fmt: skip


def gains_of(truth: GroundTruth, rows: Rows, n_items: int) -> NDArray[np.float32]:
    gain = np.zeros((len(rows), n_items), np.float32)
    for place, query in enumerate(rows.tolist()):
        first, last = truth.positive_starts[query], truth.positive_starts[query + 1]
        gain[place, truth.positives[first:last]] = 1 if truth.grades is None else truth.grades[first:last]
    return gain


def measured(distance: NDArray[np.float32], gain: NDArray[np.float32]) -> Floats:
    """(rows, 3) METRICS of rankings by (rows, N) distances."""
    near = np.argpartition(distance, K, axis=1)[:, :K]
    order = np.take_along_axis(distance, near, 1).argsort(axis=1, kind="stable")
    found = np.take_along_axis(gain, np.take_along_axis(near, order, 1), 1).astype(np.float64)
    discount = 1 / np.log2(np.arange(2, K + 2))
    best = -np.sort(-gain, axis=1)[:, :K] @ discount
    return np.stack([(found > 0).sum(1) / (gain > 0).sum(1), found @ discount / best, found[:, 0] > 0], 1)


def merged(case: Case, rows: Rows | slice, new: NDArray[np.float32], moment: float) -> NDArray[np.float32]:
    return np.where(case.done_N < moment, new, case.old[rows])


def stand_ins(case: Case, pilot: Rows) -> StandInMap:
    old, new = case.free
    return fit_stand_in(
        np.concatenate([case.old_gallery[pilot], old]), np.concatenate([case.new_gallery[pilot], new]), "cosine"
    )


def one_sample(case: Case, budget: int, candidates: int, seed: int) -> tuple[Rows, Floats, Floats]:
    """The chosen queries, their (m, moments, metrics) estimates, and the same if all their distances were known."""
    rng, (n_queries, n_items) = np.random.default_rng(seed), case.old.shape
    pilot = rng.permutation(n_items)[: int(PILOT * budget)]
    is_known = np.zeros(n_items, np.bool_)
    is_known[pilot] = True
    stand_in = stand_ins(case, pilot)(case.old_gallery)
    predicted = ProductForm.of(RetrievalSystem(case.new_queries, stand_in), "cosine").approximate(np.arange(n_queries))
    chosen: list[int] = []
    for query in rng.permutation(n_queries).tolist():
        near = np.argpartition(predicted[query], candidates)[:candidates]
        if is_known.sum() + (~is_known[near]).sum() > budget:
            break
        is_known[near] = True
        chosen.append(query)
    rows = np.array(chosen)
    draws = list(drawings(case, predicted, pilot, is_known, rows, rng))
    moments = list(MOMENTS.values())
    ours = np.stack(
        [np.mean([measured(merged(case, rows, new, t), case.gain[rows]) for new in draws], axis=0) for t in moments], 1
    )
    known = np.stack([measured(merged(case, rows, case.new[rows], t), case.gain[rows]) for t in moments], 1)
    return rows, ours, known


def drawings(
    case: Case, predicted: NDArray[np.float32], pilot: Rows, is_known: NDArray[np.bool_], rows: Rows,
    rng: np.random.Generator,
) -> Iterator[NDArray[np.float32]]:  # fmt: skip
    """(m, N) distances of the chosen queries: true ones of known items, drawn ones of others."""
    off, of_pilot = case.new[:, pilot] - predicted[:, pilot], predicted[:, pilot]
    common = off.mean(axis=1, keepdims=True)  # of a query
    off = off - common
    right = case.gain[:, pilot] > 0
    pools = [binned(of_pilot[kind], off[kind]) for kind in (~right, right) if kind.sum() > 2 * BINS]
    if len(pools) < 2:
        pools.append(pools[0])
    hidden = [np.nonzero(~is_known & ((case.gain[rows] > 0) == kind)) for kind in (False, True)]
    for _ in range(WORLDS):
        new = case.new[rows].copy()
        for (edges, residuals), (row, item) in zip(pools, hidden, strict=True):
            at = predicted[rows[row], item]
            own = np.searchsorted(edges, at)
            new[row, item] = at + common[rows[row], 0] + residuals[own, rng.integers(0, residuals.shape[1], len(own))]
        yield new


def binned(predicted: NDArray[np.float32], off: NDArray[np.float32]) -> tuple[Floats, NDArray[np.float32]]:
    """Edges of bins of equally many pairs, finer where items are close; and (bins, 500) residuals of each."""
    order = np.argsort(predicted)
    ends = np.unique((np.geomspace(max(20, len(order) // 2000), len(order), BINS)).astype(int))
    parts = np.split(order, ends[:-1])
    rng = np.random.default_rng(0)
    edges = np.array([predicted[order[end]] for end in ends[:-1]], np.float64)
    return edges, np.stack([off[rng.choice(part, 500)] for part in parts])


def estimate(start: Floats, rows: Rows, values: Floats) -> tuple[float, float]:
    """The mean over all queries by a regression on the (Q,) metric at t = 0, and half of its 95 % interval."""
    own = start[rows]
    slope = np.cov(own, values)[0, 1] / max(own.var(ddof=1), 1e-12)
    left = values - values.mean() - slope * (own - own.mean())
    share = len(rows) / len(start)
    error = np.sqrt(left @ left / max(len(rows) - 2, 1) / len(rows) * (1 - share))
    value = values.mean() + slope * (start.mean() - own.mean())
    return float(value), float(student.ppf(0.975, max(len(rows) - 2, 1)) * error)


def simulate(case: Case, share: float, samples: int, candidates: int) -> pd.DataFrame:
    n_items = case.old.shape[1]
    start = measured(case.old, case.gain)
    true = {name: measured(merged(case, slice(None), case.new, t), case.gain).mean(0) for name, t in MOMENTS.items()}
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    chosen = []
    for seed in range(samples):
        rows, ours, known = one_sample(case, int(share * n_items), candidates, seed)
        chosen.append(len(rows))
        if len(rows) < 5:
            continue
        for m, metric in enumerate(METRICS):
            for t, name in enumerate(MOMENTS):
                value, half = estimate(start[:, m], rows, ours[:, t, m])
                floor = estimate(start[:, m], rows, known[:, t, m])[1]
                found.setdefault((metric, name), []).append((value, half, floor))
    lines = []
    for (metric, name), each in found.items():
        value, half, floor = np.array(each).T
        exact = true[name][METRICS.index(metric)]
        lines.append(
            {"share": f"{100 * share:g} %", "queries": round(np.mean(chosen)), "metric": metric, "figure": name}
            | {"old": 100 * start[:, METRICS.index(metric)].mean(), "exact": 100 * exact}
            | {"bias": 100 * (value.mean() - exact), "RMSE": 100 * np.sqrt(((value - exact) ** 2).mean())}
            | {"half-width": 100 * half.mean(), "covered": 100 * (abs(value - exact) <= half).mean()}
            | {"least half-width": 100 * floor.mean(), "samples": len(each)}
        )
    return pd.DataFrame(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.02, 0.05, 0.1])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=30)
    given = parser.parse_args()
    for folder in given.folders:
        case = read_case(folder)
        print(f"\n{folder}: {case.old.shape[1]:,} items, {case.old.shape[0]:,} queries", flush=True)
        for share in given.shares:
            found = simulate(case, share, given.samples, given.candidates)
            print(found.round(1).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
