"""Applies a fitted network to stored vectors. Torch is loaded with the first network, not with the list of methods."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ray_backfill.store import room_for
from ray_backfill.systems import FloatArray

if TYPE_CHECKING:
    from torch import nn


# Stored vectors that go through a network at a time.
_ROWS = 16_384


def transform(network: nn.Module, *vectors_Nd: FloatArray) -> FloatArray:
    """Stored vectors (N, d_in), one array for each input of the network, through it: (N, d_out) float32.

    Without a network (an identity) they come back unchanged. It computes in float64, so that the result for a vector
    does not depend on the others: the shards of a gallery must give what the whole gives. Memory: the result, which is
    mapped from a temporary file if it is large.
    """
    import torch

    if isinstance(network, torch.nn.Identity):
        return vectors_Nd[0]
    wide = copy.deepcopy(network).double().eval()
    n, out = len(vectors_Nd[0]), np.empty((0, 0), np.float32)
    with torch.inference_mode():
        for first in range(0, n, _ROWS):
            part = [torch.from_numpy(v[first : first + _ROWS].astype(np.float64)) for v in vectors_Nd]
            mapped: NDArray[np.float32] = wide(*part).float().numpy()
            if first == 0:
                out = room_for(n, mapped.shape[1], np.float32)
            out[first : first + len(mapped)] = mapped
    return out
