"""The same passes over tiles with torch on a GPU: products, places and gates; undecided pairs return to the CPU.

Products are full float32, never TF32, so that the error bound of ``ProductForm`` holds. Undecided pairs are decided by
the same exact keys as on the CPU, so that the results are equal to the last bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Semaphore
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.distances.exact import as_float32
from ray_backfill.engine.replay.bins import make_bins
from ray_backfill.engine.replay.block import Block, Union
from ray_backfill.engine.replay.counting import hist_starts
from ray_backfill.engine.replay.keys import key_of
from ray_backfill.engine.replay.nearest import Passing
from ray_backfill.engine.systems import IntArray

# Largest number of items in a tile: enough work for a GPU, and 128 MB of products with a block of queries.
TILE_ITEMS = 65_536
# Part of the device's free memory for galleries that are kept there, and how many threads use the rest at a time.
_KEPT_PART, _SLOTS = 0.6, 4


class DeviceTiles:
    """A system's gallery for products on a device: kept there, or uploaded tile by tile for each block of queries.

    slots: how many threads may use the device's memory at a time. segments: of each range of items, once uploaded.
    """

    def __init__(self, form: ProductForm, device: str, keep: bool, slots: Semaphore) -> None:
        self.form, self.device, self.keep, self.slots = form, torch.device(device), keep, slots
        self.segments: dict[tuple[int, int], Tensor] = {}
        self._whole: Tensor | None = None
        self._lock = Lock()

    def tile(self, first: int, last: int) -> Tensor:
        """Return (n, D) float32."""
        if self.keep:
            with self._lock:
                whole = self._whole
                if whole is None:
                    whole = torch.empty((len(self.form.length_N), self.form.columns), device=self.device)
                    for at in range(0, len(whole), TILE_ITEMS):
                        end = min(at + TILE_ITEMS, len(whole))
                        whole[at:end] = self._upload(at, end)
                    self._whole = whole
            return whole[first:last]
        return self._upload(first, last)

    def _upload(self, first: int, last: int) -> Tensor:
        """Upload the rows as they are stored, and scale them on the device: the bits of ``ProductForm.tile``."""
        form = self.form
        rows: Any = form.gallery[first:last]
        rows = np.ascontiguousarray(rows) if rows.dtype == np.float16 else as_float32(rows)
        stored = torch.from_numpy(rows if rows.flags.writeable else rows.copy()).to(self.device)
        length = torch.from_numpy(form.length_N[first:last]).to(self.device)
        factor = 1 / length if form.distance == "cosine" else torch.full_like(length, form.scale)
        out = torch.empty((len(stored), form.columns), device=self.device)
        out[:, : stored.shape[1]] = stored.float().double().mul_(factor[:, None])
        if form.distance == "l2":
            out[:, -1] = (length * form.scale) ** 2
        return out

    def products(self, left_bD: Tensor, first: int, last: int) -> Tensor:
        """Return the (b, n) v of some queries with the items first .. last - 1."""
        return left_bD @ self.tile(first, last).T

    def queries(self, rows: IntArray) -> Tensor:
        return torch.from_numpy(self.form.left(rows)).to(self.device)

    def segments_of(self, first: int, last: int, segments_ON: NDArray[np.uint16]) -> Tensor:
        """Return the (O, n) int32 segments of the items; always the same ones for the same range."""
        if (first, last) not in self.segments:
            self.segments[first, last] = torch.from_numpy(segments_ON[:, first:last].astype(np.int32)).to(self.device)
        return self.segments[first, last]


def make_tiles(forms: Sequence[ProductForm], device: str) -> list[DeviceTiles]:
    """Prepare the systems of a gallery; those that fit together into a part of the free memory are kept there."""
    free = torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else 1 << 30
    room = _KEPT_PART * free
    slots, tiles = Semaphore(_SLOTS), []
    for form in forms:
        size = 4 * len(form.length_N) * form.columns
        keep = size <= room
        room -= size if keep else 0
        tiles.append(DeviceTiles(form, device, keep, slots))
    return tiles


class DeviceCounter:
    """``counting.Counter`` on a device. hist: the counts by exact keys, which are made on the CPU."""

    def __init__(
        self, tiles: DeviceTiles, block: Block, union: Union, segments_ON: NDArray[np.uint16], n_segments: int,
        first: int,
    ) -> None:  # fmt: skip
        device, lengths = tiles.device, np.diff(union.starts)
        self.tiles, self.left, self.segments_ON = tiles, tiles.queries(block.queries), segments_ON
        self.block, self.union, self.first = block, union, first
        bins = make_bins(tiles.form, block, union)
        # Rows of unequal length are padded with thresholds that no item reaches.
        used = np.arange(lengths.max() + 1) < np.diff(bins.starts)[:, None]
        padded = np.full((2, *used.shape), np.inf, np.float32)
        padded[0, used], padded[1, used] = bins.low, bins.high
        self.low, self.high = torch.from_numpy(padded).to(device)
        self.starts = hist_starts(union, n_segments)
        self.base = torch.from_numpy(self.starts[:-1]).to(device)
        self.width = torch.from_numpy(lengths + 1).to(device)
        self.left_out = np.concatenate([block.positives, block.ignored]) - first
        query_of_ignored = np.repeat(np.arange(len(block)), np.diff(block.ignored_starts))
        self.row_of_left_out = np.concatenate([block.query_of_positive, query_of_ignored])

    def start(self, begin: int, end: int) -> None:
        """Like ``Counter.start``, for all queries of the block."""
        self.hist = np.zeros((len(self.segments_ON), self.starts[-1]), np.int32)
        self.counted = torch.zeros(self.hist.shape, dtype=torch.int32, device=self.tiles.device)

    def add(self, first: int, last: int) -> None:
        """Like ``Counter.add``."""
        with self.tiles.slots:
            rows, items, places = self._place(first, last)
        items, union = first + items, self.union
        distances = self.tiles.form.exact(self.block.queries[rows], items)
        _place_keys(
            rows, items, self.first, distances, places, union.keys, union.starts, self.segments_ON, self.hist,
            self.starts,
        )  # fmt: skip

    def _place(self, first: int, last: int) -> tuple[IntArray, IntArray, IntArray]:
        """Count the pairs that products decide; return (row, column, least place) of the others."""
        v_bn = self.tiles.products(self.left, first, last)
        is_here = (self.left_out >= first) & (self.left_out < last)
        left_out = (torch.from_numpy(x[is_here]).to(v_bn.device) for x in (self.row_of_left_out, self.left_out - first))
        v_bn[tuple(left_out)] = torch.finfo(torch.float32).max  # farther than all thresholds
        place_bn = torch.searchsorted(self.high, v_bn, out_int32=True)
        # Most items are farther than all thresholds, and not counted.
        rows, columns = (place_bn < self.width[:, None] - 1).nonzero(as_tuple=True)
        places = place_bn[rows, columns].long()
        undecided = v_bn[rows, columns] >= self.low[rows, places]
        segments = self.tiles.segments_of(first, last, self.segments_ON)
        at = self.base[rows] + places
        one = (~undecided).int()
        for counted, segments_n in zip(self.counted, segments, strict=True):
            counted.scatter_add_(0, at + segments_n[columns] * self.width[rows], one)
        rows, columns, places = torch.stack([rows, columns, places])[:, undecided].cpu().numpy()
        return rows, columns, places

    def finish(self) -> NDArray[np.int32]:
        """Return all counts."""
        self.hist += self.counted.cpu().numpy()
        del self.counted  # other systems need the device's memory
        return self.hist


@kernel
def _place_keys(
    rows: Array, items: Array, first: int, distances: Array, places: Array, keys: Array, starts: Array,
    segments_ON: Array, hist: Array, hist_starts: Array,
) -> None:  # fmt: skip
    """Count pairs by their exact keys. places: (m,) a lower bound of each place."""
    for i in range(len(rows)):
        q, place = rows[i], places[i]
        thresholds = keys[starts[q] : starts[q + 1]]
        key = key_of(distances[i], first + items[i])
        while place < len(thresholds) and thresholds[place] <= key:
            place += 1
        for o in range(len(segments_ON)):
            hist[o, hist_starts[q] + segments_ON[o, items[i]] * (len(thresholds) + 1) + place] += 1


class DeviceFinder:
    """``nearest.Finder`` on a device."""

    def __init__(self, tiles: DeviceTiles, queries: IntArray) -> None:
        self.tiles, self.left = tiles, tiles.queries(queries)

    def passing(self, first: int, last: int, gates: NDArray[np.float32]) -> Passing:
        with self.tiles.slots:
            v_bn = self.tiles.products(self.left, first, last)
            passes = v_bn <= torch.from_numpy(gates[:, None]).to(v_bn.device)
            rows, columns = passes.nonzero().int().cpu().numpy().T
            values = v_bn[passes].cpu().numpy()
        return np.ascontiguousarray(rows), first + np.ascontiguousarray(columns), values


@contextmanager
def full_float32(tf32: bool = False) -> Iterator[None]:
    """Use full float32 products and convolutions on GPUs inside this context, whatever the process allows elsewhere.

    torch lets convolutions use TF32 by default, and then a GPU's embeddings differ from a CPU's in their third digit.
    The setting is global: enter this context before threads start, and only once at a time. tf32: use TF32 instead.
    """
    backends: Any = torch.backends
    cudnn, name, value = backends.cudnn, "fp32_precision", cast("str | bool", "tf32" if tf32 else "ieee")
    if hasattr(cudnn, "conv"):
        places = [backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    else:  # before torch 2.9
        places, name, value = [backends.cuda.matmul, cudnn], "allow_tf32", tf32
    before = [getattr(place, name) for place in places]
    for place in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, earlier in zip(places, before, strict=True):
            setattr(place, name, earlier)


def is_exact(device: str) -> bool:
    """Whether 1 + 2^-12 survives a product with 1, which TF32 rounds to 1, inside ``full_float32``."""
    with full_float32():
        left = torch.full((256, 256), 1 + 2.0**-12, device=device)
        return torch.equal(left @ torch.eye(256, device=device), left)
