"""A shard: a contiguous part of a gallery, or all of it, that answers the engine for one block of queries at a time.

Answers of disjoint shards are added (counts) or concatenated (candidates), so that their number makes no difference.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm, Products
from ray_backfill.errors import InputError
from ray_backfill.merges import RAW, Merge
from ray_backfill.replay import counting
from ray_backfill.replay.block import Block, KeyArray, Thresholds, sort_keys
from ray_backfill.replay.nearest import Candidates, Finder, ceilings_of_other
from ray_backfill.systems import IntArray, UpgradePair

# Items per tile: the products with a block of queries should stay in the cache between multiplication and counting.
TILE_ITEMS = 2048

# Row of each candidate, its exact key, and whether it belongs to the forward system.
Found = tuple[IntArray, KeyArray, NDArray[np.bool_]]


class Shards(Protocol):
    """All shards of a gallery, in this process or elsewhere; each answer is a list with one entry per shard."""

    def positive_keys(self, block: Block) -> list[KeyArray]: ...
    def count(self, block: Block, thresholds: Thresholds) -> list[IntArray]: ...
    def nearest(self, block: Block, k: int) -> list[Found]: ...
    def cancel(self) -> None:
        """Stop running work in other threads soon, by an exception that nobody reads."""


class GalleryShard:
    """The gallery positions first .. first + N - 1.

    pair: all queries, and the N gallery items of this shard. slices_ON: (O, N) uint16 slices of these items in each
    order. report: called after each tile with its number of (query, item, system) comparisons. torch_device: device on
    which torch computes and classifies products; None for numpy and compiled loops. merge: the merge of the prepared
    replay, which may replace pair and distance (``Merge.prepare``).
    """

    def __init__(
        self,
        pair: UpgradePair,
        first: int,
        slices_ON: NDArray[np.uint16],
        points: int,
        distance: str,
        report: Callable[[int], object] = lambda comparisons: None,
        torch_device: str | None = None,
        merge: Merge = RAW,
    ) -> None:
        if pair.n_gallery >= 1 << 31:
            raise InputError(f"a shard may have fewer than {1 << 31:,} items, got {pair.n_gallery:,}; use more shards")
        self.first, self.last = first, first + pair.n_gallery
        self.slices_ON, self.points, self.report, self.merge = slices_ON, points, report, merge
        pair, distance = merge.prepare(pair, distance)
        self.is_cancelled = False
        self.forward = ProductForm.of(pair.forward, distance)
        self.backward = self.forward if pair.backward is pair.forward else ProductForm.of(pair.backward, distance)
        self.tile_items, self.on_device = TILE_ITEMS, None
        if torch_device is not None:
            # Import torch only if a device is requested.
            self.on_device = import_module("ray_backfill.replay.on_device")
            self.tile_items = self.on_device.TILE_ITEMS
            self.device_tiles = {id(form): self.on_device.DeviceTiles(form, torch_device) for form in self._forms}

    def positive_keys(self, block: Block) -> KeyArray:
        """Return (2, all positives) exact keys of ``block.positives``, forward and backward; 0 in other shards."""
        own = self._own(block.positives)
        keys = np.zeros((2, len(own)), np.uint64)
        for s, form in enumerate(self._forms):
            keys[s, own] = self._keys(form, block, block.query_of_positive[own], block.positives[own])
        return keys

    def count(self, block: Block, thresholds: Thresholds) -> IntArray:
        """Return ``counting.others_before`` of this shard; (2, ...) by system if the merge compares ranks."""
        forward = self._count(0, block, thresholds)
        if self.backward is self.forward and not self.merge.is_mapped:
            backward = forward
            self.report(len(block) * (self.last - self.first))
        else:
            backward = self._count(1, block, thresholds)
        if self.merge.by_rank:
            none = np.zeros_like(forward)
            apart = (forward, none), (none, backward)
            return np.stack([counting.others_before(*counts, thresholds, self.points) for counts in apart])
        return counting.others_before(forward, backward, thresholds, self.points)

    def nearest(self, block: Block, k: int) -> Found:
        """Return all items of this shard that can be among the first k at any point, and possibly more."""
        needed = k + np.diff(block.ignored_starts)
        n_slices, queries = self.points - 1, block.queries

        def scan(form: ProductForm, slices_ON: NDArray[np.uint16], ceilings: Any) -> tuple[IntArray, KeyArray]:
            candidates = Candidates.empty(form, queries, needed, slices_ON, n_slices, ceilings)
            finder = self._finder(form, block)
            for first, last in self._tiles(block):
                candidates.add(finder.passing(first, last, candidates.gates))
            return candidates.finish()

        rows_f, keys_f = scan(self.forward, self.slices_ON, None)
        ceilings = ceilings_of_other(
            rows_f, keys_f, needed, self.slices_ON, n_slices, self.backward, queries, self.merge
        )
        rows_b, keys_b = scan(self.backward, n_slices - 1 - self.slices_ON, ceilings)
        is_forward = np.arange(len(rows_f) + len(rows_b)) < len(rows_f)
        return np.concatenate([rows_f, rows_b]), np.concatenate([keys_f, keys_b]) + np.uint64(self.first), is_forward

    def _counter(self, form: ProductForm, block: Block, thresholds: Thresholds, keys: KeyArray) -> Any:
        n_slices = self.points - 1
        if self.on_device is None:
            products = Products(form, block.queries)
            return counting.Counter(products, block, thresholds, keys, self.slices_ON, n_slices, self.tile_items)
        tiles = self.device_tiles[id(form)]
        return self.on_device.DeviceCounter(tiles, block, thresholds, keys, self.slices_ON, n_slices)

    def _finder(self, form: ProductForm, block: Block) -> Any:
        if self.on_device is None:
            return Finder(Products(form, block.queries), self.tile_items)
        return self.on_device.DeviceFinder(self.device_tiles[id(form)], block.queries)

    def _tiles(self, block: Block) -> Iterator[tuple[int, int]]:
        """Yield the range of items of each tile, and report the tile when it is done."""
        for first in range(0, self.last - self.first, self.tile_items):
            if self.is_cancelled:
                raise RuntimeError("the replay was stopped")
            last = min(first + self.tile_items, self.last - self.first)
            yield first, last
            self.report(len(block) * (last - first))

    def _count(self, s: int, block: Block, thresholds: Thresholds) -> NDArray[np.int32]:
        """Return (O, CSR of (S, K + 1)) int32: the number of items, without positives and ignored, by slice and place.

        s: 0 for the forward system, 1 for the backward one.
        """
        form, threshold_keys, positive_keys = self._forms[s], thresholds.keys[s], thresholds.keys_2P[s]
        counter = self._counter(form, block, thresholds, threshold_keys)

        def count_exactly(query: IntArray, positions: IntArray, keys: KeyArray, sign: int) -> None:
            slices_Om = self.slices_ON[:, positions - self.first]
            counting.count_exactly(
                query, keys, slices_Om, sign, threshold_keys, thresholds.starts, counter.hist, counter.starts
            )

        for first, last in self._tiles(block):
            query, items = counter.add(first, last)
            positions = self.first + items
            count_exactly(query, positions, self._keys(form, block, query, positions), 1)
        # Positives and ignored items were counted with the rest; subtract them at the places of their exact keys.
        own = self._own(block.positives)
        count_exactly(block.query_of_positive[own], block.positives[own], positive_keys[own], -1)
        own = self._own(block.ignored)
        query, positions = block.query_of_ignored[own], block.ignored[own]
        count_exactly(query, positions, self._keys(form, block, query, positions), -1)
        return counter.finish()

    @property
    def _forms(self) -> tuple[ProductForm, ProductForm]:
        return self.forward, self.backward

    def _own(self, positions: IntArray) -> NDArray[np.bool_]:
        return (positions >= self.first) & (positions < self.last)

    def _keys(self, form: ProductForm, block: Block, query: IntArray, positions: IntArray) -> KeyArray:
        return sort_keys(form.exact(block.queries[query], positions - self.first), positions)


class LocalShards:
    """Shards in this process."""

    def __init__(self, shards: list[GalleryShard]) -> None:
        self.shards = shards

    def positive_keys(self, block: Block) -> list[KeyArray]:
        return [shard.positive_keys(block) for shard in self.shards]

    def count(self, block: Block, thresholds: Thresholds) -> list[IntArray]:
        return [shard.count(block, thresholds) for shard in self.shards]

    def nearest(self, block: Block, k: int) -> list[Found]:
        return [shard.nearest(block, k) for shard in self.shards]

    def cancel(self) -> None:
        for shard in self.shards:
            shard.is_cancelled = True
