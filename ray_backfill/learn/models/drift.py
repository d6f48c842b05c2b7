"""Drift-Adapter's MLP: the input itself, plus a small MLP, scaled in each dimension.

Shapes: B items, d_in and d_out dimensions.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ScaledResidualShape:
    """Shape of the map. unit: inputs are scaled to length 1 first."""

    input_dim: int
    output_dim: int
    hidden: int = 256
    unit: bool = True


class ScaledResidual(nn.Module):
    """S (x + W2 GELU(W1 x + b1) + b2) with a diagonal S. The MLP is zero at first, and S is one.

    Source: Vejendla, "Drift-Adapter", 2025, section 3: residual MLP with 256 hidden units, and the diagonal scaling
    matrix. The paper's models have one size; between two sizes, x is cut or filled with zeros.
    """

    kind, Shape = "scaled_residual", ScaledResidualShape

    def __init__(self, shape: ScaledResidualShape) -> None:
        super().__init__()
        self.shape = shape
        self.inner = nn.Linear(shape.input_dim, shape.hidden)
        self.outer = nn.Linear(shape.hidden, shape.output_dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.scale_d = nn.Parameter(torch.ones(shape.output_dim))

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        x_Bd = F.normalize(x_Bd, dim=1) if self.shape.unit else x_Bd
        kept_Bd = F.pad(x_Bd, (0, self.shape.output_dim - x_Bd.shape[1]))  # a negative pad truncates
        return self.scale_d * (kept_Bd + self.outer(F.gelu(self.inner(x_Bd))))
