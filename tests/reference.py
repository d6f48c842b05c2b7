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
    d_forward: NDArray[np.float32], d_backward: NDArray[np.float32], gains: NDArray[np.float64],
    order: NDArray[np.int64], points: int, metrics: Sequence[str], switch: str = "progressively", recalls: int = 0,
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:  # fmt: skip
    """Per query and point: a full sort of what is served, then the metrics by their definitions.

    gains: (queries, items) of right answers, 0 for other items, NaN for those that a query cannot find.

    Returns:
        Metric -> (queries, points), for queries without a right answer NaN; and how many items a cascade embeds.
    """
    n_queries, n_gallery = gains.shape
    values = {metric: np.full((n_queries, points), np.nan) for metric in metrics}
    embedded = np.zeros((n_queries, points))
    for q, i in np.ndindex(n_queries, points):
        can_be_found = np.flatnonzero(~np.isnan(gains[q])).tolist()
        done = set(order[: i * n_gallery // (points - 1)].tolist())
        by_old = sorted(can_be_found, key=lambda g: (d_backward[q, g], g))
        ranking, recalled = by_old, by_old[:recalls]
        if switch == "progressively":
            ranking = sorted(can_be_found, key=lambda g: (d_forward[q, g] if g in done else d_backward[q, g], g))
        elif switch == "only_backfilled" or i == points - 1:
            ranking = sorted(done.intersection(can_be_found), key=lambda g: (d_forward[q, g], g))
        elif recalls:
            ranking = [*sorted(recalled, key=lambda g: (d_forward[q, g], g)), *by_old[recalls:]]
        embedded[q, i] = len(set(recalled) - done)
        missed = [float(gains[q, g]) for g in set(can_be_found) - set(ranking) if gains[q, g]]
        found = [float(gains[q, g]) for g in ranking]
        if missed or any(found):
            for metric in metrics:
                values[metric][q, i] = score(found, metric, missed)
    return values, embedded


# One answer of a list: score, distance, item, and whether the forward system serves it.
Answer = tuple[float, float, int, bool]


def merged(lists: Sequence[Sequence[Answer]], k: int) -> list[Answer]:
    """The first k of the answers in several lists of one query, by a sort of all."""
    return sorted(answer for answers in lists for answer in answers)[:k]


def mean_score(rankings: Sequence[Sequence[float]], weights: NDArray[np.float64], metric: str) -> float:
    """The weighted mean over the queries that have a right answer. rankings: gains, from the first item to the last."""
    scored = [q for q, gains in enumerate(rankings) if any(gains)]
    total = math.fsum(weights[q] * score(rankings[q], metric) for q in scored)
    return total / math.fsum(weights[q] for q in scored)


def score(gains: Sequence[float], metric: str, missed: Sequence[float] = ()) -> float:
    """One whole ranking's metric, walking down the list. gains: above 0 for right items. missed: of those not in it."""
    name, _, cut = metric.partition("@")
    all_right = [*filter(None, gains), *missed]
    k = int(cut) if cut else len(gains) + len(missed)
    right = [gain > 0 for gain in gains]
    if name == "CMC":
        return float(any(right[:k]))
    if name == "recall":
        return sum(right[:k]) / len(all_right)
    if name == "MRR":
        return next((1 / rank for rank, is_right in enumerate(right[:k], start=1) if is_right), 0.0)
    if name == "nDCG":
        return dcg(gains[:k]) / dcg(sorted(all_right, reverse=True)[:k])
    if name == "P":
        return sum(right[:k]) / k
    assert name in ("mAP", "AP")
    found, total = 0, 0.0
    for rank, is_right in enumerate(right[:k], start=1):
        if is_right:
            found += 1
            total += found / rank
    return total / (len(all_right) if name == "AP" else min(len(all_right), k))


def dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
