"""Retrieval systems, upgrade pairs and ground truth. At any time, every gallery item has exactly one active embedding.

Shapes: Q queries, N gallery items, d dimensions. Numpy only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint

FloatArray = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.float64]
IntArray = NDArray[np.int64]

_KINDS = {"f": "numbers", "i": "integers", "u": "integers", "U": "text", "b": "true/false values", "S": "bytes"}


def describe_array(array: NDArray[Any]) -> str:
    """Describe an array for an error message: "integers of shape (3,)"."""
    return f"{_KINDS.get(array.dtype.kind, 'Python objects')} of shape {array.shape}"


def as_array(given: Any, what: str) -> NDArray[Any]:
    """Return lists, pandas and torch objects as an array, and an array as it is. what: name for messages.

    Raises:
        InputError: The values have no array form, such as rows of different lengths.
    """
    if isinstance(given, np.ndarray):
        return given
    try:
        if hasattr(given, "detach"):  # a torch tensor: it may need gradients, be on a GPU or have a type of torch's own
            given = given.detach().cpu()
            return np.asarray(given.float() if "bfloat16" in str(given.dtype) else given)
        array = np.asarray(given)
        if array.dtype == object and array.ndim == 1 and len(array):
            if all(isinstance(value, str) for value in array):  # a frame's column of text, or categories
                return array.astype(str)
            if np.ndim(array[0]) == 1:  # a frame's column of vectors
                return np.stack(list(array))
    except (TypeError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0]
        reason = "its rows have different lengths" if "inhomogeneous" in said else said
        raise InputError(f"{what} cannot be made a numpy array: {reason}") from error
    return array


def as_vectors(given: Any, what: str) -> FloatArray:
    """Return embeddings as a 2-D float array; lists of integers become float32.

    Raises:
        InputError: They have other dimensions, are empty, or are no numbers.
    """
    array = as_array(given, what)
    if not isinstance(given, np.ndarray) and array.dtype.kind in "iu":
        array = array.astype(np.float32)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(f"{what} must be a 2-D float array, one row an item, got {describe_array(array)}")
    if array.size == 0:
        raise InputError(f"{what} are empty: shape {array.shape}")
    return array


def as_labels(*given: tuple[Any, str]) -> list[IntArray]:
    """Return labels as 1-D integer arrays; text is numbered, equally in all arrays. given: labels and their names."""
    arrays = [(as_array(labels, what), what) for labels, what in given]
    for labels, what in arrays:
        if labels.ndim != 1 or labels.dtype.kind not in "iuU":
            raise InputError(f"{what} must be a 1-D array of integers or text, got {describe_array(labels)}")
    texts = [labels.dtype.kind == "U" for labels, _ in arrays]
    if any(texts) != all(texts):
        words = " but ".join(
            f"{what} are {'text' if text else 'numbers'}" for (_, what), text in zip(arrays, texts, strict=True)
        )
        raise InputError(f"{words}; use one type")
    if not any(texts):
        return [labels.astype(np.int64, copy=False) for labels, _ in arrays]
    numbers = np.unique(np.concatenate([labels for labels, _ in arrays]), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(labels) for labels, _ in arrays])[:-1])


# Rows that are checked at a time.
_ROWS = 65_536


def check_finite(array: FloatArray, what: str) -> None:
    """Raise InputError if (n, d) vectors have NaN or infinite values as float32. what: for the message."""
    for first in range(0, len(array), _ROWS):  # in pieces: one bool per number of a large gallery needs memory
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            numbers = array[first : first + _ROWS].astype(np.float32, copy=False)
        finite_rows = np.isfinite(numbers).all(axis=1)
        if not finite_rows.all():
            row = first + int(np.argmin(finite_rows))
            raise InputError(f"{what} have NaN or infinite values (as float32), first in row {row}; drop such rows")


Switch = Literal["progressively", "at_end", "only_backfilled"]


@dataclass(frozen=True, repr=False, eq=False)
class RetrievalSystem:
    """Query and gallery embeddings that are compared with each other: {query model, gallery model}.

    Lists, torch tensors and DataFrames of numbers become arrays.

    Raises:
        InputError: An array is not 2-D, is empty, or has NaN or infinite values, or the dimensions differ.
    """

    query: FloatArray
    """(Q, d) float query embeddings, finite."""
    gallery: FloatArray
    """(N, d) float gallery embeddings, finite."""

    def __post_init__(self) -> None:
        for side, given in (("query", self.query), ("gallery", self.gallery)):
            array = as_vectors(given, f"{side} embeddings")
            object.__setattr__(self, side, array)
            check_finite(array, f"{side} embeddings")
        if self.query.shape[1] != self.gallery.shape[1]:
            raise InputError(
                f"query embeddings have {self.query.shape[1]} dimensions, gallery embeddings {self.gallery.shape[1]}; "
                "both sides of a system must have the same number"
            )

    def __repr__(self) -> str:
        queries, (items, dims) = len(self.query), self.gallery.shape
        return f"RetrievalSystem({queries:,} queries, {items:,} gallery items, {dims} dimensions)"


@dataclass(frozen=True, repr=False, eq=False)
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
    together at t = 1 (offline backfilling); "only_backfilled", as progressively, but nothing serves the other items, so
    that they cannot be found."""

    def __post_init__(self) -> None:
        for side in ("backward", "forward"):
            if not isinstance(given := getattr(self, side), RetrievalSystem):
                raise InputError(
                    f"the {side} system must be a RetrievalSystem(query, gallery), not {type(given).__name__}"
                )
        for side in ("query", "gallery"):
            a, b = len(getattr(self.backward, side)), len(getattr(self.forward, side))
            if a != b:
                raise InputError(f"the backward system has {a} {side} rows, the forward system {b}")

    def __repr__(self) -> str:
        backward, forward = (system.gallery.shape[1] for system in (self.backward, self.forward))
        return (
            f"UpgradePair({self.n_queries:,} queries, {self.n_gallery:,} gallery items, "
            f"{backward} dimensions backward, {forward} forward, switches {self.switch.replace('_', ' ')})"
        )

    def changed(self, change: Callable[[RetrievalSystem], RetrievalSystem]) -> "UpgradePair":
        """Return the pair of the changed systems; if both are one object, they still are."""
        backward = change(self.backward)
        return UpgradePair(backward, backward if self.forward is self.backward else change(self.forward), self.switch)

    def items(self, first: int, last: int) -> "UpgradePair":
        """Return the same queries over the gallery items first .. last - 1, as views."""
        return self.changed(lambda system: RetrievalSystem(system.query, system.gallery[first:last]))

    def of_items(self, positions: IntArray) -> "UpgradePair":
        """Return the same queries over the gallery items at ``positions``, as copies."""
        return self.changed(lambda system: RetrievalSystem(system.query, system.gallery[positions]))

    @property
    def n_queries(self) -> int:
        """Number of queries, Q."""
        return len(self.backward.query)

    @property
    def n_gallery(self) -> int:
        """Number of gallery items, N."""
        return len(self.backward.gallery)


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Filter:
    """A query finds only the gallery items of its own part, such as those of one tenant.

    of_query: (Q,) and of_item: (N,) number of the part.
    """

    of_query: IntArray
    of_item: IntArray

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the parts."""
        return fingerprint(self.of_query, self.of_item)

    def parts(self) -> list[tuple[IntArray, IntArray]]:
        """The queries and the gallery items of each part that has both, ascending."""
        both = np.intersect1d(self.of_query, self.of_item).tolist()
        return [(np.flatnonzero(self.of_query == part), np.flatnonzero(self.of_item == part)) for part in both]


@dataclass(frozen=True, repr=False, eq=False)
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
    grades: Floats | None = None
    """How relevant each entry of ``positives`` is, above 0, for nDCG; None if all are 1."""
    weights: Floats | None = None
    """(Q,) weight of each query in every mean, interval and area, above 0; None if they are equal. ``with_weights``
    adds them."""
    filter: Filter | None = None
    """Which items a query can find; None for all. ``with_filter`` adds it."""

    def __post_init__(self) -> None:
        if self.grades is not None:
            grades = _above_zero(self.grades, len(self.positives), "grades", "right answers")
            object.__setattr__(self, "grades", grades)
        if self.weights is not None:
            object.__setattr__(self, "weights", _above_zero(self.weights, self.n_queries, "weights", "queries"))

    def __repr__(self) -> str:
        return (
            f"GroundTruth({self.n_queries:,} queries, {self.n_gallery:,} gallery items, "
            f"{len(self.positives):,} positives, {len(self.ignored):,} ignored)"
        )

    @property
    def n_queries(self) -> int:
        """Number of queries, Q, including those without positives."""
        return len(self.positive_starts) - 1

    @property
    def skipped(self) -> IntArray:
        """Queries without positives. No metric is defined for them, so every mean leaves them out."""
        return np.flatnonzero(np.diff(self.positive_starts) == 0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the right answers, their grades, what is ignored, and the weights of queries."""
        lists = (self.positive_starts, self.positives, self.ignored_starts, self.ignored)
        return fingerprint(self.n_gallery, *lists, self.grades, self.weights)

    def positives_of(self, query: int) -> IntArray:
        """Return the gallery positions of a query's positives, ascending."""
        return self.positives[self.positive_starts[query] : self.positive_starts[query + 1]]

    def ignored_of(self, query: int) -> IntArray:
        """Return the gallery positions of a query's ignored items, ascending."""
        return self.ignored[self.ignored_starts[query] : self.ignored_starts[query + 1]]

    def without(self, query_K: IntArray, item_K: IntArray) -> "GroundTruth":
        """Return the ground truth in which each of K queries ignores the gallery item at the same place."""
        keys = query_K * self.n_gallery + item_K
        first = np.arange(self.n_queries + 1) * self.n_gallery
        positives, ignored = (np.repeat(first[:-1], np.diff(starts)) + items for items, starts in self._lists)
        stays = ~np.isin(positives, keys)
        positives, ignored = positives[stays], np.union1d(ignored, keys)
        grades = None if self.grades is None else self.grades[stays]
        return GroundTruth(
            self.n_gallery, positives % self.n_gallery, np.searchsorted(positives, first),
            ignored % self.n_gallery, np.searchsorted(ignored, first), grades, self.weights, self.filter,
        )  # fmt: skip

    def only(self, stays_N: NDArray[np.bool_]) -> "GroundTruth":
        """Return the ground truth restricted to some gallery items; positions stay the same."""
        return self._kept(self.filter, stays_N[self.positives], stays_N[self.ignored])

    def with_filter(self, parts: Filter) -> "GroundTruth":
        """Return the ground truth in which a query finds only items of its part; others are no right answers."""
        stays = (parts.of_item[items] == np.repeat(parts.of_query, np.diff(starts)) for items, starts in self._lists)
        return self._kept(parts, *stays)

    def part(self, query_K: IntArray, item_M: IntArray) -> "GroundTruth":
        """Return the ground truth of K queries over M gallery items, without a filter. Both ascending."""
        place_N = np.full(self.n_gallery, -1)
        place_N[item_M] = np.arange(len(item_M))
        is_asked_Q = np.zeros(self.n_queries, np.bool_)
        is_asked_Q[query_K] = True
        stays = (np.repeat(is_asked_Q, np.diff(starts)) & (place_N[items] >= 0) for items, starts in self._lists)
        kept = self._kept(None, *stays)
        rows = np.append(query_K, self.n_queries)
        lists = (place_N[kept.positives], kept.positive_starts[rows], place_N[kept.ignored], kept.ignored_starts[rows])
        weights = None if self.weights is None else self.weights[query_K]
        return GroundTruth(len(item_M), *lists, kept.grades, weights)

    @property
    def _lists(self) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
        """Positives and ignored items, each with their starts."""
        return (self.positives, self.positive_starts), (self.ignored, self.ignored_starts)

    def _kept(self, parts: Filter | None, *stays: NDArray[np.bool_]) -> "GroundTruth":
        """Without some entries of ``positives`` and ``ignored``. stays: of both."""
        positives, ignored = (
            (items[stay], np.concatenate([[0], np.cumsum(stay)])[starts])
            for (items, starts), stay in zip(self._lists, stays, strict=True)
        )
        grades = None if self.grades is None else self.grades[stays[0]]
        return GroundTruth(self.n_gallery, *positives, *ignored, grades, self.weights, parts)

    def with_weights(self, weights: ArrayLike | None) -> "GroundTruth":
        """Return the ground truth with these weights of queries: (Q,) finite numbers above 0, or None for equal ones.

        Raises:
            InputError: They are not one such number for each query.
        """
        checked = None if weights is None else _above_zero(weights, self.n_queries, "weights", "queries")
        return replace(self, weights=checked)

    @classmethod
    def from_labels(
        cls,
        query_labels: ArrayLike,
        gallery_labels: ArrayLike,
        exclude_self: bool = False,
        *,
        query_cameras: ArrayLike | None = None,
        gallery_cameras: ArrayLike | None = None,
    ) -> "GroundTruth":
        """Build the ground truth from labels: all gallery items with the query's label are positives.

        Cost: O(N log N + number of positives).

        Args:
            query_labels: (Q,) integers or text.
            gallery_labels: (N,) integers or text.
            exclude_self: Query i is gallery item i, which is ignored for itself; needs equal labels on both sides.
            query_cameras: (Q,) integers or text. With cameras on both sides, items of the same label and the same
                camera are ignored (the Market-1501 protocol).
            gallery_cameras: (N,) integers or text.

        Raises:
            InputError: Labels are not 1-D integers or text, or exclude_self is set and the two sides differ.
        """
        query_labels, gallery_labels = as_labels((query_labels, "query labels"), (gallery_labels, "gallery labels"))
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
            of_query, of_item = as_labels((query_cameras, "query cameras"), (gallery_cameras, "gallery cameras"))
            skip |= of_query[query] == of_item[item]
        positives, ignored = (
            (item[kept], np.concatenate([[0], np.cumsum(np.bincount(query[kept], minlength=n_queries))]))
            for kept in (~skip, skip)
        )
        return cls(n_gallery, *positives, *ignored)

    @classmethod
    def from_positives(
        cls,
        positives: Sequence[Sequence[int] | IntArray],
        ignored: Sequence[Sequence[int] | IntArray] | None = None,
        *,
        n_gallery: int,
        grades: Sequence[Sequence[float] | Floats] | None = None,
    ) -> "GroundTruth":
        """Build the ground truth from lists of gallery positions. A position in both lists counts as ignored.

        Args:
            positives: For each query, the positions of its relevant items.
            ignored: For each query, the positions that are left out of its ranking; None for none.
            n_gallery: Number of gallery items, N.
            grades: For each query, how relevant each of its positives is, above 0, in the same order; None if all are
                equal.

        Raises:
            InputError: A position is outside 0..n_gallery-1, the lists differ in length, or a grade is not above 0.
        """
        if ignored is None:
            ignored = [[] for _ in positives]
        if len(ignored) != len(positives):
            raise InputError(
                f"got {len(positives)} lists of positives but {len(ignored)} of ignored items; give one for each query"
            )
        try:
            ignored_sets = [np.unique(np.asarray(row, np.int64)) for row in ignored]
            positive_sets = [
                np.setdiff1d(np.asarray(row, np.int64), skip) for row, skip in zip(positives, ignored_sets, strict=True)
            ]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"positives and ignored items are lists of gallery positions, as integers: {error}"
            ) from error
        for name, rows in (("positives", positive_sets), ("ignored items", ignored_sets)):
            for query, row in enumerate(rows):
                if len(row) and (row[0] < 0 or row[-1] >= n_gallery):
                    raise InputError(f"the {name} of query {query} include a position outside 0..{n_gallery - 1}")
        graded = None if grades is None else _grades_of(positives, grades, positive_sets)
        return cls(n_gallery, *_csr(positive_sets), *_csr(ignored_sets), graded)


