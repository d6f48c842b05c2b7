"""Retrieval systems, upgrade pairs and ground truth. At any time, every gallery item has exactly one active embedding.

Shapes: Q queries, N gallery items, d dimensions. Numpy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError

FloatArray = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.float64]
IntArray = NDArray[np.int64]
# Rows that are checked at a time.
_ROWS = 65_536
Switch = Literal["progressively", "at_end"]


def describe_array(array: NDArray[Any]) -> str:
    """Describe an array for an error message: "int64 values of shape (3,)"; strings and objects are named as such."""
    values = {"U": "strings", "S": "bytes", "O": "Python objects"}.get(array.dtype.kind, f"{array.dtype} values")
    return f"{values} of shape {array.shape}"


@dataclass(frozen=True)
class RetrievalSystem:
    """Query and gallery embeddings that are compared with each other: {query model, gallery model}.

    Raises:
        InputError: An array is not 2-D, is empty, or has NaN or infinite values, or the dimensions differ.
    """

    query: FloatArray
    """(Q, d) float query embeddings, finite."""
    gallery: FloatArray
    """(N, d) float gallery embeddings, finite."""

    def __post_init__(self) -> None:
        for side, array in (("query", self.query), ("gallery", self.gallery)):
            if array.ndim != 2 or array.dtype.kind != "f":
                raise InputError(f"{side} embeddings must be a 2-D float array, got {describe_array(array)}")
            if array.size == 0:
                raise InputError(f"{side} embeddings are empty: shape {array.shape}")
            for first in range(0, len(array), _ROWS):  # in pieces: one bool per number of a large gallery needs memory
                with np.errstate(over="ignore"):  # values beyond float32 become infinite
                    numbers = array[first : first + _ROWS].astype(np.float32, copy=False)
                finite_rows = np.isfinite(numbers).all(axis=1)
                if not finite_rows.all():
                    raise InputError(
                        f"{side} embeddings have NaN or infinite values (as float32), first in row "
                        f"{first + int(np.argmin(finite_rows))}; drop such rows"
                    )
        if self.query.shape[1] != self.gallery.shape[1]:
            raise InputError(
                f"query embeddings have {self.query.shape[1]} dimensions, gallery embeddings {self.gallery.shape[1]}; "
                "both sides of a system must have the same number"
            )


@dataclass(frozen=True)
class UpgradePair:
    """The two systems of a backfill: one serves items before, the other after they are backfilled.

    Source: rank merge, eq. 3-5 (the general form: any method is such a pair).

    Raises:
        InputError: The two systems differ in the number of queries or gallery items.
    """

    backward: RetrievalSystem
    """Serves the items that are not backfilled yet."""
    forward: RetrievalSystem
    """Serves the backfilled items."""
    switch: Switch = "progressively"
    """When the forward system takes over: "progressively", each item as soon as it is backfilled; "at_end", all items
    together at t = 1 (offline backfilling)."""

    def __post_init__(self) -> None:
        for side in ("query", "gallery"):
            a, b = len(getattr(self.backward, side)), len(getattr(self.forward, side))
            if a != b:
                raise InputError(f"the backward system has {a} {side} rows, the forward system {b}")

    def items(self, first: int, last: int) -> "UpgradePair":
        """Return the same queries over the gallery items first .. last - 1, as views."""
        backward, forward = (
            RetrievalSystem(system.query, system.gallery[first:last]) for system in (self.backward, self.forward)
        )
        return UpgradePair(backward, backward if self.backward is self.forward else forward, self.switch)

    def of_items(self, positions: IntArray) -> "UpgradePair":
        """Return the same queries over the gallery items at ``positions``, as copies."""
        backward, forward = (
            RetrievalSystem(system.query, system.gallery[positions]) for system in (self.backward, self.forward)
        )
        return UpgradePair(backward, backward if self.backward is self.forward else forward, self.switch)

    @property
    def n_queries(self) -> int:
        """Number of queries, Q."""
        return len(self.backward.query)

    @property
    def n_gallery(self) -> int:
        """Number of gallery items, N."""
        return len(self.backward.gallery)


@dataclass(frozen=True)
class GroundTruth:
    """The relevant gallery items (positives) of each query, and the items that are left out of its ranking (ignored).

    Build it with ``from_labels`` or ``from_positives``. Both lists are stored as CSR; no position is in both.
    """

    n_gallery: int
    """Number of gallery items, N."""
    positives: IntArray
    """Gallery positions of the positives: query q has ``positives[positive_starts[q]:positive_starts[q + 1]]``,
    ascending and unique."""
    positive_starts: IntArray
    """(Q + 1,) start of each query's positives."""
    ignored: IntArray
    """Gallery positions of the ignored items, in the same form."""
    ignored_starts: IntArray
    """(Q + 1,) start of each query's ignored items."""

    @property
    def n_queries(self) -> int:
        """Number of queries, Q, including those without positives."""
        return len(self.positive_starts) - 1

    @property
    def skipped(self) -> IntArray:
        """Queries without positives. No metric is defined for them, so every mean leaves them out."""
        return np.flatnonzero(np.diff(self.positive_starts) == 0)

    def positives_of(self, query: int) -> IntArray:
        """Return the gallery positions of a query's positives, ascending."""
        return self.positives[self.positive_starts[query] : self.positive_starts[query + 1]]

    def ignored_of(self, query: int) -> IntArray:
        """Return the gallery positions of a query's ignored items, ascending."""
        return self.ignored[self.ignored_starts[query] : self.ignored_starts[query + 1]]

    @classmethod
    def from_labels(
        cls,
        query_labels: NDArray[np.integer],
        gallery_labels: NDArray[np.integer],
        exclude_self: bool = False,
        *,
        query_cameras: NDArray[np.integer] | None = None,
        gallery_cameras: NDArray[np.integer] | None = None,
    ) -> "GroundTruth":
        """Build the ground truth from labels: all gallery items with the query's label are positives.

        Cost: O(N log N + number of positives).

        Args:
            query_labels: (Q,) integers.
            gallery_labels: (N,) integers.
            exclude_self: Query i is gallery item i, which is ignored for itself; needs equal labels on both sides.
            query_cameras: (Q,) integers. With cameras on both sides, items of the same label and the same camera are
                ignored (the Market-1501 protocol).
            gallery_cameras: (N,) integers.

        Raises:
            InputError: Labels are not 1-D integers, or exclude_self is set and the two sides differ.
        """
        query_labels, gallery_labels = np.asarray(query_labels), np.asarray(gallery_labels)
        for name, labels in (("query", query_labels), ("gallery", gallery_labels)):
            if labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise InputError(f"{name} labels must be a 1-D integer array, got {describe_array(labels)}")
        n_queries, n_gallery = len(query_labels), len(gallery_labels)
        if exclude_self and not np.array_equal(query_labels, gallery_labels):
            raise InputError(
                f"exclude_self needs the gallery items as queries, with the same labels in the same order; got "
                f"{n_queries} queries and {n_gallery} items, or different labels"
            )
        by_label = np.argsort(gallery_labels, kind="stable")
        first = np.searchsorted(gallery_labels, query_labels, side="left", sorter=by_label)
        last = np.searchsorted(gallery_labels, query_labels, side="right", sorter=by_label)
        starts = np.concatenate([[0], np.cumsum(last - first)])
        # Entry j of the flat list is entry j - starts[q] of query q's run in by_label.
        item = by_label[np.arange(starts[-1]) - np.repeat(starts[:-1] - first, last - first)].astype(np.int64)
        query = np.repeat(np.arange(n_queries), last - first)
        skip = (item == query) if exclude_self else np.zeros(len(item), bool)
        if query_cameras is not None and gallery_cameras is not None:
            skip |= np.asarray(query_cameras)[query] == np.asarray(gallery_cameras)[item]

        def row_starts(of: IntArray) -> IntArray:
            return np.concatenate([[0], np.cumsum(np.bincount(of, minlength=n_queries))])

        return cls(n_gallery, item[~skip], row_starts(query[~skip]), item[skip], row_starts(query[skip]))

    @classmethod
    def from_positives(
        cls,
        positives: Sequence[Sequence[int] | IntArray],
        ignored: Sequence[Sequence[int] | IntArray] | None = None,
        *,
        n_gallery: int,
    ) -> "GroundTruth":
        """Build the ground truth from lists of gallery positions. A position in both lists counts as ignored.

        Args:
            positives: For each query, the positions of its relevant items.
            ignored: For each query, the positions that are left out of its ranking; None for none.
            n_gallery: Number of gallery items, N.

        Raises:
            InputError: A position is outside 0..n_gallery-1, or the two lists differ in length.
        """
        if ignored is None:
            ignored = [[] for _ in positives]
        if len(ignored) != len(positives):
            raise InputError(
                f"got {len(positives)} lists of positives but {len(ignored)} of ignored items; give one for each query"
            )
        ignored_sets = [np.unique(np.asarray(row, np.int64)) for row in ignored]
        positive_sets = [
            np.setdiff1d(np.asarray(row, np.int64), skip) for row, skip in zip(positives, ignored_sets, strict=True)
        ]
        for name, rows in (("positives", positive_sets), ("ignored items", ignored_sets)):
            for query, row in enumerate(rows):
                if len(row) and (row[0] < 0 or row[-1] >= n_gallery):
                    raise InputError(f"the {name} of query {query} include a position outside 0..{n_gallery - 1}")
        return cls(n_gallery, *_csr(positive_sets), *_csr(ignored_sets))


def _csr(rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.concatenate([np.empty(0, np.int64), *rows]), starts
