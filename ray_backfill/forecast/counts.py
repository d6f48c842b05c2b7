"""How many items are closer to a query than each of its right answers, at each moment of the backfill.

Exact for items whose distance is known: by the old embedding before the backfill, by the new one if they are sampled.
For the others, a histogram of predicted distances gives the expected number. Shards of the gallery are counted apart,
and their histograms are added, so that the number of shards makes no difference.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import Filter, Floats, IntArray
from ray_backfill.forecast.models import CELLS, Calibration, Cells, Floats32, OtherItems

# Items whose distances to a block of queries are computed at a time: they should stay in the cache until counted.
_TILE = 1024
# Cells into which the range of thresholds is divided, to find the place of a distance among them.
_STARTS = 1024
# Merges give thresholds that no distance reaches, or every one, as the largest float32 number or minus it.
_FAR = 1e30


@dataclass(frozen=True, eq=False)
class Forms:
    """Distances to some items. stand_in: to their stand-ins, by the forward system. old: by the old model. before: by
    the backward system; often the same as ``old``, which saves its products.
    """

    stand_in: ProductForm
    old: ProductForm
    before: ProductForm

    def part(self, first: int, last: int) -> "Forms":
        """Distances to the items first .. last - 1, without a copy."""
        old = self.old.part(first, last)
        before = old if self.before is self.old else self.before.part(first, last)
        return Forms(self.stand_in.part(first, last), old, before)


@dataclass(frozen=True, eq=False)
class ShardSetup:
    """What all shards know of a method. moment_ON: index of the first moment at which an item is backfilled, from 0 to
    ``points``. known: positions of the items that are known after their backfill, ascending. cells: of predicted
    distances. parts: what each query can find; None for all.
    """

    moment_ON: NDArray[np.int16]
    points: int
    known: IntArray
    cells: Cells
    parts: Filter | None = None


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """b queries that are counted together. thresholds: (b, M) of distances before the backfill, ascending, each filled
    up with infinity. left_out: of each query, the positions of its right answers and ignored items, ascending.
    """

    queries: IntArray
    thresholds: Floats32
    left_out: Sequence[IntArray]


class Histograms(NamedTuple):
    """Items of b queries by distance and moment of their backfill.

    places: (b, O, M + 1, T + 1) by their place among M thresholds before the backfill. cells: (b, O, CELLS, T + 1)
    those that are not known after it, by their predicted distance then.
    """

    places: IntArray
    cells: IntArray


class CountingShards:
    """All shards of a gallery. ``ask`` calls a method of ``CountingShard`` in each, in this process or elsewhere."""

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        """The answers of all shards."""
        raise NotImplementedError

    def begin(self, setup: ShardSetup) -> None:
        """Prepare to count."""
        self.ask("begin", setup)

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """(2, k) of each query: the distances to its items' stand-ins, and those before the backfill."""
        return [np.sum(parts, axis=0) for parts in zip(*self.ask("distances", queries, items), strict=True)]

    def count(self, block: QueryBlock) -> Histograms:
        """Count all items by distance and moment."""
        return Histograms(*(reduce(np.add, parts) for parts in zip(*self.ask("count", block), strict=True)))


class ThreadShards(CountingShards):
    """Shards in this process, one for each thread of a pool."""

    def __init__(self, forms: Forms, pool: ThreadPoolExecutor, number: int) -> None:
        edges = np.linspace(0, len(forms.before.length_N), number + 1).astype(int).tolist()
        self.pool = pool
        self.shards = [CountingShard(forms.part(edges[i], edges[i + 1]), edges[i]) for i in range(number)]

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        return list(self.pool.map(lambda shard: getattr(shard, question)(*arguments), self.shards))


