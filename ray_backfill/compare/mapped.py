"""What a method's predicted new embeddings of the gallery, h(old), tell about its items: columns for orders.

Nothing here reads new embeddings of the gallery, which do not exist before the backfill.
Shapes: N gallery items, C classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.maps import FittedMaps
from ray_backfill.data.folder import Classifier, EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.orders import closest_cosine, row_ranges
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods import Method
from ray_backfill.learn.sides import Sides, dims_of, new_models, old_models
from ray_backfill.learn.training.settings import ClassificationSettings

# Items whose probabilities of all classes are in memory at once.
_ROWS = 4096


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
    from ray_backfill.learn.training.stand_in import fit_classifier

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
