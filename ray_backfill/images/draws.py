"""Random draws that depend only on (seed, stream, id), not on any other draw; divisions, and sizes of classes.

Shapes: N ids or images; K numbers per id; C classes.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of uint64 that looks random."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def hash_ids(seed: int, stream: int, ids_N: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(N,) uint64. Different ``stream`` numbers give independent hashes of the same ids."""
    base = _mix(np.array([seed & _MASK], np.uint64) + _GOLDEN)
    base = _mix(base + _GOLDEN * np.array([stream & _MASK], np.uint64))
    return _mix(ids_N.astype(np.uint64) + base)


def hash_grid(seed: int, stream: int, ids_N: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """(N, count) uint64: ``count`` hashes per id."""
    steps_K = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(hash_ids(seed, stream, ids_N)[:, None] + steps_K)


def uniform(seed: int, stream: int, ids_N: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """(N, count) float32 in [0, 1), multiples of 2**-24."""
    grid_NK = hash_grid(seed, stream, ids_N, count)
    return (grid_NK >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def shuffled(seed: int, name: str, count: int) -> NDArray[np.int64]:
    """0 .. count - 1 in a random order that depends only on ``seed`` and ``name``, not on other names."""
    return np.argsort(hash_ids(seed, zlib.crc32(name.encode()), np.arange(count)), kind="stable")


def divide(names: list[str], labels_N: NDArray[np.int64], train_fraction: float, seed: int) -> NDArray[np.bool_]:
    """(N,) mask of train images: ``train_fraction`` of each class, at least one image, and never all of several.

    names: class names. labels_N: index of each image's class in ``names``.
    """
    order_N = np.argsort(labels_N, kind="stable")
    starts = np.searchsorted(labels_N[order_N], np.arange(len(names) + 1))
    train_N = np.zeros(len(labels_N), bool)
    for label, name in enumerate(names):
        rows = order_N[starts[label] : starts[label + 1]]
        wanted = min(max(round(train_fraction * len(rows)), 1), max(len(rows) - 1, 1))
        train_N[rows[shuffled(seed, name, len(rows))[:wanted]]] = True
    return train_N


def class_sizes(count: int, classes: int, zipf: float, fewest: int = 1) -> NDArray[np.int64]:
    """(C,) int64 class sizes, largest first, with sum ``count``: ``fewest`` each, the rest by rank ** -zipf.

    With too few images for that, each class gets the same minimum; with fewer than classes, the first get one each.
    """
    if count < classes:
        return (np.arange(classes) < count).astype(np.int64)
    floor = min(fewest, count // classes)
    weights_C = np.arange(1, classes + 1, dtype=np.float64) ** -zipf
    return floor + shares(count - floor * classes, weights_C)


def shares(count: int, weights_C: NDArray[np.float64]) -> NDArray[np.int64]:
    """(C,) ``count`` in proportion to the weights; remainders go to the largest fractions, ties to the first."""
    exact_C = count * weights_C / weights_C.sum()
    sizes_C = np.floor(exact_C).astype(np.int64)
    more = np.argsort(sizes_C - exact_C, kind="stable")[: count - int(sizes_C.sum())]
    sizes_C[more] += 1
    return sizes_C
