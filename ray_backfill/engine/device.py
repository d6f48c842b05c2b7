"""The same passes over tiles with torch on a GPU: products, places and gates; undecided pairs return to the CPU.

Products are full float32, never TF32, so that the error bound of ``ProductForm`` holds. Undecided pairs are decided by
the same exact keys as on the CPU, so that the results are equal to the last bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay.bins import make_bins
from ray_backfill.engine.replay.block import Block, Union
from ray_backfill.engine.replay.counting import hist_starts, place_exactly
from ray_backfill.engine.replay.nearest import Passing
from ray_backfill.engine.systems import IntArray

# Items per tile: enough work for a GPU, and 128 MB of products with a block of queries.
TILE_ITEMS = 65_536


def check_gpu(device: str) -> None:
    """Raise InputError if torch cannot use ``device``."""
    if not torch.cuda.is_available():
        raise InputError(
            f"device {device!r} needs a CUDA GPU and a CUDA build of torch, and torch finds none; use device cpu"
        )
    if (torch.device(device).index or 0) >= (n := torch.cuda.device_count()):
        raise InputError(f"there is no device {device!r}; this machine has {n} CUDA GPU(s), numbered from 0")


class DeviceTiles:
    """A system's gallery, prepared for products on a device, and kept there if it needs little of its memory."""

    def __init__(self, form: ProductForm, device: str) -> None:
        self.form, self.device = form, torch.device(device)
        self.kept: dict[int, Tensor] = {}
        size = 4 * len(form.length_N) * form.columns
        # Two systems and the work of two threads must fit in memory.
        self.keep = self.device.type == "cuda" and size < torch.cuda.mem_get_info(self.device)[1] / 4

    def tile(self, first: int, last: int) -> Tensor:
        """Return (n, D) float32."""
        if first in self.kept:
            return self.kept[first]
        tile = torch.from_numpy(self.form.tile(first, last)).to(self.device)
        if self.keep:
            self.kept[first] = tile
        return tile

    def products(self, left_bD: Tensor, first: int, last: int) -> Tensor:
        """Return the (b, n) v of some queries with the items first .. last - 1."""
        return left_bD @ self.tile(first, last).T

    def queries(self, rows: IntArray) -> Tensor:
        return torch.from_numpy(self.form.left(rows)).to(self.device)


class DeviceCounter:
    """``counting.Counter`` on a device. hist: the counts by exact keys, which are made on the CPU."""

    def __init__(
        self,
        tiles: DeviceTiles,
        block: Block,
        union: Union,
        segments_ON: NDArray[np.uint16],
        n_segments: int,
        first: int,
    ) -> None:
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
        self.hist = np.zeros((len(segments_ON), self.starts[-1]), np.int32)
        self.base = torch.from_numpy(self.starts[:-1, None]).to(device)
        self.none = torch.from_numpy(lengths[:, None]).to(device)
        self.counted = torch.zeros(self.hist.shape, dtype=torch.int64, device=device)
        self.left_out = np.concatenate([block.positives, block.ignored]) - first
        self.row_of_left_out = np.concatenate([block.query_of_positive, block.query_of_ignored])

    def add(self, first: int, last: int) -> None:
        """Like ``Counter.add``."""
        v_bn = self.tiles.products(self.left, first, last)
        own = (self.left_out >= first) & (self.left_out < last)
        rows, columns = (
            torch.from_numpy(x[own]).to(v_bn.device) for x in (self.row_of_left_out, self.left_out - first)
        )
        v_bn[rows, columns] = torch.finfo(torch.float32).max  # farther than all thresholds
        place = torch.searchsorted(self.high, v_bn)
        undecided = torch.searchsorted(self.low, v_bn, right=True) != place
        counted_at = torch.where(undecided, self.none, place)
        for o, segments in enumerate(self.segments_ON[:, first:last].astype(np.int64)):
            slices_n = torch.from_numpy(segments).to(v_bn.device)
            at = self.base + slices_n * (self.none + 1) + counted_at
            self.counted[o] += torch.bincount(at.flatten(), minlength=self.counted.shape[1])
        rows, columns = undecided.nonzero(as_tuple=True)
        places = place[rows, columns].cpu().numpy()
        place_exactly(
            self.tiles.form, self.block, self.union, self.first, rows.cpu().numpy(), first + columns.cpu().numpy(),
            places, self.segments_ON, self.hist, self.starts,
        )  # fmt: skip

    def finish(self) -> NDArray[np.int32]:
        """Return all counts."""
        return self.hist + self.counted.cpu().numpy().astype(np.int32)


class DeviceFinder:
    """``nearest.Finder`` on a device."""

    def __init__(self, tiles: DeviceTiles, queries: IntArray) -> None:
        self.tiles, self.left = tiles, tiles.queries(queries)

    def passing(self, first: int, last: int, gates: NDArray[np.float32]) -> Passing:
        v_bn = self.tiles.products(self.left, first, last)
        passes = v_bn <= torch.from_numpy(gates[:, None]).to(v_bn.device)
        rows, columns = passes.nonzero().int().cpu().numpy().T
        return np.ascontiguousarray(rows), first + np.ascontiguousarray(columns), v_bn[passes].cpu().numpy()


@contextmanager
def full_float32() -> Iterator[None]:
    """Use full float32 products on GPUs inside this context, whatever the process allows elsewhere.

    The setting is global: enter this context before threads start, and only once at a time.
    """
    matmul = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, full)
    try:
        yield
    finally:
        setattr(matmul, name, before)
