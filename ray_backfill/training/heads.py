"""Trains psi and rho on stored embeddings: the backbones are frozen, so none of them runs here.

Shapes: N training items, W workers, b anchors of a worker, B = W * b; d dimensions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.errors import InputError
from ray_backfill.models.gather import gather, rank_and_size
from ray_backfill.models.heads import Heads, HeadShape
from ray_backfill.training.fit import Device, Fit, Fitted, OnEpoch, TrainSet
from ray_backfill.training.map_loop import Rows, as_tensor, train_map
from ray_backfill.training.schedule import warmup_cosine
from ray_backfill.training.settings import HEAD_DISTANCES, FitSettings, HeadTraining, LossSettings


@dataclass(frozen=True)
class LossBatch:
    """Anchors of this worker against the items of all workers.

    reverse_bd: psi(rho(new)) of the anchors. forward_bd: rho(new) of the anchors. old_Bd, forward_Bd: gathered.
    label_B: gathered labels. first: the anchors are items first .. first + b - 1 of the gathered batch.
    """

    reverse_bd: Tensor
    forward_bd: Tensor
    old_Bd: Tensor
    forward_Bd: Tensor
    label_B: Tensor
    first: int

    @property
    def own(self) -> slice:
        """The anchors among all items."""
        return slice(self.first, self.first + len(self.reverse_bd))


# The mean loss over the anchors.
HeadLoss = Callable[[LossBatch, LossSettings], Tensor]


@dataclass(frozen=True)
class HeadFit(Fit):
    """Trains psi, and rho where learn_new. The loss is recorded by the function's name."""

    loss: HeadLoss
    learn_new: bool = False
    needs_labels: bool = True

    option = "heads"
    models = ("old", "new")

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "heads", **asdict(self), "loss": self.loss.__name__}
        return {"fit": this, "training": asdict(settings.heads)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return anchors_per_worker(*classes_of(data, settings.heads, self.needs_labels), workers)

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        trained = settings.heads.loss.distance
        if distance == trained:
            return ""
        if distance not in HEAD_DISTANCES:
            return f"heads train under the cosine or the l2 distance, not {distance}"
        return f"heads would train under the {trained} distance; give --heads.loss.distance {distance}"

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        device = device or torch.device("cpu")
        rank, size = rank_and_size()
        label_N, training = classes_of(data, settings.heads, self.needs_labels)
        share = anchors_per_worker(label_N, training, size)
        old, new = (as_tensor(data.vectors[model], device) for model in self.models)
        label, rows_of = torch.from_numpy(label_N).to(device), rows_by_class(label_N)
        torch.manual_seed(training.seed)
        heads = Heads(HeadShape(old.shape[1], new.shape[1], self.learn_new, training.blocks)).to(device)
        model: nn.Module = DistributedDataParallel(heads) if size > 1 else heads
        rng = np.random.default_rng(training.seed)

        def loss_of(rows: Rows) -> Tensor:
            everyone = torch.from_numpy(rows).to(device)
            reverse_bd, forward_bd = model(new[everyone[rank * share : (rank + 1) * share]])
            # Stored embeddings and labels of the other workers are at hand; only what the heads made is gathered.
            batch = LossBatch(
                reverse_bd, forward_bd, old[everyone], gather(forward_bd), label[everyone], first=rank * share
            )
            return self.loss(batch, training.loss)

        flops = train_map(
            torch.optim.Adam([p for p in heads.parameters() if p.requires_grad], lr=training.lr),
            training.epochs,
            lambda epoch: balanced_batches(rows_of, training.classes, training.items, rng),
            loss_of,
            lambda epoch, step: warmup_cosine(epoch - 1, training.epochs, 0),
            on_epoch,
        )
        return Fitted(heads.eval(), flops)


def classes_of(
    data: TrainSet, settings: HeadTraining, needs_labels: bool = True
) -> tuple[NDArray[np.int64], HeadTraining]:
    """The class of each item as a number; without labels each item is a class of its own, in batches of the same size.

    The same holds where all labels are equal and the loss does not need them.
    """
    if data.label is None or (not needs_labels and len(np.unique(data.label)) < 2):
        whole = replace(settings, classes=settings.classes * settings.items, items=1)
        return np.arange(len(data)), whole
    return np.unique(data.label, return_inverse=True)[1], settings


def anchors_per_worker(label_N: NDArray[np.integer], settings: HeadTraining, workers: int) -> int:
    """Each worker's share of a batch.

    Raises:
        InputError: fewer than 2 classes, or a batch that the workers cannot share.
    """
    classes = min(settings.classes, len(np.unique(label_N)))
    if classes < 2:
        raise InputError("training heads needs items of at least 2 classes in the train split")
    share, rest = divmod(classes * settings.items, workers)
    if rest or share < 2:
        raise InputError(
            f"a batch of {classes} classes x {settings.items} items cannot be shared by {workers} workers; "
            "change --heads.items or --workers.number"
        )
    return share


def rows_by_class(label_N: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """The row numbers of each class, ascending. Cost: sorting: seconds for a million rows, so once a training."""
    _, counts = np.unique(label_N, return_counts=True)
    return np.split(np.argsort(label_N, kind="stable"), np.cumsum(counts)[:-1])


def balanced_batches(
    rows_of: Sequence[NDArray[np.int64]], classes: int, items: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """One epoch of class-balanced batches of row numbers: classes x items each, about N rows in all.

    Every class comes up once before any comes up again; a class with fewer rows than ``items`` repeats some.
    rows_of: each class's rows (``rows_by_class``).
    """
    per_batch = min(classes, len(rows_of))
    queue: list[int] = []
    for _ in range(max(1, sum(map(len, rows_of)) // (per_batch * items))):
        if len(queue) < per_batch:
            waiting = set(queue)
            queue += [c for c in rng.permutation(len(rows_of)).tolist() if c not in waiting]
        drawn, queue = queue[:per_batch], queue[per_batch:]
        yield np.concatenate([rng.choice(rows_of[c], items, replace=len(rows_of[c]) < items) for c in drawn])
