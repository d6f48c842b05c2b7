"""Stored vectors through a trained network."""

import copy

import numpy as np
import torch

from ray_backfill.systems import FloatArray

# Vectors that a network takes at a time.
_ROWS = 16_384


def transform(network: torch.nn.Module, *vectors_Nd: FloatArray) -> FloatArray:
    """Stored vectors (N, d), one array for each input of the network, through it: (N, d_out) float32.

    Unchanged where there is nothing to apply. Computed in float64, so that a vector's result does not depend on what
    it stands among: shards of a gallery must give what the whole gives.
    """
    if isinstance(network, torch.nn.Identity):
        return vectors_Nd[0]
    wide = copy.deepcopy(network).double().eval()
    parts = []
    with torch.inference_mode():
        for first in range(0, len(vectors_Nd[0]), _ROWS):
            part = [torch.from_numpy(v[first : first + _ROWS].astype(np.float64)) for v in vectors_Nd]
            parts.append(wide(*part).float().numpy())
    return np.concatenate(parts)
