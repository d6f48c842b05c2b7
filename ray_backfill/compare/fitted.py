"""What is fitted for the methods of a comparison: their maps, and the merges.

Nothing here reads new embeddings of the gallery, which do not exist before the backfill: orders by what a method
predicts use h(old). Merges are fitted on the items of the maps, and chosen on items that neither has seen.
Shapes: N gallery items, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import Classifier, EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import BEST, MERGES_TO_CHOOSE, RAW, Merge, MergeKind, all_merges, fit_merge
from ray_backfill.engine.merges.best import choose_fitted, without_trial
from ray_backfill.engine.orders import closest_cosine, row_ranges
from ray_backfill.engine.systems import FloatArray, IntArray, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.models.apply import load_network, unit
from ray_backfill.learn.sides import Sides, dims_of
from ray_backfill.learn.training.fit import TrainSet, read_train_set
from ray_backfill.learn.training.settings import ClassificationSettings, FitSettings

# Queries as references for CSLS. With the 112 of Cranfield's halves it is better than with items (docs/log.md).
_FEWEST_ASKED = 100


@dataclass(frozen=True)
class FittedMaps:
    """Reads fitted maps. folders: method -> folder of its fitted network."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, method: Method) -> Any:
        """The method's network in eval mode; None if the method has no fit."""
        if method.fit is None:
            return None
        if method.name not in self._read:
            self._read[method.name] = load_network(self.folders[method.name])
        return self._read[method.name]

    def training_flops(self, method: Method) -> int:
        """Floating-point operations of the method's fit; 0 if it has none."""
        return read_json(self.folders[method.name] / "manifest.json")["training_flops"] if method.fit else 0


@dataclass(frozen=True)
class MapJob:
    """A map to fit. data: a folder of the data contract. out: a stage that has begun; both on storage of all nodes."""

    method: str
    settings: FitSettings
    distance: str
    data: Path
    out: Path

    def run(self, device: str | None = None) -> None:
        """Read the train split, and fit the map; one whose training diverges is left unfinished."""
        (method,) = find_methods((self.method,))
        assert method.fit is not None
        data = read_train_set(self.data, method.fit.models)
        fit_map(self.out, method, data, self.settings, self.distance, device)


def fit_map(
    out: Path, method: Method, data: TrainSet, settings: FitSettings, distance: str, device: str | None = None
) -> None:
    """Fit a map in one thread of this process. out: a stage that has begun; unfinished if the training diverges.

    device: of torch; None for the CPU.

    Raises:
        InputError: The data are too few.
    """
    from ray_backfill.learn.training.fit import fit_into, one_thread, sized

    assert method.fit is not None
    method.fit.check(data, settings, 1)
    with one_thread(method.is_trained):
        settings = sized(method.fit, settings, data, distance)
        fit_into(out, method.title, method.fit, data, settings, distance, device)


