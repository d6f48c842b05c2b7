"""The training loop of all maps on stored embeddings, with or without DDP, and batches for losses per item.

Shapes: N training items, K views of each, W workers, b items per worker, B = W * b. A row of item i and view v is
v N + i, in tensors that hold all views one after the other (``all_views``).
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.core.progress import detail
from ray_backfill.learn.models.apply import counted_flops
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training.fit import Device, OnEpoch, TrainSet, share_of_batch
from ray_backfill.learn.training.settings import TransformTraining

# Rows of one batch, (B,).
BatchRows = NDArray[np.int64]
# Makes the draw of views independent of that of batches.
_VIEWS_STREAM = 1


def train_map(
    optimizer: torch.optim.Optimizer,
    epochs: int,
    steps: int,
    batches_of: Callable[[int], Iterable[BatchRows]],
    loss_of: Callable[[BatchRows], Tensor],
    factor_of: Callable[[int, int], float],
    on_epoch: OnEpoch,
) -> int:
    """Train on all batches of all epochs.

    steps: number of batches in an epoch. batches_of: prepares an epoch (from 1) and returns its batches, the same on
    every worker. loss_of: this worker's loss on its share of a batch. factor_of: factor of the peak learning rate, for
    an epoch and its step.
    Returns: the floating-point operations of all workers, extrapolated from the first step.
    """
    peak = optimizer.param_groups[0]["lr"]
    flops_of_step = 0
    with detail("train", epochs * steps, "steps") as shown:
        for epoch in range(1, epochs + 1):
            losses = []
            for step, rows in enumerate(batches_of(epoch)):
                for group in optimizer.param_groups:
                    group["lr"] = peak * factor_of(epoch, step)
                optimizer.zero_grad()
                with counted_flops(not flops_of_step) as flops:
                    loss = loss_of(rows)
                    loss.backward()
                flops_of_step += flops()
                optimizer.step()
                losses.append(loss.detach())
                shown.advance()
            if on_epoch is not None:
                on_epoch(epoch, float(gather(torch.stack(losses)[None]).mean()))
    return flops_of_step * epochs * steps * rank_and_size()[1]


def all_views(data: TrainSet, model: str, device: Device) -> Tensor:
    """(K N, d) float32 embeddings of all views, the plain ones first. Cost: memory for a copy."""
    views = data.views[model] if data.views else ()
    return torch.from_numpy(np.concatenate([data.vectors[model], *views], dtype=np.float32)).to(device)


def for_all_views(data: TrainSet, values_N: NDArray[Any], device: Device) -> Tensor:
    """(K N,) values of items, repeated for each view."""
    return torch.from_numpy(np.tile(values_N, data.n_views)).to(device)


def draw_views(data: TrainSet, seed: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Returns a function that replaces the row of each item by that of one of its views, drawn at random.

    It depends on the seed and earlier calls alone, so all workers draw the same views of the same batches. The only
    view of an item is itself.
    """
    rng = np.random.default_rng([seed, _VIEWS_STREAM])
    return lambda rows: rows + len(data) * rng.integers(data.n_views, size=rows.shape)


def train_by_items(
    network: nn.Module,
    data: TrainSet,
    settings: TransformTraining,
    loss_of: Callable[[nn.Module, Tensor], Tensor],
    device: Device,
    on_epoch: OnEpoch,
) -> int:
    """Train a network whose loss is a mean over items.

    loss_of: takes the network (DDP or not) and (b,) rows of ``all_views``.
    Source: FCT, the authors' code (Adam, warm-up, cosine, BatchNorm fixed in the second half).
    Returns: see ``train_map``.
    """
    rank, size = rank_and_size()
    n_items, view_of = len(data), draw_views(data, settings.seed)
    share = share_of_batch(n_items, settings, size)
    model: nn.Module = DistributedDataParallel(network) if size > 1 else network
    steps, rng = n_items // (share * size), np.random.default_rng(settings.seed)

    def batches_of(epoch: int) -> NDArray[np.int64]:
        network.train()
        if epoch > settings.fixed_norm_from * settings.epochs:
            for module in network.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
        return view_of(rng.permutation(n_items)[: steps * share * size].reshape(steps, size * share))

    def factor_of(epoch: int, step: int) -> float:
        return warmup_cosine((epoch - 1) * steps + step, settings.epochs * steps, settings.warmup_epochs * steps)

    mine = slice(rank * share, (rank + 1) * share)
    return train_map(
        torch.optim.Adam(network.parameters(), settings.lr, weight_decay=settings.weight_decay),
        settings.epochs,
        steps,
        batches_of,
        lambda rows: loss_of(model, torch.from_numpy(rows[mine]).to(device)),
        factor_of,
        on_epoch,
    )


def warmup_cosine(step: int, steps: int, warmup_steps: int) -> float:
    """Factor of the peak learning rate: a linear rise over warmup_steps, then a cosine to 0 at ``steps``."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))
