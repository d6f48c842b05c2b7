"""Applies a fitted network to stored vectors. Torch is imported on first use, so that listing the methods is fast."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.memory import room_for
from ray_backfill.engine.systems import FloatArray

if TYPE_CHECKING:
    from torch import nn


# Stored vectors per forward pass.
_ROWS = 16_384


def transform(network: nn.Module, *vectors_Nd: FloatArray) -> FloatArray:
    """Apply a network to stored vectors, one (N, d_in) array per input; returns (N, d_out) float32.

    An identity returns them unchanged. Computes in float64, so that the result for a vector does not depend on the
    others in its batch: shards of a gallery must give the same as the whole gallery. Memory: the result, which is
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
