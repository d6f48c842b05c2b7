"""Retrieval systems, upgrade pairs and ground truth. At any time, every gallery item has exactly one active embedding.

Shapes: Q queries, N gallery items, d dimensions. Numpy only.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.engine.systems.arrays import FloatArray as FloatArray
from ray_backfill.engine.systems.arrays import IntArray as IntArray
from ray_backfill.engine.systems.arrays import as_array as as_array
from ray_backfill.engine.systems.arrays import as_labels as as_labels
from ray_backfill.engine.systems.arrays import as_vectors as as_vectors
from ray_backfill.engine.systems.arrays import describe_array as describe_array
from ray_backfill.engine.systems.truth import Filter as Filter
from ray_backfill.engine.systems.truth import GroundTruth as GroundTruth

# Rows that are checked at a time.
_ROWS = 65_536
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
