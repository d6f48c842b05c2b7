"""Batches of all DDP workers as one, with gradient."""

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_single_autograd


def rank_and_size() -> tuple[int, int]:
    """This worker's rank and the number of workers; (0, 1) outside DDP."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(local_Bd: Tensor) -> Tensor:
    """(B, ...) of each worker -> (W * B, ...) in the order of ranks, the same on every worker.

    The gradient of each row goes back to the worker that owns it, summed over all workers' losses; DDP's mean over
    workers then makes W workers of batch B equal to one worker of batch W * B. B must be the same everywhere.
    """
    _, size = rank_and_size()
    if size == 1:
        return local_Bd
    if not local_Bd.is_floating_point():
        parts = [torch.empty_like(local_Bd) for _ in range(size)]
        dist.all_gather(parts, local_Bd.contiguous())
        return torch.cat(parts)
    return all_gather_single_autograd(local_Bd.contiguous(), 0, cast(dist.ProcessGroup, dist.group.WORLD))
