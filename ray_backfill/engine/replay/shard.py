"""A shard: a contiguous part of a gallery, or all of it, that answers the engine for one block of queries at a time.

Answers of disjoint shards are added (counts) or concatenated (candidates), so that their number makes no difference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.distances.form import Products
from ray_backfill.engine.replay.before import Counted, CountsOfPair, Others, accumulate, find_others
from ray_backfill.engine.replay.block import Block, Thresholds, exact_keys, unite
from ray_backfill.engine.replay.counting import Counter, parts_of_products
from ray_backfill.engine.replay.keys import KeyArray
from ray_backfill.engine.replay.nearest import Candidates, Finder, find_farthest
from ray_backfill.engine.replay.prepare import Prepared, ReplayedPair, Scan
from ray_backfill.engine.systems import IntArray, RetrievalSystem

# Items per tile of a search: the products with a block of queries should stay in the cache until they are compared.
TILE_ITEMS = 512
# Most items per tile of counting, where each query has a table and counts that are read again for each tile.
COUNTED_ITEMS = 16_384
# Counts of a system that are made together, if one tile has all items and products with the block can be kept: counts
# stay in the cache. Of fewer queries, calls would take longer than loops.
_COUNTED_BYTES, _FEWEST_QUERIES, _KEPT_BYTES = 2 << 20, 16, 128 << 20

# Row of each candidate, and its exact key.
Found = tuple[IntArray, KeyArray]


class Shards(Protocol):
    """All shards of a gallery, in this process or elsewhere; each answer is a list with one entry per shard."""

    def positive_keys(self, block: Block) -> list[KeyArray]: ...
    def count(self, block: Block, thresholds: list[Thresholds]) -> list[list[Others]]: ...
    def nearest(self, block: Block, k: int) -> list[list[Found]]: ...
    def cancel(self) -> None:
        """Stop running work in other threads soon, by an exception that nobody reads."""


class GalleryShard:
    """The gallery positions first .. first + N - 1.

    forms: all queries, and the N gallery items of this shard, in each searched system. prepared: the whole gallery's.
    report: called after each tile with its number of (query, item) comparisons. torch_device: device on which torch
    computes and classifies products; None for numpy and compiled loops.
    """

    def __init__(
        self,
        forms: Sequence[ProductForm],
        first: int,
        prepared: Prepared,
        report: Callable[[int], object] = lambda comparisons: None,
        torch_device: str | None = None,
    ) -> None:
        n_items = len(forms[0].length_N)
        if n_items >= 1 << 31:
            raise InputError(f"a shard may have fewer than {1 << 31:,} items, got {n_items:,}; use more shards")
        self.first, self.last = first, first + n_items
        self.prepared, self.points, self.report = prepared, prepared.points, report
        self.segments_of: Mapping[tuple[int, ...], NDArray[np.uint16]] = {
            rows: np.ascontiguousarray(segments[:, first : self.last])
            for rows, segments in prepared.segments_of.items()
        }
        # A backward system serves the last segment longest.
        self.from_the_end = {
            scan.rows: np.uint16(prepared.points - 2) - self.segments_of[scan.rows]
            for scan in prepared.scans
            if not scan.is_forward
        }
        self.is_cancelled = False
        self.forms = forms
        self._parts: dict[int, int] = {}  # of products of each system, as the first block needs them
        self.tile_items, self.counted_items, self.on_device = TILE_ITEMS, COUNTED_ITEMS, None
        if torch_device is not None:
            # Import torch only if a device is requested.
            self.on_device = import_module("ray_backfill.engine.device")
            self.tile_items = self.counted_items = self.on_device.TILE_ITEMS
            self.device_tiles = self.on_device.make_tiles(self.forms, torch_device)

    def positive_keys(self, block: Block) -> KeyArray:
        """Return (searched systems, all positives) exact keys of ``block.positives``; 0 in other shards."""
        return np.stack([exact_keys(form, block, self.first, self.last) for form in self.forms])

    def count(self, block: Block, thresholds: list[Thresholds]) -> list[Others]:
        """Return ``find_others`` of this shard for each pair; (2, ...) by system if ranks are compared.

        thresholds: of each pair.
        """
        pairs, n_items = self.prepared.pairs, self.last - self.first
        uses: list[list[tuple[int, int]]] = [[] for _ in self.forms]  # (pair, side) of each use of a system
        for index, pair in enumerate(pairs):
            uses[pair.forward].append((index, 0))
            uses[pair.backward].append((index, 1))
        counters = [self._counter(index, block, thresholds, of_system) for index, of_system in enumerate(uses)]
        size = self.points * len(block.positives) + 1  # see ``find_others``
        of_pairs = [[np.empty((len(pair.orders), size), np.int32) for _ in _systems_counted(pair)] for pair in pairs]
        n_tiles, kept = max(1, -(-n_items // self.counted_items)), 4 * n_items * len(block) * len(counters)
        most = len(block)
        if n_tiles == 1 and kept <= _KEPT_BYTES and self.on_device is None:
            of_query = max(int(np.diff(c.starts).max()) * c.itemsize * len(c.segments_ON) for c in counters)
            most = max(_FEWEST_QUERIES, _COUNTED_BYTES // of_query)
        for begin in range(0, len(block), most):
            end = min(begin + most, len(block))
            counted = [self._count(counter, begin, end, n_tiles) for counter in counters]
            for index, pair in enumerate(pairs):
                forward, backward = (
                    CountsOfPair(
                        counted[system], uses[system].index((index, side)),
                        [self.prepared.rows_of[system].index(row) for row in pair.rows],
                    )
                    for side, system in enumerate((pair.forward, pair.backward))
                )  # fmt: skip
                for (has_f, has_b), others in zip(_systems_counted(pair), of_pairs[index], strict=True):
                    find_others(forward, has_f, backward, has_b, thresholds[index], self.points, begin, end, others)
        return [others[0][:, :-1] if len(others) == 1 else np.stack(others)[:, :, :-1] for others in of_pairs]

    def nearest(self, block: Block, k: int, known: Sequence[NDArray[np.float32]] | None = None) -> list[Found]:
        """Return for each scan all items of this shard that can be among the first k at any point, possibly more.

        known: for each scan, ``Candidates.ceilings`` that items of other shards set.
        """
        needed, n_segments = k + np.diff(block.ignored_starts), self.points - 1
        of_scans: dict[int, tuple[IntArray, KeyArray]] = {}
        # Forward scans first: they limit the others.
        for index, scan in sorted(enumerate(self.prepared.scans), key=lambda numbered: not numbered[1].is_forward):
            ceilings = self._ceilings(scan, of_scans, needed, block) if scan.limited_by else None
            segments_ON = self.segments_of[scan.rows] if scan.is_forward else self.from_the_end[scan.rows]
            if known is not None:
                ceilings = known[index] if ceilings is None else np.minimum(ceilings, known[index])
            form = self.forms[scan.searched]
            candidates = Candidates(form, block.queries, needed, segments_ON, n_segments, ceilings)
            finder: Any
            if self.on_device is None:
                finder = Finder(Products(form, block.queries), self.tile_items)
            else:
                finder = self.on_device.DeviceFinder(self.device_tiles[scan.searched], block.queries)
            for first, last in self._tiles(len(block), min(TILE_ITEMS, self.tile_items), self.tile_items):
                candidates.add(finder.passing(first, last, candidates.gates))
            of_scans[index] = candidates.finish()
        offset = np.uint64(self.first)
        return [(rows, keys + offset) for rows, keys in (of_scans[index] for index in range(len(of_scans)))]

    def _ceilings(
        self, scan: Scan, of_scans: Mapping[int, tuple[IntArray, KeyArray]], needed: IntArray, block: Block
    ) -> NDArray[np.float32]:
        """Of a backward scan, by what the forward scans of its pairs found: the highest ceiling that any pair sets,
        because an item is dropped only if no pair needs it.
        """
        n_segments = self.points - 1
        ceilings = np.full((len(block), len(scan.rows), n_segments), -np.inf, np.float32)
        for index, forward in zip(scan.pairs, scan.limited_by, strict=True):
            pair = self.prepared.pairs[index]
            farthest = np.full((len(block), len(pair.rows), n_segments), np.inf, np.float32)
            find_farthest(*of_scans[forward], needed, self.segments_of[pair.rows], farthest)
            # While the forward system serves the segments up to s, the backward one serves those up to S - 2 - s.
            set_by_pair = np.full(farthest.shape, np.inf, np.float32)
            q, o, s = np.nonzero(np.isfinite(farthest[:, :, : n_segments - 1]))
            surely_behind, _ = pair.merge.across(farthest[q, o, s], from_forward=True)
            set_by_pair[q, o, n_segments - 2 - s] = self.forms[scan.searched].bounds(block.queries, q, surely_behind)[1]
            for order, row in enumerate(pair.rows):
                at = scan.rows.index(row)
                ceilings[:, at] = np.maximum(ceilings[:, at], set_by_pair[:, order])
        return ceilings

    def _counter(
        self, system: int, block: Block, thresholds: Sequence[Thresholds], uses: Sequence[tuple[int, int]]
    ) -> Any:
        """uses: (pair, side) of each use of the system, 0 for forward."""
        union = unite([thresholds[pair].keys[side] for pair, side in uses], thresholds[0].starts)
        segments_ON, n_segments = self.segments_of[self.prepared.rows_of[system]], self.points - 1
        if self.on_device is None:
            form = self.forms[system]
            if system not in self._parts:
                self._parts[system] = parts_of_products(form, block, union, self.first)
            return Counter(form, block, union, segments_ON, n_segments, self.first, self._parts[system])
        return self.on_device.DeviceCounter(
            self.device_tiles[system], block, union, segments_ON, n_segments, self.first
        )

    def _tiles(self, n_queries: int, size: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield the range of items of each tile, and report the tile when it is done.

        size: of the first tile; sizes double up to ``most``. A search passes all items of its first tile, because it
        has no gates yet.
        """
        first = 0
        while first < self.last - self.first:
            if self.is_cancelled:
                raise RuntimeError("the replay was stopped")
            last = min(first + size, self.last - self.first)
            yield first, last
            self.report(n_queries * (last - first))
            first, size = last, min(2 * size, most)

    def _count(self, counter: Any, begin: int, end: int, n_tiles: int) -> Counted:
        """Count the items of one system, without positives and ignored ones, for the queries begin .. end - 1."""
        counter.start(begin, end)
        even = -(-(self.last - self.first) // n_tiles)
        for first, last in self._tiles(end - begin, even, even):
            counter.add(first, last)
        return accumulate(counter.finish(), counter.union, begin, end, self.points - 1)


def _systems_counted(pair: ReplayedPair) -> list[tuple[bool, bool]]:
    """For each result of a pair, whether forward items and whether backward items are counted."""
    if pair.hides_backward:
        return [(True, False)]
    return [(True, False), (False, True)] if pair.merge.by_rank else [(True, True)]


def make_forms(systems: Sequence[RetrievalSystem], prepared: Prepared, distance: str) -> list[ProductForm]:
    """Return the form of each searched system. Cost: one pass over the embeddings."""
    forms = []
    for searched in prepared.searched:
        system = systems[searched.system]
        if searched.references is None:
            forms.append(ProductForm.of(system, distance))
        else:
            forms.append(ProductForm.of(searched.references.replace(system, distance), "inner_product"))
    return forms


def candidates(shards: Shards, block: Block, k: int) -> list[Found]:
    """Return for each scan all items of the gallery that can be among the first k at any point, possibly more."""
    return [
        (np.concatenate([rows for rows, _ in of_shards]), np.concatenate([keys for _, keys in of_shards]))
        for of_shards in zip(*shards.nearest(block, k), strict=True)
    ]


def candidates_of(pair: ReplayedPair, of_scans: Sequence[Found]) -> tuple[IntArray, KeyArray, NDArray[np.bool_]]:
    """Return (query, key, whether it is forward's) of all candidates of a pair. of_scans: of each scan."""
    forward = of_scans[pair.forward_scan]
    both = [forward] if pair.hides_backward else [forward, of_scans[pair.backward_scan]]
    of_query, keys = (np.concatenate(part) for part in zip(*both, strict=True))
    return of_query, keys, np.arange(len(keys)) < len(forward[1])


class LocalShards:
    """Shards in this process, one after the other or in the threads of a pool."""

    def __init__(self, shards: list[GalleryShard], pool: ThreadPoolExecutor | None = None) -> None:
        self.shards = shards
        self.map = map if pool is None or len(shards) == 1 else pool.map

    def positive_keys(self, block: Block) -> list[KeyArray]:
        return list(self.map(lambda shard: shard.positive_keys(block), self.shards))

    def count(self, block: Block, thresholds: list[Thresholds]) -> list[list[Others]]:
        return list(self.map(lambda shard: shard.count(block, thresholds), self.shards))

    def nearest(self, block: Block, k: int) -> list[list[Found]]:
        return list(self.map(lambda shard: shard.nearest(block, k), self.shards))

    def cancel(self) -> None:
        for shard in self.shards:
            shard.is_cancelled = True
