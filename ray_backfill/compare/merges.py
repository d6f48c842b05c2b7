"""The merges of a comparison, fitted for each method on items that its map has not seen, if there are enough."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_backfill.compare.maps import FittedMaps
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import BEST, RAW, Merge, all_merges, fit_merge, without_trial
from ray_backfill.engine.systems import IntArray, UpgradePair
from ray_backfill.learn.methods import POLICIES, Embeddings, Method

# Most items that merges are fitted on.
_ITEMS = 20_000
# Fewest validation items for that. With fewer, the train items serve, which are biased, but enough.
FEWEST_ITEMS = 200
# Fewest to choose a merge: there, a bias is worse than noise. It looks as if distances of a map had to be stretched.
_FEWEST_FOR_BEST = 50


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
    """The named merges, and the items to fit them on. label: (items,) classes, if they are known. are_unseen:
    whether no map was fitted on the items."""

    names: tuple[str, ...]
    distance: str
    seed: int
    items: Embeddings | None = None
    label: IntArray | None = None
    are_unseen: bool = False

    def of(self, method: Method, maps: FittedMaps) -> dict[str, Merge]:
        """Merge name -> merge, for the merges that apply to the method; references serve one system at a time, and so
        do policies.

        If the items lack embeddings of one of the method's models, only merges that need no fit.
        """
        if method.is_reference:
            return {RAW.name: RAW}
        if method.family == POLICIES:  # beside the others, so that it is compared with them
            return {BEST if BEST in self.names and RAW.name not in self.names else RAW.name: RAW}
        pair, names = None, self.names
        if self.items is not None:
            if all(model in self.items.gallery for model in method.models):
                pair = method.pair(self.items, maps.of(method))
            else:
                names = tuple(name for name in names if not all_merges()[name].needs_train)
        return {name: self._fit(name, method, pair) for name in names}

    def _fit(self, name: str, method: Method, pair: UpgradePair | None) -> Merge:
        if name == BEST and pair is not None and method.fit is not None and not self.are_unseen:
            name = without_trial(pair, self.distance)
        return fit_merge(name, pair, self.label, self.distance, self.seed)


def items_for_merges(folder: EmbeddingFolder, names: Sequence[str]) -> EmbeddingTable | None:
    """The items that these merges are fitted on: the validation part if it is large enough for all, or the train split.

    On items that a map was fitted on, its distances are smaller than those of the gallery.
    """
    part = folder.validation
    least = _FEWEST_FOR_BEST if set(names) <= {RAW.name, BEST} else FEWEST_ITEMS
    if part is None or len(part) < least or any(why_merge_cannot_be_fitted(name, part) for name in names):
        return folder.train
    return part


def fitted_on_train_note(folder: EmbeddingFolder, methods: Sequence[Method], names: Sequence[str]) -> tuple[str, ...]:
    """A sentence for the report if merges are fitted on the same items as the maps whose distances they compare."""
    fitted = [name for name in names if all_merges()[name].needs_train]
    if not fitted or not any(method.fit for method in methods) or items_for_merges(folder, names) is not folder.train:
        return ()
    return (
        f"The merges ({', '.join(fitted)}) were fitted on the same items as the maps, whose distances can be smaller "
        f"than those of other items: there are fewer than {FEWEST_ITEMS} validation items that they could use.",
    )


def resolve_merges(folder: EmbeddingFolder, names: Sequence[str], distance: str, seed: int) -> MergeFits:
    """Choose the items that these merges are fitted on, at most 20,000. seed: for this choice and the fits."""
    items = items_for_merges(folder, names)
    if items is None or not any(all_merges()[name].uses_train for name in names):
        return MergeFits(tuple(names), distance, seed)
    found = items.drawn(_ITEMS, seed)
    label = None if found.label is None else np.unique(found.label, return_inverse=True)[1]
    unseen = items is not folder.train
    return MergeFits(tuple(names), distance, seed, Embeddings(found.vectors, found.vectors), label, unseen)
