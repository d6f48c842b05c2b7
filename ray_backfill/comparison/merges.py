"""The merges of a simulation, fitted for each method on the train split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.comparison.orders import load_fitted
from ray_backfill.errors import InputError
from ray_backfill.merges import MERGES, RAW, Merge, fit_merge
from ray_backfill.methods import Embeddings, Method
from ray_backfill.store import EmbeddingFolder, EmbeddingTable
from ray_backfill.systems import IntArray

# Train items that merges are fitted on, at most.
_ITEMS = 20_000


class Compared(Protocol):
    """What of an ``Evaluation`` merges need."""

    @property
    def distance(self) -> str: ...
    @property
    def order_seed(self) -> int: ...


def check_merge(name: str, distance: str) -> None:
    """Raises InputError for an unknown merge, or one that this distance does not have."""
    if name not in MERGES:
        raise InputError(f"unknown merge {name!r}; known: {', '.join(MERGES)}")
    if name == "csls" and distance != "cosine":
        raise InputError(f"the csls merge is for the cosine distance, not {distance}; drop it from --merges")


def unfittable(folder: EmbeddingFolder, names: Sequence[str]) -> dict[str, str]:
    """Merge -> why it cannot be fitted on this folder."""
    reasons = {}
    for name in names:
        if MERGES[name].needs_train and folder.train is None:
            reasons[f"{name} merge"] = "needs train.parquet to be fitted on"
        elif MERGES[name].needs_labels and (folder.train is None or folder.train.label is None):
            reasons[f"{name} merge"] = "needs a column 'label' in train.parquet to be fitted on"
        elif MERGES[name].needs_labels and folder.train is not None and not _has_matches(folder.train):
            reasons[f"{name} merge"] = "needs several classes in train.parquet, some with more than one item"
    return reasons


def without_merges(folder: EmbeddingFolder, methods: Sequence[Method], names: Sequence[str]) -> dict[str, str]:
    """ "<method> with fitted merges" -> why it goes without them."""
    if folder.train is None or not any(MERGES[name].needs_train for name in names):
        return {}
    lacking = {m: [x for x in m.models if x not in folder.train.vectors] for m in methods if not m.is_reference}
    return {
        f"{m.name} with fitted merges": f"needs a column {missing[0]!r} in train.parquet"
        for m, missing in lacking.items()
        if missing
    }


def _has_matches(train: EmbeddingTable) -> bool:
    assert train.label is not None
    classes = len(np.unique(train.label))
    return 1 < classes < len(train)


class FittedMerges:
    """The named merges for each method. networks: method -> folder of its fitted network."""

    def __init__(
        self, folder: EmbeddingFolder, names: Sequence[str], evaluation: Compared, networks: Mapping[str, Path]
    ) -> None:
        self.names, self.evaluation, self.networks = names, evaluation, networks
        self.train, self.label = None, None
        if folder.train is not None and any(MERGES[name].needs_train for name in names):
            rows = _some_rows(folder.train, evaluation.order_seed)
            # Nothing is known of how far a vector of zeros is from others.
            rows = rows[np.all([v[rows].any(axis=1) for v in folder.train.vectors.values()], axis=0)]
            vectors = {model: v[rows] for model, v in folder.train.vectors.items()}
            self.train = Embeddings(vectors, vectors)
            if folder.train.label is not None:
                self.label = np.unique(folder.train.label[rows], return_inverse=True)[1]

    def of(self, method: Method) -> dict[str, Merge]:
        """By name, those that concern the method: old, new and offline serve one system at a time.

        Where the train split lacks embeddings of one of its models, only merges that are not fitted.
        """
        if method.is_reference:
            return {"raw": RAW}
        pair, names = None, self.names
        if self.train is not None:
            if all(model in self.train.gallery for model in method.models):
                pair = method.pair(self.train, load_fitted(self.networks, method))
            else:
                names = [name for name in names if not MERGES[name].needs_train]
        seed = self.evaluation.order_seed
        return {name: fit_merge(name, pair, self.label, self.evaluation.distance, seed) for name in names}


def _some_rows(train: EmbeddingTable, seed: int) -> IntArray:
    """All rows, or of a large split some of them, class by class so that items have others of their class."""
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
