"""The merges of a comparison, fitted for each method on the train split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.comparison.maps import FittedMaps
from ray_backfill.merges import RAW, Merge, all_merges, fit_merge
from ray_backfill.methods import Embeddings, Method
from ray_backfill.store import EmbeddingFolder, EmbeddingTable
from ray_backfill.systems import IntArray

# Maximum number of train items that merges are fitted on.
_ITEMS = 20_000


def why_merge_cannot_be_fitted(name: str, train: EmbeddingTable | None) -> str:
    """The reason, or "" if the merge can be fitted on this train split."""
    kind = all_merges()[name]
    if kind.needs_train and train is None:
        return "needs train.parquet to be fitted on"
    if not kind.needs_labels or train is None:
        return ""
    if train.label is None:
        return "needs a column 'label' in train.parquet to be fitted on"
    classes = len(np.unique(train.label))
    return "" if 1 < classes < len(train) else "needs several classes in train.parquet, some with more than one item"


@dataclass(frozen=True)
class MergeFits:
    """The named merges, and the train items to fit them on. label: (train items,) classes, if they are known."""

    names: tuple[str, ...]
    distance: str
    seed: int
    train: Embeddings | None = None
    label: IntArray | None = None

    def of(self, method: Method, maps: FittedMaps) -> dict[str, Merge]:
        """Merge name -> merge, for the merges that apply to the method; references serve one system at a time.

        If the train split lacks embeddings of one of the method's models, only merges that need no fit.
        """
        if method.is_reference:
            return {RAW.name: RAW}
        pair, names = None, self.names
        if self.train is not None:
            if all(model in self.train.gallery for model in method.models):
                pair = method.pair(self.train, maps.of(method))
            else:
                names = tuple(name for name in names if not all_merges()[name].needs_train)
        return {name: fit_merge(name, pair, self.label, self.distance, self.seed) for name in names}


def resolve_merges(folder: EmbeddingFolder, names: Sequence[str], distance: str, seed: int) -> MergeFits:
    """Choose the train items that these merges are fitted on, at most 20,000. seed: for this choice and the fits."""
    train = folder.train
    if train is None or not any(all_merges()[name].needs_train for name in names):
        return MergeFits(tuple(names), distance, seed)
    rows = _some_rows(train, seed)
    # A zero vector has no cosine distance.
    rows = rows[np.all([v[rows].any(axis=1) for v in train.vectors.values()], axis=0)]
    vectors = {model: v[rows] for model, v in train.vectors.items()}
    label = None if train.label is None else np.unique(train.label[rows], return_inverse=True)[1]
    return MergeFits(tuple(names), distance, seed, Embeddings(vectors, vectors), label)


def _some_rows(train: EmbeddingTable, seed: int) -> IntArray:
    """All rows, or a sample of whole classes of a large split, so that items have others of their class."""
    if len(train) <= _ITEMS:
        return np.arange(len(train))
    rng = np.random.default_rng(seed)
    if train.label is None:
        return np.sort(rng.choice(len(train), _ITEMS, replace=False))
    class_of_item: NDArray[Any] = np.unique(train.label, return_inverse=True)[1]
    sizes = np.bincount(class_of_item)
    drawn = rng.permutation(len(sizes))
    chosen = drawn[: max(2, int(np.searchsorted(np.cumsum(sizes[drawn]), _ITEMS, side="right")))]
    rows = np.flatnonzero(np.isin(class_of_item, chosen))
    return rows if len(rows) <= _ITEMS else np.sort(rng.choice(rows, _ITEMS, replace=False))
