"""What goes to and fro between the engine and the shards of a gallery: plain arrays.

Lists of queries are CSR: those of query i of a block are entries starts[i] .. starts[i + 1] - 1 of a flat array.
Shapes: b queries of a block, P positives of a query, K = 2 P thresholds, S slices, O orders.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.kernels import Array, kernel
from ray_backfill.systems import GroundTruth, IntArray

KeyArray = NDArray[np.uint64]


@dataclass(frozen=True)
class Block:
    """Some queries of a replay. queries: (b,) their rows. positives, ignored: gallery positions, ascending a query."""

    queries: IntArray
    positives: IntArray
    positive_starts: IntArray
    ignored: IntArray
    ignored_starts: IntArray

    @classmethod
    def of(cls, truth: GroundTruth, queries: IntArray) -> "Block":
        return cls(
            queries,
            *_rows(truth.positives, truth.positive_starts, queries),
            *_rows(truth.ignored, truth.ignored_starts, queries),
        )

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def query_of_positive(self) -> IntArray:
        """For each entry of ``positives`` the place 0 .. b - 1 of its query in the block."""
        return np.repeat(np.arange(len(self)), np.diff(self.positive_starts))

    @property
    def query_of_ignored(self) -> IntArray:
        return np.repeat(np.arange(len(self)), np.diff(self.ignored_starts))


@dataclass(frozen=True)
class Thresholds:
    """The keys of a block's positives in both systems, ascending per query.

    keys: CSR, 2 P for each query. owner: aligned; p < P stands for the query's positive p under the forward system,
    P + p for the same under the backward one. starts: (b + 1,). keys_2P: (2, all positives) the same keys by system, in
    the order of ``Block.positives``. slices: (O, all positives) the slice of each positive.
    """

    keys: KeyArray
    keys_2P: KeyArray
    owner: NDArray[np.int32]
    starts: IntArray
    slices: NDArray[np.uint16]


def make_thresholds(block: Block, keys_2P: KeyArray, slices_ON: NDArray[np.uint16]) -> Thresholds:
    """keys_2P: (2, all) of ``block.positives``, forward and backward. slices_ON: the slice of each gallery item."""
    starts = 2 * block.positive_starts
    keys, owner = np.empty(starts[-1], np.uint64), np.empty(starts[-1], np.int32)
    _sort_thresholds(keys_2P[0], keys_2P[1], block.positive_starts, keys, owner)
    return Thresholds(keys, keys_2P, owner, starts, slices_ON[:, block.positives])


def sort_keys(distances: NDArray[np.float32], positions: IntArray) -> KeyArray:
    """Distances and gallery positions as uint64 that order by distance first and position second.

    The upper half is the float32 with its bits arranged so that they order as unsigned integers; the lower half is the
    position (below 2^32). Comparing two keys is the tie rule.
    """
    bits = (distances + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (ordered.astype(np.uint64) << np.uint64(32)) | positions.astype(np.uint64)


def distances_of(keys: KeyArray) -> NDArray[np.float32]:
    """The distances in the upper halves of keys."""
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    return np.where(ordered >> np.uint32(31), ordered & np.uint32(0x7FFFFFFF), ~ordered).view(np.float32)


def positions_of(keys: KeyArray) -> IntArray:
    """The gallery positions in the lower halves of keys."""
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _rows(flat: IntArray, starts: IntArray, queries: IntArray) -> tuple[IntArray, IntArray]:
    lengths = starts[queries + 1] - starts[queries]
    new_starts = np.concatenate([[0], np.cumsum(lengths)])
    return flat[np.arange(new_starts[-1]) + np.repeat(starts[queries] - new_starts[:-1], lengths)], new_starts


@kernel
def _sort_thresholds(forward: Array, backward: Array, starts: Array, keys: Array, owner: Array) -> None:
    for q in range(len(starts) - 1):
        first, last = starts[q], starts[q + 1]
        both = np.concatenate((forward[first:last], backward[first:last]))
        by_key = np.argsort(both)
        for k in range(len(both)):
            keys[2 * first + k] = both[by_key[k]]
            owner[2 * first + k] = by_key[k]
