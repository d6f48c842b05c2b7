"""Keys: a distance and a gallery position in one uint64, so that comparing two keys implements the tie rule."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import kernel
from ray_backfill.engine.systems import IntArray

KeyArray = NDArray[np.uint64]


def sort_keys(distances: NDArray[np.float32], positions: IntArray) -> KeyArray:
    """Pack distances and gallery positions into uint64 keys that sort by distance, then position.

    The upper half is the float32 with its bits rearranged so that they sort as unsigned integers; the lower half is the
    position (below 2^32). Comparing two keys implements the tie rule.
    """
    bits = (distances + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (ordered.astype(np.uint64) << np.uint64(32)) | positions.astype(np.uint64)


def distances_of(keys: KeyArray) -> NDArray[np.float32]:
    """Return the distances in the upper halves of keys."""
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    return np.where(ordered >> np.uint32(31), ordered & np.uint32(0x7FFFFFFF), ~ordered).view(np.float32)


def positions_of(keys: KeyArray) -> IntArray:
    """Return the gallery positions in the lower halves of keys."""
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


# The same for one key, in compiled loops.


@kernel
def key_of(distance: float, position: int) -> Any:
    """Return ``sort_keys`` of one distance and position."""
    bits = np.int64(np.float32(distance + np.float32(0)).view(np.int32))
    ordered = bits + 0x80000000 if bits >= 0 else -1 - bits
    return (np.uint64(ordered) << np.uint64(32)) | np.uint64(position)


@kernel
def distance_of(key: int) -> Any:
    ordered = np.int64(key >> np.uint64(32))
    bits = ordered - 0x80000000 if ordered >= 0x80000000 else -1 - ordered
    return np.int32(bits).view(np.float32)


@kernel
def item_of(key: int) -> Any:
    return np.int64(key & np.uint64(0xFFFFFFFF))
