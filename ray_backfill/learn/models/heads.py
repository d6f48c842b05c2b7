"""Heads: the small maps psi (reverse query transform) and rho (learnable new embedding) on stored embeddings.

Source: metric compatible training, sections 4.1-4.3 and B.2.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.models.gather import gather, rank_and_size


@dataclass(frozen=True)
class HeadShape:
    """Shape of the heads. learn_new: with rho. blocks: Linear-BatchNorm-ReLU blocks; the last one is Linear only."""

    old_dim: int
    new_dim: int
    learn_new: bool = False
    blocks: int = 2


class Heads(nn.Module):
    """psi: new -> old space, and rho: new -> new space. Without rho the new embedding stays unchanged."""

    kind, Shape = "heads", HeadShape

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.psi = _blocks(shape.new_dim, shape.old_dim, shape.blocks)
        self.rho = _blocks(shape.new_dim, shape.new_dim, shape.blocks) if shape.learn_new else nn.Identity()

    def forward(self, new_Bd: Tensor) -> tuple[Tensor, Tensor]:
        """(B, new_dim) -> psi(rho(new)), (B, old_dim), and rho(new), (B, new_dim)."""
        forward_Bd = self.rho(new_Bd)
        return self.psi(forward_Bd), forward_Bd


def _blocks(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    """Hidden width 2 * inputs: psi and rho of 128 dimensions then have 132,864 parameters, the paper's 132.8K."""
    hidden = 2 * inputs
    layers: list[nn.Module] = []
    for i in range(blocks - 1):
        layers += [nn.Linear(hidden if i else inputs, hidden), GlobalBatchNorm(hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden if blocks > 1 else inputs, outputs))


class GlobalBatchNorm(nn.BatchNorm1d):
    """BatchNorm over the batches of all DDP workers together, on any device.

    torch's SyncBatchNorm has no CPU kernel. Heads are so small that every worker can normalise the gathered batch, so
    W workers compute exactly what one worker computes on a batch of W times the size.
    """

    def forward(self, x_Bd: Tensor) -> Tensor:
        rank, size = rank_and_size()
        if not self.training or size == 1:
            return super().forward(x_Bd)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        normalised = F.batch_norm(
            gather(x_Bd),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=True,
            momentum=self.momentum or 0.1,
            eps=self.eps,
        )
        return normalised[rank * len(x_Bd) : (rank + 1) * len(x_Bd)]
