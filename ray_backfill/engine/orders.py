"""Backfill orders: which gallery item is re-embedded first.

An order is a permutation of gallery positions; the first one is backfilled first. Each order is the stable ascending
argsort of a score, so that ties are broken by gallery position. To add an order, add a row to ``ORDERS``, here or in a
module of another distribution. It may read any numeric column of the gallery.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.plugins import rows_from_outside
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.systems import FloatArray, IntArray, as_array, as_vectors, describe_array

# Rows that are processed at a time.
_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class GalleryColumns:
    """The data that an order may use: the old embeddings and the columns of N gallery items.

    Lists, torch tensors and DataFrames become arrays.
    """

    old: FloatArray
    """(N, d) old embeddings."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Column name -> (N,) values; only the columns that the gallery has.

    - ``label``: class of each item
    - ``old_score``, ``old_entropy``, ``old_margin``, ``old_class``: top probability, entropy, top minus second
      probability and top class of the old model's classifier
    - ``class_means``: (C, d) mean old embedding of each class of the train split
    - ``sigma``: the method's uncertainty about each item
    - ``true_loss``: distance between each item's predicted and true new embedding
    - ``mapped_cosine``: cosine of each item's predicted new embedding and the closest class mean of new embeddings
    - ``mapped_confidence``: top probability of the new model's classifier on each item's predicted new embedding
    - ``popularity``: how often users looked for each item
    - ``first_retrieved``: place in the order in which traffic retrieves items for the first time
    - ``order_score``: the user's own score, low first
    - ``changed_at``: progress of the backfill at which the content of an item changes, 0 if it does not
    - any other (N,) numbers that an order asks for
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "old", as_vectors(self.old, "old embeddings"))
        columns = {name: as_array(values, f"column {name!r}") for name, values in self.columns.items()}
        for name, values in columns.items():
            if name != "class_means" and values.shape != (len(self.old),):
                raise InputError(
                    f"column {name!r} needs one value for each of {len(self.old)} gallery items, "
                    f"got {describe_array(values)}"
                )
        object.__setattr__(self, "columns", columns)


Score = Callable[[GalleryColumns, int], NDArray[np.floating]]


@dataclass(frozen=True)
class Order:
    """A backfill order: a score of each gallery item, lowest first."""

    name: str
    """Name on the command line."""
    title: str
    """Name in tables and reports."""
    source: str
    """Paper and section; empty for an order of this project."""
    score: Score
    """Function of the gallery columns and a seed that returns (N,) scores; the lowest is backfilled first."""
    needs: tuple[str, ...] = ()
    """Alternative columns: the order reads the first one that the gallery has."""
    remedy: str = ""
    """What the user must provide if none of them exists; empty if it is the column itself."""
    of_method: bool = False
    """Whether its only column differs from method to method, as ``sigma`` does."""
    is_oracle: bool = False
    """Whether it uses information that is not available before the backfill."""
    is_random: bool = False
    """Whether each seed gives another order, so that a comparison can average over several."""
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Term -> meaning, for reports."""
    version: int = 1
    """Part of the key of a run: increase it when a change alters the order."""

    def column_in(self, gallery: GalleryColumns) -> str | None:
        """Return the column that the order reads in this gallery; None if it needs none, or there is none."""
        return next((column for column in self.needs if column in gallery.columns), None)


def low_first(column: str) -> Score:
    """Return a score that orders by a column, low values first."""
    return lambda gallery, seed: gallery.columns[column]


def high_first(column: str) -> Score:
    """Return a score that orders by a column, high values first."""
    return lambda gallery, seed: -gallery.columns[column]


def _random(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Draw a uniformly random permutation; the same seed gives the same one."""
    return np.random.default_rng(seed).permutation(len(gallery.old)).astype(np.float64)


