"""Backfill orders: which gallery item is re-embedded first.

An order is a permutation of gallery positions, first = backfilled first. Each is the stable ascending argsort of a
score, so ties break by gallery position. To add an order, write its score function and name it in ``ORDERS``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.systems import FloatArray, IntArray

# Rows that are taken at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class GalleryColumns:
    """What an order may look at; N rows each. A column that the gallery lacks is None.

    old: (N, d) old embeddings. label: (N,) classes. old_score, old_entropy, old_margin, old_class: the old classifier's
    top probability, entropy, top minus second probability, and top class. class_means: (C, d) mean old
    embedding of each class of the train split. sigma: (N,) how uncertain the method is about each item. true_loss: (N,)
    how far each item's stand-in is from its new embedding. popularity: (N,) how often each item was looked for.
    order_score: (N,) the user's own column, low first.
    """

    old: FloatArray
    label: NDArray[np.integer] | None = None
    old_score: NDArray[np.floating] | None = None
    old_entropy: NDArray[np.floating] | None = None
    old_margin: NDArray[np.floating] | None = None
    old_class: NDArray[np.integer] | None = None
    class_means: FloatArray | None = None
    sigma: NDArray[np.floating] | None = None
    true_loss: NDArray[np.floating] | None = None
    popularity: NDArray[np.floating] | None = None
    order_score: NDArray[np.floating] | None = None


def _random(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Every permutation is equally likely; the same seed gives the same one."""
    return np.random.default_rng(seed).permutation(len(gallery.old)).astype(np.float64)


