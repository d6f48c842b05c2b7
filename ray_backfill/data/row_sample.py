"""A sample of the items of a split."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.data.store import EmbeddingTable, take
from ray_backfill.engine.systems import IntArray


def sample(table: EmbeddingTable, most: int, seed: int) -> EmbeddingTable:
    """Some items of a split, without zero vectors, which have no cosine distance."""
    rows = _some_rows(table.label, len(table), most, seed)
    return take(table, rows[np.all([v[rows].any(axis=1) for v in table.vectors.values()], axis=0)])


def _some_rows(label: NDArray[Any] | None, n: int, most: int, seed: int) -> IntArray:
    """All rows, or a sample of whole classes of a large split, so that items have others of their class."""
    if n <= most:
        return np.arange(n)
    rng = np.random.default_rng(seed)
    if label is None:
        return np.sort(rng.choice(n, most, replace=False))
    class_of_item: NDArray[Any] = np.unique(label, return_inverse=True)[1]
    sizes = np.bincount(class_of_item)
    drawn = rng.permutation(len(sizes))
    chosen = drawn[: max(2, int(np.searchsorted(np.cumsum(sizes[drawn]), most, side="right")))]
    rows = np.flatnonzero(np.isin(class_of_item, chosen))
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
