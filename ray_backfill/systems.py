"""The one law as data: every gallery item has exactly one active embedding.

Shapes: Q queries, N gallery items, d dimensions. Numpy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError

FloatArray = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.float64]
IntArray = NDArray[np.int64]
# Rows that are checked at a time.
_ROWS = 65_536
Switch = Literal["progressively", "at_end"]


@dataclass(frozen=True)
class RetrievalSystem:
    """The two sides that are compared: {query embedding, gallery embedding}.

    query: (Q, d) float. gallery: (N, d) float. Both finite.

    Raises:
        InputError: not two-dimensional, different d, empty, NaN or infinite.
    """

    query: FloatArray
    gallery: FloatArray

    def __post_init__(self) -> None:
        for side, array in (("query", self.query), ("gallery", self.gallery)):
            if array.ndim != 2 or array.dtype.kind != "f":
                raise InputError(
                    f"{side} embeddings must be a 2-d float array, got {array.dtype} of shape {array.shape}"
                )
            if array.size == 0:
                raise InputError(f"{side} embeddings are empty: shape {array.shape}")
            for first in range(0, len(array), _ROWS):  # a bool for every number of a large gallery would be large, too
                with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
                    numbers = array[first : first + _ROWS].astype(np.float32, copy=False)
                finite_rows = np.isfinite(numbers).all(axis=1)
                if not finite_rows.all():
                    raise InputError(
                        f"{side} embeddings have NaN or infinite values (as float32), first in row "
                        f"{first + int(np.argmin(finite_rows))}"
                    )
        if self.query.shape[1] != self.gallery.shape[1]:
            raise InputError(
                f"query embeddings have {self.query.shape[1]} dimensions, gallery embeddings {self.gallery.shape[1]}"
            )


@dataclass(frozen=True)
class UpgradePair:
    """What serves an item before (backward) and after (forward) it is backfilled.

    Source: rank merge, eq. 3-5 (the general form: any method is such a pair).
    switch: "progressively" serves each item by the forward system as soon as it is backfilled; "at_end" keeps the
    backward system for all items until t = 1 (offline backfilling).

    Raises:
        InputError: the two systems differ in the number of queries or gallery items.
    """

    backward: RetrievalSystem
    forward: RetrievalSystem
    switch: Switch = "progressively"

    def __post_init__(self) -> None:
        for side in ("query", "gallery"):
            a, b = len(getattr(self.backward, side)), len(getattr(self.forward, side))
            if a != b:
                raise InputError(f"the backward system has {a} {side} rows, the forward system {b}")

    def items(self, first: int, last: int) -> "UpgradePair":
        """The same queries over the gallery items first .. last - 1."""
        backward, forward = (
            RetrievalSystem(system.query, system.gallery[first:last]) for system in (self.backward, self.forward)
        )
        return UpgradePair(backward, backward if self.backward is self.forward else forward, self.switch)

    def of_items(self, positions: IntArray) -> "UpgradePair":
        """The same queries over some gallery items, copied."""
        backward, forward = (
            RetrievalSystem(system.query, system.gallery[positions]) for system in (self.backward, self.forward)
        )
        return UpgradePair(backward, backward if self.backward is self.forward else forward, self.switch)

    @property
    def n_queries(self) -> int:
        return len(self.backward.query)

    @property
    def n_gallery(self) -> int:
        return len(self.backward.gallery)


@dataclass(frozen=True)
class GroundTruth:
    """Per query, the gallery positions that are right (positives) and that do not count (ignored), both as CSR.

    Query q's positives are ``positives[positive_starts[q]:positive_starts[q + 1]]``, ascending and unique; ignored
    likewise. No position is both. Build it by ``from_labels`` or ``from_positives``.
    """

    n_gallery: int
    positives: IntArray
    positive_starts: IntArray
    ignored: IntArray
    ignored_starts: IntArray

    @property
    def n_queries(self) -> int:
        return len(self.positive_starts) - 1

    @property
    def skipped(self) -> IntArray:
        """Queries without any positive: no metric is defined for them, so they are left out of every mean."""
        return np.flatnonzero(np.diff(self.positive_starts) == 0)

    def positives_of(self, query: int) -> IntArray:
        return self.positives[self.positive_starts[query] : self.positive_starts[query + 1]]

    def ignored_of(self, query: int) -> IntArray:
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
        """A gallery item is right for a query of the same label.

        query_labels: (Q,), gallery_labels: (N,) integers. exclude_self: query i IS gallery item i and is ignored for
        itself (needs the same labels on both sides). Cameras, if given on both sides: items of the same label AND the
        same camera are ignored (the Market-1501 protocol).
        Cost: O(N log N + number of positives).
        """
        query_labels, gallery_labels = np.asarray(query_labels), np.asarray(gallery_labels)
        for name, labels in (("query", query_labels), ("gallery", gallery_labels)):
            if labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise InputError(
                    f"{name} labels must be a 1-d integer array, got {labels.dtype} of shape {labels.shape}"
                )
        n_queries, n_gallery = len(query_labels), len(gallery_labels)
        if exclude_self and not np.array_equal(query_labels, gallery_labels):
            raise InputError(
                f"exclude_self needs the gallery as queries, with the same labels; got {n_queries} queries and "
                f"{n_gallery} items, or other labels"
            )
        by_label = np.argsort(gallery_labels, kind="stable")
        first = np.searchsorted(gallery_labels, query_labels, side="left", sorter=by_label)
        last = np.searchsorted(gallery_labels, query_labels, side="right", sorter=by_label)
        starts = np.concatenate([[0], np.cumsum(last - first)])
        # Entry j of the flat list is item (j - starts[q]) of query q's run in by_label.
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
        """Lists of gallery positions per query. A position in both lists counts as ignored.

        Raises:
            InputError: a position outside 0..n_gallery-1, or lists of different length.
        """
        if ignored is None:
            ignored = [[] for _ in positives]
        if len(ignored) != len(positives):
            raise InputError(f"{len(positives)} lists of positives but {len(ignored)} lists of ignored items")
        ignored_sets = [np.unique(np.asarray(row, np.int64)) for row in ignored]
        positive_sets = [
            np.setdiff1d(np.asarray(row, np.int64), skip) for row, skip in zip(positives, ignored_sets, strict=True)
        ]
        for name, rows in (("positives", positive_sets), ("ignored items", ignored_sets)):
            for query, row in enumerate(rows):
                if len(row) and (row[0] < 0 or row[-1] >= n_gallery):
                    raise InputError(f"{name} of query {query} name a position outside 0..{n_gallery - 1}")
        return cls(n_gallery, *_csr(positive_sets), *_csr(ignored_sets))


def _csr(rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.concatenate([np.empty(0, np.int64), *rows]), starts
