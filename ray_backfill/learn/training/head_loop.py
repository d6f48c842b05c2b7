"""Trains psi and rho on stored embeddings. The backbones are frozen and do not run here.

Shapes: N training items, W workers, b anchors per worker, B = W * b; d dimensions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.models.heads import Heads, HeadShape
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.heads import HeadFit, anchors_per_worker, classes_of
from ray_backfill.learn.training.map_loop import Rows, all_views, draw_views, for_all_views, train_map
from ray_backfill.learn.training.schedule import warmup_cosine
from ray_backfill.learn.training.settings import HeadTraining, LossSettings


@dataclass(frozen=True)
class LossBatch:
    """Anchors of this worker against the items of all workers.

    reverse_bd: psi(rho(new)) of the anchors. forward_bd: rho(new) of the anchors. old_Bd, forward_Bd, label_B: of all
    workers' items. first: the anchors are items first .. first + b - 1 of the gathered batch.
    """

    reverse_bd: Tensor
    forward_bd: Tensor
    old_Bd: Tensor
    forward_Bd: Tensor
    label_B: Tensor
    first: int

    @property
    def own(self) -> slice:
        """Positions of the anchors among all items."""
        return slice(self.first, self.first + len(self.reverse_bd))


# The mean loss over the anchors.
HeadLoss = Callable[[LossBatch, LossSettings], Tensor]


def train_heads(
    fit: HeadFit, data: TrainSet, settings: HeadTraining, device: Device = None, on_epoch: OnEpoch = None
) -> Fitted:
    """Train the heads that ``fit`` declares; under DDP every worker calls this with the same arguments."""
    device = device or torch.device("cpu")
    rank, size = rank_and_size()
    label_N, training = classes_of(data, settings, fit.needs_labels)
    share = anchors_per_worker(label_N, training, size)
    old, new = (all_views(data, model, device) for model in fit.models)
    label, rows_of = for_all_views(data, label_N, device), rows_by_class(label_N)
    torch.manual_seed(training.seed)
    heads = Heads(HeadShape(old.shape[1], new.shape[1], fit.learn_new, training.blocks)).to(device)
    model: nn.Module = DistributedDataParallel(heads) if size > 1 else heads
    rng, view_of = np.random.default_rng(training.seed), draw_views(data, training.seed)

    def loss_of(rows: Rows) -> Tensor:
        everyone = torch.from_numpy(rows).to(device)
        reverse_bd, forward_bd = model(new[everyone[rank * share : (rank + 1) * share]])
        # Every worker has all stored embeddings and labels, so only the outputs of the heads are gathered.
        batch = LossBatch(
            reverse_bd, forward_bd, old[everyone], gather(forward_bd), label[everyone], first=rank * share
        )
        return fit.loss(batch, training.loss)

    flops = train_map(
        torch.optim.Adam([p for p in heads.parameters() if p.requires_grad], lr=training.lr),
        training.epochs,
        batches_per_epoch(rows_of, training.classes, training.items),
        lambda epoch: map(view_of, balanced_batches(rows_of, training.classes, training.items, rng)),
        loss_of,
        lambda epoch, step: warmup_cosine(epoch - 1, training.epochs, 0),
        on_epoch,
    )
    return Fitted(heads.eval(), flops)


def rows_by_class(label_N: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """The row numbers of each class, ascending. Cost: a sort, which takes seconds for a million rows."""
    _, counts = np.unique(label_N, return_counts=True)
    return np.split(np.argsort(label_N, kind="stable"), np.cumsum(counts)[:-1])


def balanced_batches(
    rows_of: Sequence[NDArray[np.int64]], classes: int, items: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """One epoch of class-balanced batches of row numbers: classes x items each, about N rows in all.

    Every class is drawn once before any is drawn again; a class with fewer rows than ``items`` repeats some.
    rows_of: rows of each class (``rows_by_class``).
    """
    per_batch = min(classes, len(rows_of))
    queue: list[int] = []
    for _ in range(batches_per_epoch(rows_of, classes, items)):
        if len(queue) < per_batch:
            waiting = set(queue)
            queue += [c for c in rng.permutation(len(rows_of)).tolist() if c not in waiting]
        drawn, queue = queue[:per_batch], queue[per_batch:]
        yield np.concatenate([rng.choice(rows_of[c], items, replace=len(rows_of[c]) < items) for c in drawn])


def batches_per_epoch(rows_of: Sequence[NDArray[np.int64]], classes: int, items: int) -> int:
    """Number of ``balanced_batches``."""
    return max(1, sum(map(len, rows_of)) // (min(classes, len(rows_of)) * items))
