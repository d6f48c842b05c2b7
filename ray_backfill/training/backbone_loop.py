"""Trains one backbone as a classifier of its classes, alone or under DDP.

Source: FastFill, section 5.1 (SGD, warm-up, cosine, label smoothing). Shapes: N rows, W workers, B batch of a worker.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.datasets import ImageSource
from ray_backfill.errors import InputError, require_positive
from ray_backfill.models.backbones import Backbone, pixels_to_float
from ray_backfill.models.checkpoints import BackboneInfo, load_backbone, save_backbone
from ray_backfill.models.gather import gather, rank_and_size
from ray_backfill.training import pixels as pixel_feed
from ray_backfill.training.augment import Augmentation, augment
from ray_backfill.training.pixels import PixelFeed
from ray_backfill.training.schedule import warmup_cosine


@dataclass(frozen=True)
class BackboneTraining:
    """How a backbone is trained."""

    epochs: int = 100
    # Images a step, over all workers together.
    batch: int = 1024
    # Peak learning rate, at that batch.
    lr: float = 1.024
    momentum: float = 0.875
    weight_decay: float = 2.0**-15
    warmup_epochs: int = 5
    label_smoothing: float = 0.1
    seed: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch", "lr")


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured, over all workers. save: writes a checkpoint to continue from."""

    epoch: int
    loss: float
    accuracy: float
    save: Callable[[Path], None]


def images_per_worker(n_rows: int, classes: list[int], settings: BackboneTraining, workers: int) -> int:
    """Each worker's share of a batch.

    Raises:
        InputError: fewer than 2 classes, or too few images for a batch.
    """
    if len(classes) < 2:
        raise InputError(f"training a backbone needs at least 2 classes, got {len(classes)}")
    share = min(settings.batch, n_rows) // workers
    if share < 2:
        raise InputError(f"{n_rows} images (batch {settings.batch}) are too few for {workers} workers")
    return share


def train_backbone(
    source: ImageSource,
    rows: NDArray[np.int64],
    info: BackboneInfo,
    settings: BackboneTraining,
    device: torch.device | None = None,
    resume_from: Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> tuple[Backbone, dict[int, str]]:
    """Train on the given rows of the train split; under DDP every worker calls this with the same arguments.

    resume_from: a folder that ``Epoch.save`` wrote; training goes on after its epoch.
    Returns: the network, and the broken images this worker met, row -> reason.

    Raises:
        InputError: see ``images_per_worker``.
    """
    device = device or torch.device("cpu")
    rank, size = rank_and_size()
    batch = images_per_worker(len(rows), info.classes, settings, size)
    torch.manual_seed(settings.seed)
    network = info.build().to(device)
    optimizer = torch.optim.SGD(
        network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=True
    )
    done = _restore(resume_from, network, optimizer, device) if resume_from else 0
    # Some Hugging Face models have parameters that a plain forward pass does not use (DINOv2's mask token).
    unused = info.backbone.arch.startswith("hf:")
    model: nn.Module = DistributedDataParallel(network, find_unused_parameters=unused) if size > 1 else network
    steps = len(rows) // (batch * size)
    labels = source.items("train").labels_N
    feed = PixelFeed(source, rows, cache_bytes=pixel_feed.CACHE_BYTES // size)

    for epoch in range(done + 1, settings.epochs + 1):
        torch.manual_seed(settings.seed * 1_000_003 + epoch * 1009 + rank)  # augmentation; the same after a resume
        model.train()
        mine = rows[_batches(len(rows), batch * size, settings.seed, epoch)[:, rank * batch : (rank + 1) * batch]]
        sums = torch.zeros(3, device=device)  # loss, right answers, images
        for step, (step_rows, (pixels, readable)) in enumerate(zip(mine, feed.batches(mine), strict=True)):
            factor = warmup_cosine((epoch - 1) * steps + step, settings.epochs * steps, settings.warmup_epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * factor
            target = torch.from_numpy(np.searchsorted(info.classes, labels[step_rows])).to(device)
            weight = torch.from_numpy(readable).to(device)
            _, logits = model(augment(pixels_to_float(pixels.to(device)), settings.augmentation))
            losses = F.cross_entropy(logits, target, label_smoothing=settings.label_smoothing, reduction="none")
            # Divided by the size of the batch: each readable image weighs the same, a broken one nothing. (As a black
            # image it does enter the statistics of BatchNorm, so that all workers keep batches of one size.)
            loss = (losses * weight).sum() / batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = ((logits.argmax(1) == target) & weight).sum()
            sums += torch.stack([loss.detach() * batch, right, weight.sum()])
        if on_epoch is not None:
            loss_sum, right_sum, seen = gather(sums[None]).sum(0).tolist()
            seen = max(1, seen)
            on_epoch(Epoch(epoch, loss_sum / seen, right_sum / seen, _saver(network, info, optimizer, epoch)))
    network.eval()
    return network, feed.broken


def _batches(n_rows: int, batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """(steps, batch) a fresh permutation of the rows cut into batches; the rest of an epoch is left out."""
    order = np.random.default_rng([seed, epoch]).permutation(n_rows)
    return order[: n_rows // batch * batch].reshape(-1, batch)


def _saver(
    network: Backbone, info: BackboneInfo, optimizer: torch.optim.Optimizer, epoch: int
) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        save_backbone(folder, network, info)
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        (folder / "epoch.json").write_text(json.dumps({"epoch": epoch}))

    return save


def _restore(folder: Path, network: Backbone, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Load a checkpoint into network and optimizer; returns its epoch."""
    saved, _ = load_backbone(folder)
    network.load_state_dict(saved.state_dict())
    # weights_only: tensors and plain values, nothing that could run code.
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt", map_location=device, weights_only=True))
    return int(json.loads((folder / "epoch.json").read_text())["epoch"])


def training_rows(labels_N: NDArray[np.int64], classes: list[int]) -> NDArray[np.int64]:
    """Rows of the train split whose label is among ``classes``, ascending."""
    return np.flatnonzero(np.isin(labels_N, classes))
