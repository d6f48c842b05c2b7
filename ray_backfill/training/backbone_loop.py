"""Trains one backbone, as a classifier of its classes or by another objective, alone or under DDP.

Source: FastFill, section 5.1 (SGD, warm-up, cosine, label smoothing). Shapes: N rows, W workers, B batch of a worker.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.errors import InputError, require_positive
from ray_backfill.images import ImageSource
from ray_backfill.models.backbones import Backbone, pixels_to_float
from ray_backfill.models.checkpoints import BackboneInfo
from ray_backfill.models.gather import gather, rank_and_size
from ray_backfill.training import pixels as pixel_feed
from ray_backfill.training.arithmetic import counted_flops
from ray_backfill.training.augment import Augmentation, augment
from ray_backfill.training.feeding import Work
from ray_backfill.training.objective import Classification, MakeObjective, Objective, ObjectiveSettings, OldModel
from ray_backfill.training.old_model import freeze_old
from ray_backfill.training.pixels import PixelFeed
from ray_backfill.training.schedule import warmup_cosine


@dataclass(frozen=True)
class BackboneTraining(ObjectiveSettings):
    """How a backbone is trained."""

    # Passes over the images.
    epochs: int = 100
    # Images a step, over all workers together.
    batch: int = 1024
    # Peak learning rate, at that batch.
    lr: float = 1.024
    # Nesterov's, of SGD.
    momentum: float = 0.875
    # Pull of every weight towards 0 (L2).
    weight_decay: float = 2.0**-15
    # Epochs in which the learning rate rises.
    warmup_epochs: int = 5
    # Random seed for the first weights, the order of the images and their views.
    seed: int = 0
    # How views of the training images differ from them.
    augmentation: Augmentation = field(default_factory=Augmentation)
    # Of the two views that SimCLR compares (the side-information model).
    pair_augmentation: Augmentation = field(
        default_factory=lambda: Augmentation(rotate_deg=15.0, shift=0.15, zoom=0.2, colour=0.2)
    )
    # SimCLR's peak learning rate as a share of lr: its gradients are steeper than a classifier's.
    pair_lr_share: float = 0.3

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch", "lr", "arcface_scale", "pair_lr_share")


@dataclass(frozen=True)
class TrainedBackbone:
    """What a training leaves. broken: images that this worker met, row -> reason.

    flops: floating-point operations of the whole training over all workers (see ``counted_flops``), the part before a
    resume and the frozen old model included. work: of this worker, in the epochs of this call.
    """

    network: Backbone
    broken: dict[int, str]
    flops: int
    work: Work


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured, over all workers. waited: share of this worker's time so far in which it had no pixels.

    save: writes a checkpoint to continue from.
    """

    epoch: int
    loss: float
    accuracy: float
    waited: float
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
    make_objective: MakeObjective = Classification,
    old: OldModel | None = None,
    threads: int = 1,
) -> TrainedBackbone:
    """Train on the given rows of the train split; under DDP every worker calls this with the same arguments.

    resume_from: a folder that ``Epoch.save`` wrote; training goes on after its epoch.
    old: for objectives that need the old model. threads: that decode.

    Raises:
        InputError: see ``images_per_worker``.
    """
    device = device or torch.device("cpu")
    rank, size = rank_and_size()
    batch = images_per_worker(len(rows), info.classes, settings, size)
    feed = PixelFeed(source, rows, threads, pixel_feed.CACHE_BYTES // size)
    labels = source.items("train").labels_N
    targets = np.searchsorted(info.classes, labels)
    frozen = freeze_old(old, info, feed, rows, targets, device) if old else None
    objective = _untrained(info, settings, make_objective, frozen, device)
    optimizer, peak = _optimizer(objective, settings)
    done, flops_of_step = _restore(resume_from, objective, optimizer, device) if resume_from else (0, 0)
    model = _parallel(objective, info, size)
    steps = len(rows) // (batch * size)
    started, started_cpu = time.perf_counter(), time.process_time()

    for epoch in range(done + 1, settings.epochs + 1):
        torch.manual_seed(settings.seed * 1_000_003 + epoch * 1009 + rank)  # augmentation; the same after a resume
        model.train()
        mine = rows[_batches(len(rows), batch * size, settings.seed, epoch)[:, rank * batch : (rank + 1) * batch]]
        sums = torch.zeros(3, device=device)  # loss, right answers, images
        for step, (step_rows, (pixels, readable)) in enumerate(zip(mine, feed.batches(mine), strict=True)):
            factor = warmup_cosine((epoch - 1) * steps + step, settings.epochs * steps, settings.warmup_epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            # A broken image has no target and no loss. (As a black image it does enter the statistics of BatchNorm, so
            # that all workers keep batches of one size.)
            target = torch.from_numpy(np.where(readable, targets[step_rows], -1)).to(device)
            views = _views(pixels_to_float(pixels.to(device)), objective, settings)
            with counted_flops(not flops_of_step) as flops:
                loss_sum, right_sum = _backward(model, views, target, optimizer)
            flops_of_step += flops()
            optimizer.step()
            sums += torch.stack([loss_sum, right_sum, (target >= 0).sum()])
        if on_epoch is not None:
            loss, right, seen = gather(sums[None]).sum(0).tolist()
            save = _saver(objective, optimizer, epoch, flops_of_step)
            waited = feed.times.wait_s / max(time.perf_counter() - started, 1e-9)
            on_epoch(Epoch(epoch, loss / max(1, seen), right / max(1, seen), waited, save))
    network = objective.backbone.eval()
    work = _work(feed, steps * batch * (settings.epochs - done), started, started_cpu)
    return TrainedBackbone(network, feed.broken, flops_of_step * steps * settings.epochs * size, work)


def _optimizer(objective: Objective, settings: BackboneTraining) -> tuple[torch.optim.Optimizer, float]:
    """SGD over what is trained, and its peak learning rate."""
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    peak = settings.lr * (settings.pair_lr_share if objective.n_views > 1 else 1)
    return torch.optim.SGD(trained, peak, settings.momentum, weight_decay=settings.weight_decay, nesterov=True), peak


def _parallel(objective: Objective, info: BackboneInfo, size: int) -> nn.Module:
    """Under DDP where there are several workers."""
    # Some Hugging Face models have parameters that a plain forward pass does not use (DINOv2's mask token).
    unused = info.backbone.arch.startswith("hf:")
    return DistributedDataParallel(objective, find_unused_parameters=unused) if size > 1 else objective


def _work(feed: PixelFeed, images: int, started: float, started_cpu: float) -> Work:
    """What this worker has done since then (by ``perf_counter`` and ``process_time``)."""
    return Work(
        images=images,
        model_s=time.perf_counter() - started - feed.times.wait_s,
        cpu_s=time.process_time() - started_cpu,
        **asdict(feed.times),
    )


def _untrained(
    info: BackboneInfo,
    settings: BackboneTraining,
    make_objective: MakeObjective,
    frozen: OldModel | None,
    device: torch.device,
) -> Objective:
    """The network with its loss, its weights drawn from the seed."""
    torch.manual_seed(settings.seed)
    network = info.build().to(device)
    assert network.cosine_scale == settings.cosine_scale
    return make_objective(network, info, settings, frozen).to(device)


def _views(images_BCSS: Tensor, objective: Objective, settings: BackboneTraining) -> list[Tensor]:
    """As many random views of each image as the objective compares."""
    how = settings.augmentation if objective.n_views == 1 else settings.pair_augmentation
    return [augment(images_BCSS, how) for _ in range(objective.n_views)]


def _backward(
    model: nn.Module, views: list[Tensor], target: Tensor, optimizer: torch.optim.Optimizer
) -> tuple[Tensor, Tensor]:
    """Leaves gradients in the parameters; returns the sum of losses and the number of right answers."""
    losses, right = model(views, target)
    # Divided by the size of the batch: each readable image weighs the same.
    optimizer.zero_grad()
    (losses.sum() / len(target)).backward()
    return losses.detach().sum(), (right & (target >= 0)).sum()


def _batches(n_rows: int, batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """(steps, batch) a fresh permutation of the rows cut into batches; the rest of an epoch is left out."""
    order = np.random.default_rng([seed, epoch]).permutation(n_rows)
    return order[: n_rows // batch * batch].reshape(-1, batch)


def _saver(
    objective: Objective, optimizer: torch.optim.Optimizer, epoch: int, flops_of_step: int
) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        torch.save(objective.state_dict(), folder / "objective.pt")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        (folder / "epoch.json").write_text(json.dumps({"epoch": epoch, "flops_of_step": flops_of_step}))

    return save


def _restore(
    folder: Path, objective: Objective, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[int, int]:
    """Load a checkpoint into objective and optimizer; returns its epoch and the arithmetic of a step."""
    # weights_only: tensors and plain values, nothing that could run code.
    objective.load_state_dict(torch.load(folder / "objective.pt", map_location=device, weights_only=True))
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt", map_location=device, weights_only=True))
    facts = json.loads((folder / "epoch.json").read_text())
    return int(facts["epoch"]), int(facts["flops_of_step"])


def training_rows(labels_N: NDArray[np.int64], classes: list[int]) -> NDArray[np.int64]:
    """Rows of the train split whose label is among ``classes``, ascending."""
    return np.flatnonzero(np.isin(labels_N, classes))
