"""The maps of methods: fitted, read, and what predicted new embeddings h(old) tell about gallery items, for orders.

Nothing here reads new embeddings of the gallery, which do not exist before the backfill.
Shapes: N gallery items, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import Classifier, EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.orders import closest_cosine, row_ranges
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.sides import Sides, dims_of, new_models, old_models
from ray_backfill.learn.training.fit import TrainSet, read_train_set
from ray_backfill.learn.training.settings import ClassificationSettings, FitSettings

# Items whose probabilities of all classes are in memory at once.
_ROWS = 4096


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
            from ray_backfill.learn.models.apply import load_network

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

    def run(self) -> None:
        """Read the train split, and fit the map; one whose training diverges is left unfinished."""
        (method,) = find_methods((self.method,))
        assert method.fit is not None
        fit_map(self.out, method, read_train_set(self.data, method.fit.models), self.settings, self.distance)


def fit_map(out: Path, method: Method, data: TrainSet, settings: FitSettings, distance: str) -> None:
    """Fit a map in one thread of this process. out: a stage that has begun; unfinished if the training diverges.

    Raises:
        InputError: The data are too few.
    """
    from ray_backfill.learn.training.fit import fit_into, one_thread

    assert method.fit is not None
    method.fit.check(data, settings, 1)
    with one_thread(method.is_trained):
        fit_into(out, method.title, method.fit, data, settings, distance)


def mapped_gallery(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> FloatArray:
    """(N, d) h(old) of this method."""
    gallery = {model: folder.gallery.vectors[model] for model in old_models(method)}
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
    new = _sides(folder, method, maps).gallery("forward", {model: train.vectors[model] for model in new_models(method)})
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

    train: EmbeddingTable | None = folder.train
    assert train is not None
    assert train.label is not None
    return fit_classifier(train.new, train.label, settings)


def mapped_confidence(mapped_Nd: FloatArray, classifier: Classifier, cosine_scale: float | None) -> NDArray[np.float64]:
    """(N,) top probability of the new model's classifier on h(old). cosine_scale: of an ArcFace classifier's logits."""
    weight, bias = classifier.weight.astype(np.float64), classifier.bias.astype(np.float64)
    top = np.empty(len(mapped_Nd))
    for piece in row_ranges(len(mapped_Nd), _ROWS):
        vectors = mapped_Nd[piece].astype(np.float64)
        if cosine_scale is None:
            logits = vectors @ weight.T + bias
        else:
            logits = cosine_scale * (_unit(vectors) @ _unit(weight).T)
        top[piece] = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return top


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length == 0, 1, length)


def _sides(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> Sides:
    """The method one side at a time, because a drill has no new embeddings of the gallery yet."""
    tables = [table.vectors for table in (folder.gallery, folder.queries, folder.train) if table is not None]
    return Sides(method, maps.of(method), RAW, "cosine", dims_of(tables))
