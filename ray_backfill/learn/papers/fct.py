"""Maps between stored embeddings that networks make: FCT's transformation h, residual MLPs, and h towards rho.

Source: Ramanujan et al., "Forward Compatible Training", 2022. Its loss and loop are those of FastFill without a
classifier and an uncertainty (``fastfill``).

Shapes: N or B items, d_in and d_out dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.papers.rank_merge import GlobalBatchNorm, Heads, HeadShape


@dataclass(frozen=True)
class TransformShape:
    """Shape of h. input_dims: embedding size of each input model. uncertainty: also estimate a log variance."""

    input_dims: tuple[int, ...]
    output_dim: int
    hidden: int = 2048
    uncertainty: bool = False


class Transform(nn.Module):
    """FCT's h: a branch for each of two inputs, and a mixer; optionally with FastFill's uncertainty on top.

    Source: forward compatible training, the authors' code: branches in -> 2 in -> 2 out, mixer 4 out -> hidden ->
    hidden -> out; Linear-BatchNorm-ReLU except for the last layer. Without side information both branches get the old
    embedding. FastFill, appendix A.2: one Linear layer on h gives log sigma^2.
    """

    kind, Shape = "transform", TransformShape

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

    def rescale(self, inputs: Sequence[float], output: float) -> None:
        """Turn the map of x / s, for each input with its s, to y / ``output`` into that of x to y."""
        with torch.no_grad():
            for branch, scale in zip(self.branches, (tuple(inputs) * 2)[:2], strict=True):
                next(branch.parameters()).div_(scale)  # the weight of its first layer
            for weight_or_bias in self.mixer[-1].parameters():
                weight_or_bias.mul_(output)
            if self.uncertainty is not None:
                self.uncertainty.weight.div_(output)


@dataclass(frozen=True)
class ResidualShape:
    """Shape of the map. unit: inputs are scaled to length 1 first."""

    input_dim: int
    output_dim: int
    hidden: int = 256
    unit: bool = True


class Residual(nn.Module):
    """An affine map plus a small MLP that is zero at first, so that training starts from the affine map."""

    kind, Shape = "residual", ResidualShape

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

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the same items by both models -> h(old) and rho(new)."""
        return self.h(old_Bd), self.rho(new_Bn)


def rho_and_h(heads: Heads, h: Transform) -> RhoAndH:
    """Put trained maps together, to be evaluated."""
    dims, own = heads.shape, h.shape
    both = RhoAndH(RhoAndHShape(dims.old_dim, dims.new_dim, dims.blocks, own.hidden, own.uncertainty))
    both.rho, both.h = heads.rho, h
    return both.eval()
