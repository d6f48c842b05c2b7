"""Metrics of one ranking, from their definitions. Distances in these tests are integers, so that nothing is rounded."""

import math


def dcg(gains: list[float]) -> float:
    return math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(gains))


def score(ranks: list[tuple[int, float]], all_gains: list[float], metric: str, n_gallery: int) -> float:
    """ranks: rank from 1 and gain of each right answer that was found."""
    name, _, cut = metric.partition("@")
    k = int(cut) if cut else n_gallery
    inside = [(rank, gain) for rank, gain in ranks if rank <= k]
    if name == "CMC":
        return float(bool(inside))
    if name == "recall":
        return len(inside) / len(all_gains)
    if name == "MRR":
        return 1 / inside[0][0] if inside else 0.0
    if name == "nDCG":
        given = math.fsum(gain / math.log2(rank + 1) for rank, gain in inside)
        return given / dcg(sorted(all_gains, reverse=True)[:k])
    return math.fsum((j + 1) / rank for j, (rank, _) in enumerate(inside)) / min(len(all_gains), k)
