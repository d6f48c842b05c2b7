"""The same passes over tiles by torch, on a GPU: products, places and gates there, the few undecided pairs here.

Products are full float32, never TF32: the error bound of ``ProductForm`` must hold. What is undecided is settled by the
same exact keys as on the CPU, so the results are the same to the last bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.distances import ProductForm
from ray_backfill.errors import InputError
from ray_backfill.replay.block import Block, KeyArray, Thresholds
from ray_backfill.replay.counting import hist_starts, threshold_bounds
from ray_backfill.replay.nearest import Passing
from ray_backfill.systems import IntArray

# Items of a tile: enough work for a GPU at a time, and 128 MB of products with a block of queries.
TILE_ITEMS = 65_536


def check_gpu(device: str) -> None:
    """Raises InputError where torch cannot use ``device``."""
    if not torch.cuda.is_available():
        raise InputError(f"device {device!r} needs a CUDA GPU and a torch built for it, which are not here; use cpu")
    if (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {device!r} here; this machine has {torch.cuda.device_count()} GPUs")


class DeviceTiles:
    """A system's gallery, prepared for products on a device; kept there if it takes little of its memory."""

    def __init__(self, form: ProductForm, device: str) -> None:
        self.form, self.device = form, torch.device(device)
        self.kept: dict[int, Tensor] = {}
        size = 4 * len(form.length_N) * form.columns
        # Two systems and the work of two threads must fit as well.
        self.keep = self.device.type == "cuda" and size < torch.cuda.mem_get_info(self.device)[1] / 4

    def tile(self, first: int, last: int) -> Tensor:
        """(n, D) float32."""
        if first in self.kept:
            return self.kept[first]
        tile = torch.from_numpy(self.form.tile(first, last)).to(self.device)
        if self.keep:
            self.kept[first] = tile
        return tile

    def products(self, left_bD: Tensor, first: int, last: int) -> Tensor:
        """(b, n) v of some queries with the items first .. last - 1."""
        return left_bD @ self.tile(first, last).T

    def queries(self, rows: IntArray) -> Tensor:
        return torch.from_numpy(self.form.left(rows)).to(self.device)


class DeviceCounter:
    """``counting.Counter`` on a device. hist: the counts that are made here, by exact keys."""

    def __init__(
        self, tiles: DeviceTiles, block: Block, thresholds: Thresholds, keys: KeyArray, slices_ON: NDArray[np.uint16],
        n_slices: int,
    ) -> None:  # fmt: skip
        device, lengths = tiles.device, np.diff(thresholds.starts)
        self.tiles, self.left, self.slices_ON = tiles, tiles.queries(block.queries), slices_ON
        low, high = threshold_bounds(tiles.form, block, thresholds, keys)
        # Rows of unequal length are filled up with thresholds that no item reaches.
        used = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full((2, *used.shape), np.inf, np.float32)
        padded[0, used], padded[1, used] = low, high
        self.low, self.high = torch.from_numpy(padded).to(device)
        self.starts = hist_starts(thresholds, n_slices)
        self.hist = np.zeros((len(slices_ON), self.starts[-1]), np.int32)
        self.base = torch.from_numpy(self.starts[:-1, None]).to(device)
        self.none = torch.from_numpy(lengths[:, None]).to(device)
        self.counted = torch.zeros(self.hist.shape, dtype=torch.int64, device=device)

    def add(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """As ``Counter.add``."""
        v_bn = self.tiles.products(self.left, first, last)
        place = torch.searchsorted(self.high, v_bn)
        undecided = torch.searchsorted(self.low, v_bn, right=True) != place
        place = torch.where(undecided, self.none, place)
        for o, slices in enumerate(self.slices_ON[:, first:last].astype(np.int64)):
            slices_n = torch.from_numpy(slices).to(v_bn.device)
            at = self.base + slices_n * (self.none + 1) + place
            self.counted[o] += torch.bincount(at.flatten(), minlength=self.counted.shape[1])
        rows, columns = undecided.nonzero().cpu().numpy().T
        return rows, first + columns

    def finish(self) -> NDArray[np.int32]:
        """All counts."""
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
    """Full float32 products on GPUs for the length of the block, whatever this process allows elsewhere.

    The setting is one of the whole process: enter this before threads start, and once at a time.
    """
    matmul = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, full)
    try:
        yield
    finally:
        setattr(matmul, name, before)
