"""The merges of a comparison, fitted for each method on items that its map has not seen, if there are enough."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_backfill.compare.maps import FittedMaps
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import BEST, RAW, Merge, MergeKind, fit_merge, without_trial
from ray_backfill.engine.systems import IntArray, UpgradePair
from ray_backfill.learn.methods import POLICIES, Embeddings, Method

# Most items that merges are fitted on.
_ITEMS = 20_000
# Fewest validation items for that. With fewer, the train items serve, which are biased, but enough.
FEWEST_ITEMS = 200
# Fewest to choose a merge: there, a bias is worse than noise. It looks as if distances of a map had to be stretched.
_FEWEST_FOR_BEST = 50


def why_merge_cannot_be_fitted(kind: MergeKind, train: EmbeddingTable | None) -> str:
    """The reason, or "" if the merge can be fitted on this train split."""
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
    """The merges, and the items to fit them on. label: (items,) classes, if they are known. are_unseen: whether no
    map was fitted on the items."""

    kinds: tuple[MergeKind, ...]
    distance: str
    seed: int
    items: Embeddings | None = None
    label: IntArray | None = None
    are_unseen: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.kinds)

    def of(self, method: Method, maps: FittedMaps) -> dict[str, Merge]:
        """Merge name -> merge, for the merges that apply to the method; references serve one system at a time, and so
        do policies.

        If the items lack embeddings of one of the method's models, only merges that need no fit.
        """
        if method.is_reference:
            return {RAW.name: RAW}
        if method.family == POLICIES:  # beside the others, so that it is compared with them
            return {BEST if BEST in self.names and RAW.name not in self.names else RAW.name: RAW}
        pair, kinds = None, self.kinds
        if self.items is not None:
            if all(model in self.items.gallery for model in method.models):
                pair = method.pair(self.items, maps.of(method))
            else:
                kinds = tuple(kind for kind in kinds if not kind.needs_train)
        return {kind.name: self._fit(kind.name, method, pair) for kind in kinds}

    def _fit(self, name: str, method: Method, pair: UpgradePair | None) -> Merge:
        if name == BEST and pair is not None and method.fit is not None and not self.are_unseen:
            name = without_trial(pair, self.distance)
        return fit_merge(name, pair, self.label, self.distance, self.seed)


def items_for_merges(folder: EmbeddingFolder, kinds: Sequence[MergeKind]) -> EmbeddingTable | None:
    """The items that these merges are fitted on: the validation part if it is large enough for all, or the train split.

    On items that a map was fitted on, its distances are smaller than those of the gallery.
    """
    part = folder.validation
    least = _FEWEST_FOR_BEST if {kind.name for kind in kinds} <= {RAW.name, BEST} else FEWEST_ITEMS
    if part is None or len(part) < least or any(why_merge_cannot_be_fitted(kind, part) for kind in kinds):
        return folder.train
    return part


def fitted_on_train_note(
    folder: EmbeddingFolder, methods: Sequence[Method], kinds: Sequence[MergeKind]
) -> tuple[str, ...]:
    """A sentence for the report if merges are fitted on the same items as the maps whose distances they compare."""
    fitted = [kind.name for kind in kinds if kind.needs_train]
    if not fitted or not any(method.fit for method in methods) or items_for_merges(folder, kinds) is not folder.train:
        return ()
    return (
        f"The merges ({', '.join(fitted)}) were fitted on the same items as the maps, whose distances can be smaller "
        f"than those of other items: there are fewer than {FEWEST_ITEMS} validation items that they could use.",
    )


def resolve_merges(folder: EmbeddingFolder, kinds: Sequence[MergeKind], distance: str, seed: int) -> MergeFits:
    """Choose the items that these merges are fitted on, at most 20,000. seed: for this choice and the fits."""
    items = items_for_merges(folder, kinds)
    if items is None or not any(kind.uses_train for kind in kinds):
        return MergeFits(tuple(kinds), distance, seed)
    found = items.drawn(_ITEMS, seed)
    label = None if found.label is None else np.unique(found.label, return_inverse=True)[1]
    unseen = items is not folder.train
    return MergeFits(tuple(kinds), distance, seed, Embeddings(found.vectors, found.vectors), label, unseen)
