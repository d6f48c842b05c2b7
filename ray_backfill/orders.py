"""Backfill orders: which gallery item is re-embedded first.

An order is a permutation of gallery positions, first = backfilled first. Each is the stable ascending argsort of a
score, so ties break by gallery position. To add an order, add a row to ``ORDERS``, here or in a module of another
distribution. What it needs is read from the gallery: any column of numbers will do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.plugins import rows_from_outside
from ray_backfill.systems import FloatArray, IntArray

# Rows that are taken at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class GalleryColumns:
    """What an order may look at; N rows each. old: (N, d) old embeddings.

    columns: by name, those that the gallery has: ``label`` (N,) classes; of the old classifier ``old_score``,
    ``old_entropy``, ``old_margin``, ``old_class``: its top probability, entropy, top minus second probability, and top
    class; ``class_means`` (C, d): mean old embedding of each class of the train split; ``sigma``: how uncertain the
    method is about each item; ``true_loss``: how far each item's stand-in is from its new embedding; ``popularity``:
    how often each item was looked for; ``order_score``: the user's own, low first; and any other (N,) numbers.
    """

    old: FloatArray
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


Score = Callable[[GalleryColumns, int], NDArray[np.floating]]


@dataclass(frozen=True)
class Order:
    """One order. name: as typed. title: as shown. source: paper and place, "" if it is ours.

    score: columns and seed -> (N,) low first. needs: the columns of which it reads the first that is there. remedy:
    what to add where none is, if that is not the column itself. of_method: its one column, ``sigma`` or
    ``true_loss``, is another one for each method. is_oracle: it peeks at what nobody has before the backfill.
    glossary: word -> meaning, for reports.
    """

    name: str
    title: str
    source: str
    score: Score
    needs: tuple[str, ...] = ()
    remedy: str = ""
    of_method: bool = False
    is_oracle: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)


def low_first(column: str) -> Score:
    """The numbers of a column, low first."""
    return lambda gallery, seed: gallery.columns[column]


def high_first(column: str) -> Score:
    """The numbers of a column, high first."""
    return lambda gallery, seed: -gallery.columns[column]


def _random(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Every permutation is equally likely; the same seed gives the same one."""
    return np.random.default_rng(seed).permutation(len(gallery.old)).astype(np.float64)


def _centroid_cosine(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Cosine of the old embedding to the centroid of its class in the gallery, low first.

    The class is the old classifier's guess where the gallery has it: who backfills has no labels of the gallery yet.
    """
    classes = gallery.columns["old_class" if "old_class" in gallery.columns else "label"]
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
    means = _unit(gallery.columns["class_means"]).T
    closest = np.empty(len(gallery.old))
    for piece in _pieces(gallery, rows=_ROWS // 16):
        closest[piece] = (_unit(gallery.old[piece]) @ means).max(axis=1)
    return closest


def _pieces(gallery: GalleryColumns, rows: int = _ROWS) -> list[slice]:
    """A large gallery is mapped from a file: never all of it at once."""
    return [slice(i, i + rows) for i in range(0, len(gallery.old), rows)]


def _unit(vectors: FloatArray) -> NDArray[np.float64]:
    """Rows scaled to length 1; a zero row stays zero."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length == 0, 1, length)


ORDERS = (
    Order("random", "random", "", _random),
    Order("classifier_score", "classifier score", "rank merge, appendix A", low_first("old_score"), ("old_score",)),
    # 1 - top probability, high first: by definition the order of the classifier score.
    Order("least_confidence", "least confidence", "FastFill, table 7", low_first("old_score"), ("old_score",)),
    Order("entropy", "entropy", "RACT; FastFill, table 7", high_first("old_entropy"), ("old_entropy",)),
    Order("margin", "margin", "FastFill, table 7", low_first("old_margin"), ("old_margin",)),
    Order(
        "centroid_cosine", "cosine to the centroid", "rank merge, appendix A", _centroid_cosine, ("old_class", "label")
    ),
    Order(
        "class_mean_distance", "distance to the class means", "", _class_mean_distance, ("class_means",),
        remedy="a train split with labels",
    ),
    Order(
        "sigma", "sigma", "FastFill, section 4.3", high_first("sigma"), ("sigma",),
        remedy="a method with uncertainty among --methods (fastfill), or a gallery column 'sigma'",
        of_method=True,
        glossary={
            "sigma": "How uncertain FastFill is about the new embedding that it predicts for an item; as an order, the "
            "most uncertain items are backfilled first.",
        },
    ),
    # Deviates from FastFill: the distance alone, without the classification loss.
    Order(
        "oracle_loss", "true loss", 'FastFill, section 6 ("cheating")', high_first("true_loss"), ("true_loss",),
        remedy="a method with a stand-in gallery among --methods (fct, fastfill, an adapter KIND_gallery)",
        of_method=True,
        is_oracle=True,
    ),
    # What is looked for most is served well first.
    Order("popularity", "popularity", "", high_first("popularity"), ("popularity",)),
    Order("given", "given", "", low_first("order_score"), ("order_score",)),
)  # fmt: skip


def all_orders() -> dict[str, Order]:
    """Every known order by name: ours, then those of other distributions."""
    return {order.name: order for order in (*ORDERS, *rows_from_outside("ORDERS"))}


def find_order(name: str) -> Order:
    """Raises InputError for an unknown name; the message lists the known ones."""
    known = all_orders()
    if name not in known:
        raise InputError(f"unknown order {name!r}; known: {', '.join(known)}")
    return known[name]


def make_order(name: str, gallery: GalleryColumns, seed: int = 0) -> IntArray:
    """The order ``name`` of this gallery: (N,) int64 permutation, first = backfilled first.

    Raises:
        InputError: unknown name (the message lists the known ones), a column that the gallery lacks, NaN scores.
    """
    order = find_order(name)
    if order.needs and not any(column in gallery.columns for column in order.needs):
        remedy = order.remedy or f"the gallery column {' or '.join(repr(column) for column in order.needs)}"
        raise InputError(f"order {name!r} needs {remedy}, which is not there; add it or drop the order")
    scores = order.score(gallery, seed)
    if np.isnan(scores).any():
        raise InputError(f"order {name!r}: the score of gallery row {int(np.argmax(np.isnan(scores)))} is NaN")
    return np.argsort(scores, kind="stable")


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