def _stale_first(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Score by the place in a backfill that takes what has changed by now first, and otherwise an item at random."""
    changed, n = gallery.columns["changed_at"], len(gallery.old)
    if not ((changed >= 0) & (changed <= 1)).all():
        raise InputError("order 'stale_first' needs progress of the backfill in [0, 1] in the column 'changed_at'")
    changing = [item for item in np.argsort(changed, kind="stable").tolist() if changed[item] > 0]
    at_random, place, n_placed = iter(np.random.default_rng(seed).permutation(n).tolist()), np.full(n, -1.0), 0
    changing.reverse()  # the next one is the last
    while n_placed < n:
        has_changed = changing and changed[changing[-1]] <= n_placed / n
        item = changing.pop() if has_changed else next(at_random)
        if place[item] < 0:
            place[item], n_placed = n_placed, n_placed + 1
    return place


def _centroid_cosine(gallery: GalleryColumns, seed: int) -> NDArray[np.floating]:
    """Score by the cosine of the old embedding and the centroid of its class in the gallery, low first.

    The class is the old classifier's prediction if the gallery has it, because galleries are rarely labelled.
    """
    classes = gallery.columns["old_class" if "old_class" in gallery.columns else "label"]
    _, class_of_item = np.unique(classes, return_inverse=True)
    centroids = np.zeros((class_of_item.max() + 1, gallery.old.shape[1]))
    for piece in row_ranges(len(gallery.old)):
        np.add.at(centroids, class_of_item[piece], gallery.old[piece].astype(np.float64))
    centroids = normalise(centroids)
    cosine = np.empty(len(gallery.old))
    for piece in row_ranges(len(gallery.old)):
        cosine[piece] = (normalise(gallery.old[piece]) * centroids[class_of_item[piece]]).sum(axis=1)
    return cosine


def closest_cosine(vectors: FloatArray, means: FloatArray) -> NDArray[np.float64]:
    """Return the (N,) cosine of each of N vectors and the closest of C means."""
    targets = normalise(means).T
    closest = np.empty(len(vectors))
    for piece in row_ranges(len(vectors), _ROWS // 16):
        closest[piece] = (normalise(vectors[piece]) @ targets).max(axis=1)
    return closest


def row_ranges(rows: int, at_once: int = _ROWS) -> list[slice]:
    """Split rows into ranges: a large gallery is mapped from a file and must not be loaded at once."""
    return [slice(i, i + at_once) for i in range(0, rows, at_once)]


_MAPS = "a method that predicts new gallery embeddings among --methods (such as fct or ridge_gallery)"
_MAPPED = "A method such as FCT or FastFill predicts an item's new embedding from its old one."

ORDERS = (
    Order("random", "random", "", _random, is_random=True),
    Order("classifier_score", "classifier score", "rank merge, appendix A", low_first("old_score"), ("old_score",)),
    # 1 - top probability, high first: by definition the same order as the classifier score.
    Order("least_confidence", "least confidence", "FastFill, table 7", low_first("old_score"), ("old_score",)),
    Order("entropy", "entropy", "RACT; FastFill, table 7", high_first("old_entropy"), ("old_entropy",)),
    Order("margin", "margin", "FastFill, table 7", low_first("old_margin"), ("old_margin",)),
    Order(
        "centroid_cosine", "cosine to the centroid", "rank merge, appendix A", _centroid_cosine, ("old_class", "label")
    ),
    Order(
        "class_mean_distance", "distance to the class means", "",
        lambda gallery, seed: closest_cosine(gallery.old, gallery.columns["class_means"]), ("class_means",),
        remedy="a train split with labels",
    ),
    Order(
        "sigma", "sigma", "FastFill, section 4.2", high_first("sigma"), ("sigma",),
        remedy="a method with uncertainty among --methods (fastfill), or a gallery column 'sigma'",
        of_method=True,
        glossary={
            "sigma": "FastFill's uncertainty about the new embedding that it predicts for an item. As an order, the "
            "most uncertain items are backfilled first.",
        },
    ),
    # Deviates: the nearest class stands for the item's own, because galleries are rarely labelled; class means are of
    # the train split, because new embeddings of the gallery do not exist yet; distances are cosines.
    Order(
        "mapped_class_mean_distance", "mapped distance to the class means", "lambda-Orthogonality, section 3.6",
        low_first("mapped_cosine"), ("mapped_cosine",),
        remedy=f"a train split with labels, and {_MAPS}",
        of_method=True,
        glossary={
            "mapped_class_mean_distance": f"{_MAPPED} As an order, the items whose prediction is farthest from every "
            "class mean of the new model (cosine distance, train split) are backfilled first.",
        },
    ),
    Order(
        "mapped_least_confidence", "mapped least confidence", "",
        low_first("mapped_confidence"), ("mapped_confidence",),
        remedy=f"the new model's classifier or a train split with labels, and {_MAPS}",
        of_method=True,
        glossary={
            "mapped_least_confidence": f"{_MAPPED} As an order, the items are backfilled first on whose prediction the "
            "new model's classifier has the lowest top probability.",
        },
    ),
    # Deviates from FastFill: uses only the distance, not the classification loss.
    Order(
        "oracle_loss", "true loss", 'FastFill, section 4.2 ("cheating")', high_first("true_loss"), ("true_loss",),
        remedy=_MAPS,
        of_method=True,
        is_oracle=True,
    ),
    Order("popularity", "popularity", "", high_first("popularity"), ("popularity",)),
    Order(
        "lazy", "lazy", "", low_first("first_retrieved"), ("first_retrieved",),
        remedy="log.parquet in the folder: old embeddings of past queries (and a column 'weight')",
        glossary={
            "lazy": "An item is backfilled when a user first retrieves it: in the order in which the queries of a log, "
            "drawn by their weights, find items in the old service. What the half-backfilled service would show is "
            "not followed.",
        },
    ),
    Order(
        "stale_first", "stale first", "", _stale_first, ("changed_at",),
        is_random=True,
        glossary={
            "stale first": "An item whose content has changed is backfilled next, the longest changed one first; while "
            "there is none, an item at random. Nothing is known of changes to come.",
        },
    ),
    Order("given", "given", "", low_first("order_score"), ("order_score",)),
)  # fmt: skip


def all_orders() -> dict[str, Order]:
    """Return every known order by name: this project's orders, then those of other distributions."""
    return {order.name: order for order in (*ORDERS, *rows_from_outside("ORDERS"))}


def find_order(name: str) -> Order:
    """Return the order ``name``. Raise InputError for an unknown name; the message names similar ones."""
    known = all_orders()
    if name not in known:
        raise unknown_name("order", name, known)
    return known[name]


def make_order(name: str, gallery: GalleryColumns, seed: int = 0) -> IntArray:
    """Compute a backfill order of a gallery.

    Args:
        name: Name of the order, see ``all_orders``.
        gallery: Old embeddings and columns of the N gallery items.
        seed: Seed for random orders.

    Returns:
        (N,) int64 permutation of the gallery positions; the first is backfilled first.

    Raises:
        InputError: The name is unknown (the message names similar ones), the gallery lacks a column, or a score is
            NaN.
    """
    order = find_order(name)
    if order.needs and order.column_in(gallery) is None:
        remedy = order.remedy or f"the gallery column {' or '.join(repr(column) for column in order.needs)}"
        raise InputError(f"order {name!r} needs {remedy}, which is missing; add it or leave the order out")
    scores = order.score(gallery, seed)
    if np.isnan(scores).any():
        row = int(np.argmax(np.isnan(scores)))
        columns = f"; correct the column {' or '.join(repr(column) for column in order.needs)}" if order.needs else ""
        raise InputError(f"order {name!r}: the score of gallery row {row} is NaN{columns}")
    return np.argsort(scores, kind="stable")


def check_order(order: IntArray, n_gallery: int) -> None:
    """Raise InputError unless ``order`` is a permutation of 0..n_gallery-1."""
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu" or len(order) != n_gallery:
        raise InputError(
            f"an order must be a 1-D integer array with one entry for each of the {n_gallery} gallery items, "
            f"got {describe_array(order)}"
        )
    seen = np.zeros(n_gallery, bool)
    seen[order[(order >= 0) & (order < n_gallery)]] = True
    if not seen.all():
        raise InputError(
            f"an order must be a permutation of the gallery positions; item {int(np.argmin(seen))} is missing"
        )
