"""Brute force, straight from the definitions, to hold the engine against. Nothing here is shared with the library."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def distances(query: NDArray[np.floating], gallery: NDArray[np.floating], distance: str) -> NDArray[np.float32]:
    """One pair at a time, by the textbook formula, rounded to float32 where the library says it rounds."""
    out = np.empty((len(query), len(gallery)), np.float32)
    for i, q in enumerate(query.astype(np.float64)):
        for j, g in enumerate(gallery.astype(np.float64)):
            if distance == "cosine":
                cosine = math.fsum(q * g) / math.sqrt(math.fsum(q * q) * math.fsum(g * g))
                out[i, j] = np.clip(np.float32(1) - np.float32(cosine), 0, 2)
            elif distance == "l2":
                out[i, j] = math.sqrt(math.fsum((q - g) ** 2))
            else:
                out[i, j] = -math.fsum(q * g)
    return out


def curves(
    d_forward: NDArray[np.float32],
    d_backward: NDArray[np.float32],
    gains: NDArray[np.float64],
    weights: NDArray[np.float64],
    order: NDArray[np.int64],
    points: int,
    metrics: Sequence[str],
) -> dict[str, list[float]]:
    """Per point: a full sort of where(backfilled, d_forward, d_backward), then the metrics by their definitions.

    gains: (queries, items) of right answers, 0 for other items, NaN for ignored ones. weights: (queries,).
    """
    n_gallery = len(order)
    values: dict[str, list[float]] = {metric: [] for metric in metrics}
    for i in range(points):
        done = math.floor(i * n_gallery / (points - 1) + 1e-12)
        backfilled = np.zeros(n_gallery, bool)
        backfilled[order[:done]] = True
        rankings = []
        for q in range(len(d_forward)):
            active = np.where(backfilled, d_forward[q], d_backward[q])
            ranking = sorted(range(n_gallery), key=lambda g: (active[g], g))
            rankings.append([float(gains[q, g]) for g in ranking if not math.isnan(gains[q, g])])
        for metric in metrics:
            values[metric].append(mean_score(rankings, weights, metric))
    return values


def mean_score(rankings: Sequence[Sequence[float]], weights: NDArray[np.float64], metric: str) -> float:
    """The weighted mean over the queries that have a right answer. rankings: gains, from the first item to the last."""
    scored = [q for q, gains in enumerate(rankings) if any(gains)]
    total = math.fsum(weights[q] * score(rankings[q], metric) for q in scored)
    return total / math.fsum(weights[q] for q in scored)


def score(gains: Sequence[float], metric: str) -> float:
    """One whole ranking's metric, walking down the list. gains: above 0 for right items."""
    name, _, cut = metric.partition("@")
    k = int(cut) if cut else len(gains)
    right = [gain > 0 for gain in gains]
    if name == "CMC":
        return float(any(right[:k]))
    if name == "recall":
        return sum(right[:k]) / sum(right)
    if name == "MRR":
        return next((1 / rank for rank, is_right in enumerate(right[:k], start=1) if is_right), 0.0)
    if name == "nDCG":
        return dcg(gains[:k]) / dcg(sorted(gains, reverse=True)[:k])
    assert name == "mAP"
    found, total = 0, 0.0
    for rank, is_right in enumerate(right[:k], start=1):
        if is_right:
            found += 1
            total += found / rank
    return total / min(sum(right), k)


def dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
