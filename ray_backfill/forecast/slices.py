"""A slice of the gallery, or all of it, whose items are counted by distance for one block of queries at a time.

Histograms of disjoint slices are added, so that their number makes no difference.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import IntArray, RetrievalSystem
from ray_backfill.forecast.counts import Histograms, count_tile, find_starts, no_cells
from ray_backfill.forecast.others import Cells

Floats32 = NDArray[np.float32]
# Items whose distances to a block of queries are computed at a time: they should stay in the cache until counted.
_TILE = 1024


@dataclass(frozen=True, eq=False)
class Forms:
    """Distances to some items. stand_in: to their stand-ins, by the forward system. old: by the old model. before: by
    the backward system; often the same as ``old``, which saves its products.
    """

    stand_in: ProductForm
    old: ProductForm
    before: ProductForm

    @classmethod
    def of(
        cls, forward: RetrievalSystem, old: RetrievalSystem, before: RetrievalSystem | None, distance: str
    ) -> "Forms":
        """Distances in three systems. before: None if it is the old one."""
        of_old = ProductForm.of(old, distance)
        of_before = of_old if before is None else ProductForm.of(before, distance)
        return cls(ProductForm.of(forward, distance), of_old, of_before)

    def part(self, first: int, last: int) -> "Forms":
        """Distances to the items first .. last - 1, without a copy."""
        old = self.old.part(first, last)
        before = old if self.before is self.old else self.before.part(first, last)
        return Forms(self.stand_in.part(first, last), old, before)


@dataclass(frozen=True, eq=False)
class Asked:
    """b queries that are counted together. thresholds: (b, M) ascending, each filled up with infinity. left_out: of
    each query, the positions of its right answers and ignored items, ascending.
    """

    queries: IntArray
    thresholds: Floats32
    left_out: Sequence[IntArray]


@dataclass(frozen=True, eq=False)
class Plan:
    """What all slices know. moment_ON: index of the first moment at which an item is backfilled, from 0 to ``points``.
    known: positions of the items that are known after their backfill, ascending. cells: of predicted distances.
    """

    moment_ON: NDArray[np.int16]
    points: int
    known: IntArray
    cells: Cells


class Slices(Protocol):
    """All slices of a gallery, in this process or elsewhere."""

    def begin(self, plan: Plan) -> None:
        """Prepare to count."""

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """(2, k) of each query: the distances to its items' stand-ins, and those before the backfill."""

    def count(self, asked: Asked) -> Histograms:
        """Count all items by distance and moment."""


class GallerySlice:
    """The gallery positions first .. first + n - 1. forms: all queries and these items."""

    def __init__(self, forms: Forms, first: int) -> None:
        self.forms, self.first, self.size = forms, first, len(forms.before.length_N)

    def begin(self, plan: Plan) -> None:
        """See ``Slices``."""
        self.plan = plan
        self.moment = np.ascontiguousarray(plan.moment_ON[:, self.first : self.first + self.size])

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """See ``Slices``; 0 for items of other slices."""
        found = []
        for query, wanted in zip(queries, items, strict=True):
            own = (wanted >= self.first) & (wanted < self.first + self.size)
            out = np.zeros((2, len(wanted)), np.float32)
            for row, form in enumerate((self.forms.stand_in, self.forms.before)):
                out[row, own] = form.of_items(wanted[own] - self.first).approximate(np.array([query]))[0]
            found.append(out)
        return found

    def count(self, asked: Asked) -> Histograms:
        """See ``Slices``; of this slice. Cost: 3 products of b queries with n items, and O(b n O)."""
        plan, cells = self.plan, self.plan.cells
        out = no_cells(len(asked.queries), len(self.moment), plan.points, asked.thresholds.shape[1])
        starts, scales = find_starts(asked.thresholds)
        for first in range(0, self.size, _TILE):
            last = min(first + _TILE, self.size)
            tile = self.forms.part(first, last)
            stand_in, old = (form.approximate(asked.queries) for form in (tile.stand_in, tile.old))
            before = old.copy() if tile.before is tile.old else tile.before.approximate(asked.queries)
            stand_in[:, self._here(plan.known, first, last)] = np.nan
            for row, left_out in enumerate(asked.left_out):
                gone = self._here(left_out, first, last)
                stand_in[row, gone], before[row, gone] = np.nan, np.inf
            count_tile(
                stand_in, old, before, self.moment[:, first:last], cells.coefficients, cells.low, cells.width,
                asked.thresholds, starts, scales, out.places, out.cells,
            )  # fmt: skip
        return out

    def _here(self, positions: IntArray, first: int, last: int) -> IntArray:
        """Indices in the tile first .. last - 1 of this slice of some gallery positions, ascending."""
        low, high = np.searchsorted(positions, (self.first + first, self.first + last))
        return positions[low:high] - (self.first + first)


class LocalSlices:
    """Slices in this process, one for each thread of a pool."""

    def __init__(self, forms: Forms, pool: ThreadPoolExecutor, number: int) -> None:
        edges = np.linspace(0, len(forms.before.length_N), number + 1).astype(int).tolist()
        self.pool = pool
        self.slices = [GallerySlice(forms.part(edges[i], edges[i + 1]), edges[i]) for i in range(number)]

    def begin(self, plan: Plan) -> None:
        """See ``Slices``."""
        for each in self.slices:
            each.begin(plan)

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """See ``Slices``."""
        return added(each.distances(queries, items) for each in self.slices)

    def count(self, asked: Asked) -> Histograms:
        """See ``Slices``."""
        return reduce(Histograms.plus, self.pool.map(lambda each: each.count(asked), self.slices))


def added(found: Iterable[list[Floats32]]) -> list[Floats32]:
    """What several slices found, added: an item is in one of them."""
    return [np.sum(parts, axis=0) for parts in zip(*found, strict=True)]