def _grades_of(
    given: Sequence[Sequence[int] | IntArray], grades: Sequence[Sequence[float] | Floats], kept: Sequence[IntArray]
) -> Floats:
    """The grades of the positives that are kept, from those of all positives in the caller's order."""
    if len(grades) != len(given):
        raise InputError(f"got {len(given)} lists of positives but {len(grades)} of grades; give one for each query")
    rows = [np.empty(0)]
    for query, (items, of_items, stay) in enumerate(zip(given, grades, kept, strict=True)):
        array = as_array(of_items, f"the grades of query {query}")
        if array.shape != (len(items),):
            raise InputError(f"query {query} has {len(items)} positives but grades as {describe_array(array)}")
        unique, first, again = np.unique(np.asarray(items, np.int64), return_index=True, return_inverse=True)
        if len(unique) < len(array) and (array[first][again] != array).any():
            raise InputError(f"the positives of query {query} list an item twice, with different grades")
        rows.append(array[first][np.isin(unique, stay)])
    return np.concatenate(rows)


def _above_zero(given: ArrayLike, wanted: int, name: str, what: str) -> Floats:
    """Finite numbers above 0, one for each query or right answer."""
    array = as_array(given, name)
    if array.shape != (wanted,) or array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be a number for each of {wanted} {what}, got {describe_array(array)}")
    numbers = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
    if len(bad):
        raise InputError(f"{name} must be finite and above 0, but entry {bad[0]} is {numbers[bad[0]]:g}")
    return numbers


def _csr(rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.concatenate([np.empty(0, np.int64), *rows]), starts


def rows_of(values: NDArray[Any], starts: IntArray, rows: IntArray) -> tuple[NDArray[Any], IntArray]:
    """Return some rows of CSR ``values``, and where each of them starts."""
    lengths = starts[rows + 1] - starts[rows]
    new_starts = np.concatenate([[0], np.cumsum(lengths)])
    return values[np.arange(new_starts[-1]) + np.repeat(starts[rows] - new_starts[:-1], lengths)], new_starts
