"""Spherical interpolation between the old query and the new one, which is rotated into the old space.

Shapes: B queries, d dimensions of the old model, n of the new one.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

# Closest that a cosine may come to 1 or -1, where the angle has no sine to divide by. Source: the authors' code.
_NEAR = 1e-7


@dataclass(frozen=True)
class SlerpShape:
    """alpha: the point of the arc, from 0 (the old query) to 1 (the rotated new one)."""

    old_dim: int
    new_dim: int
    alpha: float


class Slerp(nn.Module):
    """sin((1 - alpha) theta) / sin(theta) u + sin(alpha theta) / sin(theta) v, with u old and v the rotated new query.

    Source: Ricci et al., "Spherical Interpolation for Backward-Compatible Multimodal Representations", 2026, and the
    authors' public code. If the new model has more dimensions, the paper fills up the old ones with zeros, so that the
    rotation is square. The gallery is zero there, so only the first d dimensions of v are computed; its length is 1 in
    all n, and theta is that of the paper.
    """

    def __init__(self, shape: SlerpShape) -> None:
        super().__init__()
        self.shape = shape
        self.rotation = nn.Linear(shape.new_dim, shape.old_dim, bias=False)

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> Tensor:
        """(B, d) and (B, n) embeddings of the same queries -> (B, d)."""
        u_Bd, v_Bd = F.normalize(old_Bd, dim=1), self.rotation(F.normalize(new_Bn, dim=1))
        theta_B1 = (u_Bd * v_Bd).sum(1, keepdim=True).clamp(-1 + _NEAR, 1 - _NEAR).acos()
        share_B1 = ((1 - self.shape.alpha) * theta_B1).sin(), (self.shape.alpha * theta_B1).sin()
        return (share_B1[0] * u_Bd + share_B1[1] * v_Bd) / theta_B1.sin()
