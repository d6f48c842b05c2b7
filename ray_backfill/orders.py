"""Backfill orders: which gallery item is re-embedded first.

An order is a permutation of gallery positions, first = backfilled first. Each is the stable ascending argsort of a
score, so ties break by gallery position. To add an order, write its score function and name it in ``ORDERS``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import normalise
from ray_backfill.errors import InputError
from ray_backfill.systems import FloatArray, IntArray

# Rows that are taken at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class GalleryColumns:
    """What an order may look at; N rows each. A column that the gallery lacks is None.

    old: (N, d) old embeddings. label: (N,) classes. old_score: (N,) the old classifier's top probability.
    order_score: (N,) the user's own column, low first.
    """

    old: FloatArray
    label: NDArray[np.integer] | None = None
    old_score: NDArray[np.floating] | None = None
    order_score: NDArray[np.floating] | None = None


def _random(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Every permutation is equally likely; the same seed gives the same one."""
    return np.random.default_rng(seed).permutation(len(gallery.old)).astype(np.float64)


def _classifier_score(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Top probability of the old classifier, low first. Source: rank merge, appendix A."""
    assert gallery.old_score is not None
    return gallery.old_score


def _centroid_cosine(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Cosine of the old embedding to its class centroid, low first. Source: rank merge, appendix A."""
    assert gallery.label is not None
    _, class_of_item = np.unique(gallery.label, return_inverse=True)
    centroids = np.zeros((class_of_item.max() + 1, gallery.old.shape[1]))
    pieces = [slice(i, i + _ROWS) for i in range(0, len(gallery.old), _ROWS)]
    for piece in pieces:  # a large gallery is mapped from a file: never all of it at once
        np.add.at(centroids, class_of_item[piece], gallery.old[piece].astype(np.float64))
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    centroids /= np.where(lengths == 0, 1, lengths)
    cosine = np.empty(len(gallery.old))
    for piece in pieces:
        cosine[piece] = (normalise(gallery.old[piece]) * centroids[class_of_item[piece]]).sum(axis=1)
    return cosine


def _given(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """The user's column ``order_score``, low first."""
    assert gallery.order_score is not None
    return gallery.order_score


@dataclass(frozen=True)
class Order:
    """score: columns and seed -> (N,) low first. needs: the optional column it reads, if any."""

    score: Callable[[GalleryColumns, int], NDArray[np.floating]]
    needs: str | None = None


ORDERS = {
    "random": Order(_random),
    "classifier_score": Order(_classifier_score, needs="old_score"),
    "centroid_cosine": Order(_centroid_cosine, needs="label"),
    "given": Order(_given, needs="order_score"),
}


def make_order(name: str, gallery: GalleryColumns, seed: int = 0) -> IntArray:
    """The order ``name`` of this gallery: (N,) int64 permutation, first = backfilled first.

    Raises:
        InputError: unknown name (the message lists the known ones), a column that the gallery lacks, NaN scores.
    """
    check_order_name(name)
    needs = ORDERS[name].needs
    if needs is not None and getattr(gallery, needs) is None:
        raise InputError(
            f"order {name!r} needs the gallery column {needs!r}, which is not there; add it or drop the order"
        )
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
