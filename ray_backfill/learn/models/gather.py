"""Gathers the batches of all DDP workers, with gradient, and normalises them together."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def rank_and_size() -> tuple[int, int]:
    """This worker's rank and the number of workers; (0, 1) outside DDP."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(local_Bd: Tensor) -> Tensor:
    """(B, ...) of each worker -> (W * B, ...) in the order of ranks, the same on every worker.

    The gradient of each row returns to the worker that owns it, summed over the losses of all workers. With DDP's mean
    over workers, W workers of batch B then equal one worker of batch W * B. B must be the same on all workers.
    """
    return local_Bd if rank_and_size()[1] == 1 else _Gather.apply(local_Bd)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local_Bd: Tensor) -> Tensor:
        rank, size = rank_and_size()
        ctx.own = slice(rank * len(local_Bd), (rank + 1) * len(local_Bd))
        parts = [torch.empty_like(local_Bd) for _ in range(size)]
        dist.all_gather(parts, local_Bd.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # Sum over the workers and keep the own rows: one reduction is cheap enough for the batches of heads.
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.own]


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
