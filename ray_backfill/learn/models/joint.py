"""A map of new embeddings towards old ones and a map of old embeddings towards its results, trained together.

Shapes: B items, d dimensions of the old model, n of the new one.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class JointShape:
    """Shape of both maps. strict: B is a rotation without bias. unit: inputs are scaled to length 1 first."""

    old_dim: int
    new_dim: int
    strict: bool
    unit: bool = True


class JointMaps(nn.Module):
    """to_old: B, (n, n), whose first d dimensions resemble the old embedding. to_new: F, from d to n dimensions.

    Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", 2025, sections
    3.2 to 3.4.
    """

    kind, Shape = "joint", JointShape

    def __init__(self, shape: JointShape) -> None:
        super().__init__()
        self.shape = shape
        self.to_old = _Affine(shape.new_dim, shape.new_dim, shape.unit)
        self.to_new = _Affine(shape.old_dim, shape.new_dim, shape.unit)
        if shape.strict:
            bias = self.to_old.linear.bias.requires_grad_(False)
            nn.init.zeros_(bias)

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the same items by both models -> F(old) and B(new), (B, n) each."""
        return self.to_new(old_Bd), self.to_old(new_Bn)


class _Affine(nn.Module):
    """x W + b, with x scaled to length 1 if ``unit`` is set."""

    def __init__(self, inputs: int, outputs: int, unit: bool) -> None:
        super().__init__()
        self.linear, self.unit = nn.Linear(inputs, outputs), unit

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        return self.linear(F.normalize(x_Bd, dim=1) if self.unit else x_Bd)
