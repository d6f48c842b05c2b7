"""rho, and a transformation h of old embeddings towards its results."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ray_backfill.learn.models.heads import Heads, HeadShape
from ray_backfill.learn.models.maps import Transform, TransformShape


@dataclass(frozen=True)
class RhoAndHShape:
    """Shape of both maps. blocks: of rho. hidden, uncertainty: of h."""

    old_dim: int
    new_dim: int
    blocks: int
    hidden: int
    uncertainty: bool


class RhoAndH(nn.Module):
    """rho: new -> new space. h: old -> rho's space."""

    kind, Shape = "towards_rho", RhoAndHShape

    def __init__(self, shape: RhoAndHShape) -> None:
        super().__init__()
        self.shape = shape
        self.rho = Heads(HeadShape(shape.old_dim, shape.new_dim, True, shape.blocks)).rho
        self.h = Transform(TransformShape((shape.old_dim,), shape.new_dim, shape.hidden, shape.uncertainty))

    @classmethod
    def of(cls, heads: Heads, h: nn.Module) -> RhoAndH:
        """Put trained maps together."""
        assert isinstance(h, Transform)
        dims, own = heads.shape, h.shape
        both = cls(RhoAndHShape(dims.old_dim, dims.new_dim, dims.blocks, own.hidden, own.uncertainty))
        both.rho, both.h = heads.rho, h
        return both

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the same items by both models -> h(old) and rho(new)."""
        return self.h(old_Bd), self.rho(new_Bn)
