"""Hashes of vectors, row by row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def hash_rows(vectors: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """(N,) a hash of each row: a sum of its float32 words with random weights.

    Source: multilinear hashing, Carter and Wegman 1979. Two different rows have the same hash once in 2^33 times at
    most, and once in 2^64 times if they differ in the last bit of any number.
    """
    weights = np.random.default_rng(seed).integers(0, 1 << 64, vectors.shape[1], np.uint64)
    same_zeros = vectors.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    hashes: NDArray[np.uint64] = same_zeros.view(np.uint32).astype(np.uint64) @ weights
    return hashes
