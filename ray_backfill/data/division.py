"""Chooses items: the validation part of a train split, which no fit sees, and samples.

Shapes: N items of the split.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.systems import IntArray

# Share of the train items that is held out, and the most and fewest items of the part.
SHARE, MOST, FEWEST = 0.1, 20_000, 50
_SEED = 0
# Size of a sample of the gallery that maps are fitted on: at most this share of it, and no more than the linear maps
# gain from (docs/results/sampled_train.md).
_OF_GALLERY, _PER_DIMENSION, _ENOUGH = 0.2, 8, 2000


def held_out(label_N: NDArray[Any] | None, n: int) -> NDArray[np.bool_]:
    """Return (N,) which train items are held out: a tenth, at most some 20,000, or none if these were fewer than 50.

    With labels, at least two items of a class, so that each has a right answer, and as many stay for the fits. So small
    classes are drawn until the tenth is reached; large ones all give their share. Items of unknown class (-1) stay.
    """
    held_N, rng = np.zeros(n, bool), np.random.default_rng(_SEED)
    wanted = min(round(SHARE * n), MOST)
    if label_N is None:
        drawn = rng.permutation(n)[:wanted]
    else:
        drawn = np.concatenate([np.empty(0, np.int64), *_of_classes(label_N, wanted, rng)])
    if len(drawn) >= FEWEST:
        held_N[drawn] = True
    return held_N


def _of_classes(label_N: NDArray[Any], wanted: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Rows of random classes, until there are as many as wanted."""
    share, drawn = wanted / max(len(label_N), 1), 0
    names, class_N = np.unique(label_N, return_inverse=True)
    shuffled = rng.permutation(len(label_N))
    by_class = shuffled[np.argsort(class_N[shuffled], kind="stable")]
    rows_of = np.split(by_class, np.cumsum(np.bincount(class_N))[:-1])
    for number in rng.permutation(len(names)):
        if drawn >= wanted:
            return
        rows, is_known = rows_of[number], names.dtype.kind != "i" or names[number] != -1
        size = max(2, round(share * len(rows)))
        if is_known and len(rows) >= size + 2:
            yield rows[:size]
            drawn += size


def drawn_rows(label_N: NDArray[Any] | None, n: int, most: int, seed: int) -> IntArray:
    """Return all rows, or of a large split at most so many, in whole classes, so that items have others of theirs."""
    if n <= most:
        return np.arange(n)
    rng = np.random.default_rng(seed)
    if label_N is None:
        return np.sort(rng.choice(n, most, replace=False))
    class_N: NDArray[Any] = np.unique(label_N, return_inverse=True)[1]
    sizes = np.bincount(class_N)
    drawn = rng.permutation(len(sizes))
    chosen = drawn[: max(2, int(np.searchsorted(np.cumsum(sizes[drawn]), most, side="right")))]
    rows = np.flatnonzero(np.isin(class_N, chosen))
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def fit_rows(n: int, dims: int) -> IntArray:
    """Return the rows of a gallery of n items to fit maps of at most ``dims`` dimensions on; none if these are few."""
    size = min(int(_OF_GALLERY * n), max(_ENOUGH, _PER_DIMENSION * dims))
    if size < FEWEST:
        return np.empty(0, np.int64)
    return np.sort(np.random.default_rng(_SEED).choice(n, size, replace=False))
