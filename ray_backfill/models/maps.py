"""Maps from one model's stored embeddings to another's: FCT's transformation, closed-form affine maps, residual MLPs.

Shapes: N or B items, d_in and d_out dimensions.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_backfill.models.heads import GlobalBatchNorm
from ray_backfill.store import room_for
from ray_backfill.systems import FloatArray

# Stored vectors that go through a network at a time.
_ROWS = 16_384


def transform(network: nn.Module, *vectors_Nd: FloatArray) -> FloatArray:
    """Stored vectors (N, d_in), one array for each input of the network, through it: (N, d_out) float32.

    Without a network (an identity) they come back unchanged. It computes in float64, so that the result for a vector
    does not depend on the others: the shards of a gallery must give what the whole gives. Memory: the result, which is
    mapped from a temporary file if it is large.
    """
    if isinstance(network, nn.Identity):
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


@dataclass(frozen=True)
class TransformShape:
    """input_dims: of each model whose embedding goes in. uncertainty: with a log variance for each item."""

    input_dims: tuple[int, ...]
    output_dim: int
    hidden: int = 2048
    uncertainty: bool = False


class Transform(nn.Module):
    """FCT's h: a branch for each of two inputs, and a mixer; with FastFill's uncertainty on top where wanted.

    Source: forward compatible training, the authors' code: branches in -> 2 in -> 2 out, mixer 4 out -> hidden ->
    hidden -> out; Linear-BatchNorm-ReLU but for the last layer. Without side information both branches take the old
    embedding. FastFill, section 4.2: one Linear layer on h gives log sigma^2.
    """

    def __init__(self, shape: TransformShape) -> None:
        super().__init__()
        self.shape = shape
        out = shape.output_dim
        first, second = (shape.input_dims * 2)[:2]
        self.branches = nn.ModuleList(
            [nn.Sequential(*_block(d, 2 * d), *_block(2 * d, 2 * out)) for d in (first, second)]
        )
        self.mixer = nn.Sequential(
            *_block(4 * out, shape.hidden), *_block(shape.hidden, shape.hidden), nn.Linear(shape.hidden, out)
        )
        self.uncertainty = nn.Linear(out, 1) if shape.uncertainty else None

    def forward(self, *inputs_Bd: Tensor) -> Tensor:
        """One (B, d) tensor for each input -> (B, d_out)."""
        two = (inputs_Bd * 2)[:2]
        return self.mixer(torch.cat([branch(x_Bd) for branch, x_Bd in zip(self.branches, two, strict=True)], dim=1))

    def log_variance(self, h_Bd: Tensor) -> Tensor:
        """(B, d_out) results of ``forward`` -> (B,) log sigma^2."""
        assert self.uncertainty is not None
        return self.uncertainty(h_Bd).squeeze(1)


@dataclass(frozen=True)
class AffineShape:
    """unit: inputs are scaled to length 1 first."""

    input_dim: int
    output_dim: int
    unit: bool = True


class Affine(nn.Module):
    """x W + b, with x scaled to length 1 where ``unit``."""

    def __init__(self, shape: AffineShape) -> None:
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(shape.input_dim, shape.output_dim)

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        return self.linear(F.normalize(x_Bd, dim=1) if self.shape.unit else x_Bd)


@dataclass(frozen=True)
class ResidualShape:
    """unit: inputs are scaled to length 1 first."""

    input_dim: int
    output_dim: int
    hidden: int = 256
    unit: bool = True


class Residual(nn.Module):
    """An affine map plus a small MLP, which begins at zero: training starts from the affine map."""

    def __init__(self, shape: ResidualShape) -> None:
        super().__init__()
        self.shape = shape
        self.base = nn.Linear(shape.input_dim, shape.output_dim)
        self.inner = nn.Linear(shape.input_dim, shape.hidden)
        self.outer = nn.Linear(shape.hidden, shape.output_dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        x_Bd = F.normalize(x_Bd, dim=1) if self.shape.unit else x_Bd
        return self.base(x_Bd) + self.outer(F.gelu(self.inner(x_Bd)))


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), GlobalBatchNorm(outputs), nn.ReLU()]
