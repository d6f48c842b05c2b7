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


def curve(
    d_forward: NDArray[np.float32],
    d_backward: NDArray[np.float32],
    positives: Sequence[set[int]],
    ignored: Sequence[set[int]],
    order: NDArray[np.int64],
    points: int,
    metric: str,
) -> list[float]:
    """Per point: a full sort of where(backfilled, d_forward, d_backward), then the metric by its definition."""
    n_gallery = len(order)
    values = []
    for i in range(points):
        done = math.floor(i * n_gallery / (points - 1) + 1e-12)
        backfilled = np.zeros(n_gallery, bool)
        backfilled[order[:done]] = True
        scores = []
        for q in range(len(d_forward)):
            if not positives[q]:
                continue
            active = np.where(backfilled, d_forward[q], d_backward[q])
            ranking = [g for g in sorted(range(n_gallery), key=lambda g: (active[g], g)) if g not in ignored[q]]
            scores.append(score([g in positives[q] for g in ranking], metric))
        values.append(float(np.mean(scores)))
    return values


def score(right: Sequence[bool], metric: str) -> float:
    """One ranking's metric, walking down the list."""
    name, _, cut = metric.partition("@")
    k = int(cut) if cut else len(right)
    if name == "CMC":
        return float(any(right[:k]))
    found, total = 0, 0.0
    for rank, is_right in enumerate(right[:k], start=1):
        if is_right:
            found += 1
            total += found / rank
    return total / min(sum(right), k)