class CountingShard:
    """The gallery positions first .. first + n - 1. forms: all queries and these items."""

    def __init__(self, forms: Forms, first: int) -> None:
        self.forms, self.first, self.size = forms, first, len(forms.before.length_N)

    def begin(self, setup: ShardSetup) -> None:
        self.setup = setup
        self.moment = np.ascontiguousarray(setup.moment_ON[:, self.first : self.first + self.size])

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """As those of all shards; 0 for items of other ones."""
        distances = []
        for query, wanted in zip(queries, items, strict=True):
            own = (wanted >= self.first) & (wanted < self.first + self.size)
            out = np.zeros((2, len(wanted)), np.float32)
            for row, form in enumerate((self.forms.stand_in, self.forms.before)):
                out[row, own] = form.of_items(wanted[own] - self.first).approximate(np.array([query]))[0]
            distances.append(out)
        return distances

    def count(self, block: QueryBlock) -> Histograms:
        """Of this shard. Cost: 3 products of b queries with n items, and O(b n O)."""
        cells, both, moments = self.setup.cells, (len(block.queries), len(self.moment)), self.setup.points + 1
        sizes = (block.thresholds.shape[1] + 1, CELLS)
        out = Histograms(*(np.zeros((*both, size, moments), np.int64) for size in sizes))
        at = find_starts(block.thresholds)
        for first in range(0, self.size, _TILE):
            last = min(first + _TILE, self.size)
            forms = self.forms.part(first, last)
            stand_in, old = (form.approximate(block.queries) for form in (forms.stand_in, forms.old))
            before = old.copy() if forms.before is forms.old else forms.before.approximate(block.queries)
            stand_in[:, self._here(self.setup.known, first, last)] = np.nan
            for row, left_out in enumerate(block.left_out):
                gone = self._here(left_out, first, last)
                stand_in[row, gone], before[row, gone] = np.nan, np.inf
            if (parts := self.setup.parts) is not None:
                of_item = parts.of_item[self.first + first : self.first + last]
                others = parts.of_query[block.queries][:, None] != of_item
                stand_in[others], before[others] = np.nan, np.inf
            counted = CountedTile(cells.logs(stand_in), cells.logs(old), before, self.moment[:, first:last])
            _count_tile(counted, cells.coefficients, cells.low, cells.width, at, out.places, out.cells)
        return out

    def _here(self, positions: IntArray, first: int, last: int) -> IntArray:
        """Indices in the tile first .. last - 1 of this shard of some gallery positions, ascending."""
        low, high = np.searchsorted(positions, (self.first + first, self.first + last))
        return positions[low:high] - (self.first + first)


class Places(NamedTuple):
    """Where distances are among (b, M) thresholds, ascending and filled up with infinity. starts: of each query, the
    places at which to start the search. scales: of each query, the first threshold, and the starts per distance.
    """

    thresholds: Floats32
    starts: NDArray[np.int32]
    scales: Floats


def find_starts(thresholds: Floats32) -> Places:
    """Prepare the search among thresholds."""
    starts, scales = np.zeros((len(thresholds), _STARTS), np.int32), np.zeros((len(thresholds), 2))
    for row, at in enumerate(thresholds):
        at = at[np.isfinite(at)]
        near = at[np.abs(at) < _FAR] if np.abs(at).min() < _FAR else np.zeros(1)
        scales[row] = near[0], _STARTS / max(float(near[-1]) - float(near[0]), 1e-30)
        starts[row] = np.searchsorted(at, near[0] + np.arange(_STARTS) / scales[row, 1], side="right")
    return Places(thresholds, starts, scales)


class CountedTile(NamedTuple):
    """(b, n) distances. stand_in: to the stand-ins, NaN for items that are known after their backfill. old: in the old
    model; both as logarithms. before: before the backfill, infinite for items that do not count. moment: (O, n) of
    their backfill.
    """

    stand_in: Floats32
    old: Floats32
    before: Floats32
    moment: NDArray[np.int16]