def _classifier_score(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Top probability of the old classifier, low first. Source: rank merge, appendix A."""
    assert gallery.old_score is not None
    return gallery.old_score


def _least_confidence(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """1 - top probability, high first: by definition the order of the classifier score. Source: FastFill, table 7."""
    assert gallery.old_score is not None
    return gallery.old_score


def _entropy(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Entropy of the old classifier's probabilities, high first. Source: RACT; FastFill, table 7."""
    assert gallery.old_entropy is not None
    return -gallery.old_entropy


def _margin(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Top minus second probability of the old classifier, small first. Source: FastFill, table 7."""
    assert gallery.old_margin is not None
    return gallery.old_margin


def _centroid_cosine(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Cosine of the old embedding to the centroid of its class in the gallery, low first. Source: rank merge, app. A.

    The class is the old classifier's guess where the gallery has it: who backfills has no labels of the gallery yet.
    """
    classes = gallery.label if gallery.old_class is None else gallery.old_class
    assert classes is not None
    _, class_of_item = np.unique(classes, return_inverse=True)
    centroids = np.zeros((class_of_item.max() + 1, gallery.old.shape[1]))
    for piece in _pieces(gallery):
        np.add.at(centroids, class_of_item[piece], gallery.old[piece].astype(np.float64))
    centroids = _unit(centroids)
    cosine = np.empty(len(gallery.old))
    for piece in _pieces(gallery):
        cosine[piece] = (_unit(gallery.old[piece]) * centroids[class_of_item[piece]]).sum(axis=1)
    return cosine


def _class_mean_distance(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Cosine of the old embedding to the closest class mean of the train split, low first: far from what is known."""
    assert gallery.class_means is not None
    means = _unit(gallery.class_means).T
    closest = np.empty(len(gallery.old))
    for piece in _pieces(gallery, rows=_ROWS // 16):
        closest[piece] = (_unit(gallery.old[piece]) @ means).max(axis=1)
    return closest


def _sigma(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """The method's own uncertainty about each item, high first. Source: FastFill, section 4.3."""
    assert gallery.sigma is not None
    return -gallery.sigma


def _oracle_loss(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Distance of each stand-in to the item's true new embedding, high first: nobody has it before the backfill.

    Source: FastFill, section 6 ("cheating"). Deviates: the distance alone, without the classification loss.
    """
    assert gallery.true_loss is not None
    return -gallery.true_loss


def _popularity(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """The column ``popularity``, high first: what is looked for most is served well first."""
    assert gallery.popularity is not None
    return -gallery.popularity


def _given(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """The user's column ``order_score``, low first."""
    assert gallery.order_score is not None
    return gallery.order_score


def _pieces(gallery: GalleryColumns, rows: int = _ROWS) -> list[slice]:
    """A large gallery is mapped from a file: never all of it at once."""
    return [slice(i, i + rows) for i in range(0, len(gallery.old), rows)]


def _unit(vectors: FloatArray) -> NDArray[np.float64]:
    """Rows scaled to length 1; a zero row stays zero."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length == 0, 1, length)


@dataclass(frozen=True)
class Order:
    """score: columns and seed -> (N,) low first. needs: the columns of which it reads the first that is there.

    of_method: it depends on the method. Names that start with "oracle" peek at what nobody has before the backfill.
    """

    score: Callable[[GalleryColumns, int], NDArray[np.floating]]
    needs: tuple[str, ...] = ()
    of_method: bool = False


ORDERS = {
    "random": Order(_random),
    "classifier_score": Order(_classifier_score, ("old_score",)),
    "least_confidence": Order(_least_confidence, ("old_score",)),
    "entropy": Order(_entropy, ("old_entropy",)),
    "margin": Order(_margin, ("old_margin",)),
    "centroid_cosine": Order(_centroid_cosine, ("old_class", "label")),
    "class_mean_distance": Order(_class_mean_distance, ("class_means",)),
    "sigma": Order(_sigma, ("sigma",), of_method=True),
    "oracle_loss": Order(_oracle_loss, ("true_loss",), of_method=True),
    "popularity": Order(_popularity, ("popularity",)),
    "given": Order(_given, ("order_score",)),
}
_REMEDIES = {
    "class_means": "a train split with labels",
    "sigma": "a method with uncertainty among --methods (fastfill), or a gallery column 'sigma'",
    "true_loss": "a method with a stand-in gallery among --methods (fct, fastfill, an adapter KIND_gallery)",
}


def make_order(name: str, gallery: GalleryColumns, seed: int = 0) -> IntArray:
    """The order ``name`` of this gallery: (N,) int64 permutation, first = backfilled first.

    Raises:
        InputError: unknown name (the message lists the known ones), a column that the gallery lacks, NaN scores.
    """
    check_order_name(name)
    needs = ORDERS[name].needs
    if needs and all(getattr(gallery, column) is None for column in needs):
        columns = " or ".join(repr(column) for column in needs)
        remedy = _REMEDIES.get(needs[0], f"the gallery column {columns}")
        raise InputError(f"order {name!r} needs {remedy}, which is not there; add it or drop the order")
    scores = ORDERS[name].score(gallery, seed)
    if np.isnan(scores).any():
        raise InputError(f"order {name!r}: the score of gallery row {int(np.argmax(np.isnan(scores)))} is NaN")
    return np.argsort(scores, kind="stable")


def check_order_name(name: str) -> None:
    """Raises InputError for an unknown name; the message lists the known ones."""
    if name not in ORDERS:
        raise InputError(f"unknown order {name!r}; known: {', '.join(ORDERS)}")


def check_order(order: IntArray, n_gallery: int) -> None:
    """Raises InputError unless ``order`` is a permutation of 0..n_gallery-1."""
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu" or len(order) != n_gallery:
        raise InputError(
            f"an order must be a 1-d integer array with one entry for each of the {n_gallery} gallery items, "
            f"got {order.dtype} of shape {order.shape}"
        )
    seen = np.zeros(n_gallery, bool)
    seen[order[(order >= 0) & (order < n_gallery)]] = True
    if not seen.all():
        raise InputError(f"an order must be a permutation of the gallery; item {int(np.argmin(seen))} is missing")