def mapped_gallery(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> FloatArray:
    """(N, d) h(old) of this method."""
    gallery = {model: folder.gallery.vectors[model] for model in method.old_models}
    return _sides(folder, method, maps).gallery("backward", gallery)


def mapped_cosine(
    mapped_Nd: FloatArray, folder: EmbeddingFolder, method: Method, maps: FittedMaps
) -> NDArray[np.float64]:
    """(N,) cosine of h(old) and the closest class mean of the train split's new embeddings, as the method serves them.

    mapped_Nd: h(old). The train split must have labels.
    """
    train = folder.train
    assert train is not None
    assert train.label is not None
    new = _sides(folder, method, maps).gallery("forward", {model: train.vectors[model] for model in method.new_models})
    return closest_cosine(mapped_Nd, class_means(new, train.label))


def class_means(vectors: FloatArray, label: NDArray[Any]) -> NDArray[np.float64]:
    """(C, d) mean vector of each class."""
    names, class_of_item = np.unique(label, return_inverse=True)
    means = np.zeros((len(names), vectors.shape[1]))
    np.add.at(means, class_of_item, vectors.astype(np.float64))
    return means / np.bincount(class_of_item)[:, None]


def new_classifier(folder: EmbeddingFolder, settings: ClassificationSettings) -> Classifier:
    """The new model's classifier; without one in the folder, one fitted on the train split, which must have labels."""
    if folder.classifier is not None:
        return folder.classifier
    from ray_backfill.learn.papers.fastfill import fit_classifier

    train = folder.train
    assert train is not None
    assert train.label is not None
    return fit_classifier(train.new, train.label, settings)


def mapped_confidence(mapped_Nd: FloatArray, classifier: Classifier, cosine_scale: float | None) -> NDArray[np.float64]:
    """(N,) top probability of the new model's classifier on h(old). cosine_scale: of an ArcFace classifier's logits."""
    weight, bias = classifier.weight.astype(np.float64), classifier.bias.astype(np.float64)
    top = np.empty(len(mapped_Nd))
    for piece in row_ranges(len(mapped_Nd), 4096):  # items whose probabilities of all classes are in memory at once
        vectors = mapped_Nd[piece].astype(np.float64)
        logits = vectors @ weight.T + bias if cosine_scale is None else cosine_scale * (unit(vectors) @ unit(weight).T)
        top[piece] = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return top


def _sides(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> Sides:
    """The method one side at a time, because a drill has no new embeddings of the gallery yet."""
    tables = [table.vectors for table in (folder.gallery, folder.queries, folder.train) if table is not None]
    return Sides(method, maps.of(method), RAW, "cosine", dims_of(tables))


def why_merge_cannot_be_fitted(kind: MergeKind, train: EmbeddingTable | None, name: str = "train.parquet") -> str:
    """The reason, or "" if the merge can be fitted on this train split. name: of the split."""
    if kind.needs_train and train is None:
        return f"needs {name} to be fitted on"
    if not kind.needs_labels or train is None:
        return ""
    if train.label is None:
        return f"needs a column 'label' in {name} to be fitted on"
    classes = len(np.unique(train.label))
    return "" if 1 < classes < len(train) else f"needs several classes in {name}, some with more than one item"


@dataclass(frozen=True)
class MergeFits:
    """The merges, and the items to fit them on. label: (items,) classes, if they are known.

    unseen: items that no map was fitted on, with their classes, by which ``best`` chooses among ``names_to_choose``. A
    map's distances are too small on the items that it was fitted on: there, a merge that stretches them looks best.
    asked: model -> embeddings of queries, without their right answers, where items without labels would ask otherwise.
    Only real queries show which items are close to many of them, and no trial without labels can tell that CSLS helps
    (docs/log.md, 2026-11-29).
    """

    kinds: tuple[MergeKind, ...]
    distance: str
    seed: int
    items: Embeddings | None = None
    label: IntArray | None = None
    unseen: tuple[Embeddings, IntArray | None] | None = None
    names_to_choose: tuple[str, ...] = MERGES_TO_CHOOSE
    asked: Mapping[str, FloatArray] | None = None
    _chosen: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        if not method.is_merged:  # beside the others, so that it is compared with them
            return {BEST if BEST in self.names and RAW.name not in self.names else RAW.name: RAW}
        pair, merges = self._pair(method, maps), {}
        for kind in self.kinds:
            is_rank_merge = all(side.plain for side in method.sides)
            is_chosen_here = method.fit is not None or (is_rank_merge and self.asked is not None)
            if kind.is_choice and pair is not None and is_chosen_here:
                merges[kind.name] = self._best(method, maps, pair)
            elif pair is not None or self.items is None or not kind.needs_train:
                merges[kind.name] = self._fit(kind.name, pair, method, maps)
        return merges

    def _pair(self, method: Method, maps: FittedMaps) -> UpgradePair | None:
        """The method's systems of the items; None without them, or without embeddings of one of its models."""
        if self.items is None or any(model not in self.items.gallery for model in method.models):
            return None
        return method.pair(self.items, maps.of(method))

    def _best(self, method: Method, maps: FittedMaps, pair: UpgradePair) -> Merge:
        """The merge that is chosen: what is judged is what is served."""
        if self.asked is not None and all_merges()["csls"].suits(self.distance):
            return self._fit("csls", pair, method, maps)
        if self.unseen is None:
            return self._fit(without_trial(pair, self.distance), pair, method, maps)
        if method.name in self._chosen:
            return self._fit(self._chosen[method.name], pair, method, maps)
        items, label = self.unseen
        known, unseen = all_merges(), method.pair(items, maps.of(method))
        suiting = (name for name in self.names_to_choose if known[name].suits(self.distance))
        fitted = {name: self._fit(name, pair, method, maps) for name in suiting}
        self._chosen[method.name] = choose_fitted(fitted, unseen, label, self.distance, self.seed)
        return fitted[self._chosen[method.name]]

    def of_reference(self, reference: Method) -> dict[str, Merge]:
        """Merge name -> merge fitted for old or new alone, for the merges that change the ranking of a single system.

        The service could use such a merge without any upgrade, so gains are relative to references with the same one.
        """
        names = dict.fromkeys((*self.names, *(MERGES_TO_CHOOSE if BEST in self.names else ())))
        pair, known = self._pair(reference, FittedMaps()), all_merges()
        return {
            kind.name: self._fit(kind.name, pair, reference, FittedMaps())
            for kind in (known[name] for name in names)
            if not (kind.is_monotone or kind.is_choice)
            and (pair is not None or not kind.needs_train)
            and kind.suits(self.distance)
        }

    def _fit(self, name: str, pair: UpgradePair | None, method: Method, maps: FittedMaps) -> Merge:
        """pair: of the items. With queries in place of items that ask, where the merge takes them."""
        if pair is not None and self.asked is not None and self.items is not None and all_merges()[name].takes_queries:
            pair = method.pair(Embeddings(self.asked, self.items.gallery), maps.of(method))
        return fit_merge(name, pair, self.label, self.distance, self.seed)


def resolve_merges(folder: EmbeddingFolder, kinds: Sequence[MergeKind], distance: str, seed: int) -> MergeFits:
    """Choose the items that these merges are fitted on, at most 20,000. seed: for this choice and the fits."""
    items = folder.train
    if items is None or not any(kind.uses_train for kind in kinds):
        return MergeFits(tuple(kinds), distance, seed)

    def drawn(table: EmbeddingTable) -> tuple[Embeddings, IntArray | None]:
        """Items as queries of each other, and their classes if they are known."""
        some = table.drawn(20_000, seed)
        label = None if some.label is None else np.unique(some.label, return_inverse=True)[1]
        return Embeddings(some.vectors, some.vectors), label

    part, known = folder.validation, all_merges()
    unseen = drawn(part) if part is not None and len(part) >= 50 else None  # fewer are too few to choose a merge by
    names = tuple(name for name in MERGES_TO_CHOOSE if not why_merge_cannot_be_fitted(known[name], items))
    asked = None
    if items.label is None and folder.queries is not None and len(folder.queries) >= _FEWEST_ASKED:
        asked = folder.queries.drawn(20_000, seed).vectors
    return MergeFits(tuple(kinds), distance, seed, *drawn(items), unseen, names, asked)