@kernel
def _count_tile(
    tile: CountedTile, coefficients: Array, low: float, width: float, at_places: Places, places: Array, cells: Array
) -> None:
    """Add the items of a tile to histograms. coefficients, low, width: as in ``Cells``."""
    stand_in, old, before, moment = tile
    thresholds, starts, scales = at_places
    a, b, c, d = coefficients
    for q in range(len(before)):
        at, number = thresholds[q], np.searchsorted(thresholds[q], np.inf)
        last, first, scale = at[number - 1], scales[q, 0], scales[q, 1]
        for i in range(before.shape[1]):
            place, x = -1, before[q, i]
            if x < last:
                place = starts[q, min(max(int((x - first) * scale), 0), starts.shape[1] - 1)]
                while at[place] <= x:
                    place += 1
                while place > 0 and at[place - 1] > x:
                    place -= 1
            cell, s = -1, stand_in[q, i]
            if not np.isnan(s):
                predicted = a + b * s + c * old[q, i] + d * s * old[q, i]
                cell = min(max(int((predicted - low) / width), 0), cells.shape[2] - 1)
            for o in range(len(moment)):
                if place >= 0:
                    places[q, o, place, moment[o, i]] += 1
                if cell >= 0:
                    cells[q, o, cell, moment[o, i]] += 1


class CloserCounts(NamedTuple):
    """Items closer than M thresholds, ascending. known: (O, M, T) exact. expected: (O, M, T) of the others. variance:
    (M,) of their number relative to its mean.

    changes: (1 + PARTS, O, M, T) of the expected number: by ``structural_error``, and if a part of the items is left
    out on which the model is fitted.
    """

    thresholds: Floats32
    known: IntArray
    expected: Floats
    variance: Floats
    changes: Floats


def count(
    places: IntArray, cells: IntArray, known_moments: IntArray, after: Floats32, others: OtherItems,
    thresholds: Floats32, calibration: Calibration,
) -> CloserCounts:  # fmt: skip
    """The counts of one query from its histograms, as in ``Histograms``.

    known_moments: (O, k) when other known items are backfilled. after: (k,) their distances then.
    """
    orders, number, points = len(places), len(thresholds), places.shape[2] - 1
    closer = np.zeros((orders, number, points), np.int64)
    for o in range(orders):
        _closer(places[o], known_moments[o], after, thresholds, closer[o])
    hidden = np.cumsum(cells[:, :, :points], axis=2).astype(np.float64)
    likely = others.cumulative(thresholds)  # (1 + PARTS, CELLS, M)
    by_threshold = likely.swapaxes(1, 2) @ hidden.swapaxes(0, 1).reshape(len(hidden[0]), -1)  # (1 + PARTS, M, O T)
    expected = by_threshold.reshape(*by_threshold.shape[:2], orders, points).swapaxes(1, 2)
    share = expected[0, 0, :, -1] / max(hidden[0, :, -1].sum(), 1.0)
    factor = np.minimum(calibration.factor(share), 1 / np.maximum(share, 1e-12))[:, None]
    expected *= factor
    changes = np.concatenate(
        [structural_error(expected[:1], calibration.error(share)[:, None]), expected[1:] - expected[0]]
    )
    return CloserCounts(thresholds, closer, expected[0], others.variance(share), changes)


def structural_error(expected: Floats, error: Floats | float = 0.0) -> Floats:
    """By how much expected numbers of closer items may be wrong besides the sample's error, as a standard deviation.

    The model has the same residuals for all queries. error: of the factor, see ``Calibration``.
    docs/results/forecast.md: what intervals with this error cover.
    """
    return np.asarray(np.hypot(0.03, error) * expected + 0.15 * np.sqrt(expected))


@kernel
def _closer(places: Array, moments: Array, after: Array, at: Array, closer: Array) -> None:
    """An item counts by its old embedding until its moment, and by its new one from then on."""
    backfilled = np.zeros(places.shape, np.int64)
    for k in range(len(after)):
        if after[k] < at[-1]:
            backfilled[np.searchsorted(at, after[k], side="right"), moments[k]] += 1
    for j in range(len(at)):
        waiting, done = places[j].sum(), 0
        for t in range(closer.shape[1]):
            waiting -= places[j, t]
            done += backfilled[j, t]
            closer[j, t] = waiting + done + (closer[j - 1, t] if j else 0)
