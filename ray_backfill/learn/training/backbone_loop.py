"""Trains one backbone as a classifier or by another objective, with or without DDP.

Source: FastFill, appendix A.2 (SGD, warm-up, cosine) and section 4.2 (label smoothing).
Shapes: N rows, W workers, B batch per worker.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import State, Task
from ray_backfill.images.source import ImageSource
from ray_backfill.learn.models.apply import counted_flops
from ray_backfill.learn.models.backbones import Backbone, BackboneInfo, pixels_to_float, shapes_only
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training import batches
from ray_backfill.learn.training.batches import PixelFeed, Work, augment
from ray_backfill.learn.training.map_loop import warmup_cosine
from ray_backfill.learn.training.objective import (
    Classification,
    MakeObjective,
    Objective,
    OldModel,
    PlainImages,
    freeze_old,
)
from ray_backfill.learn.training.settings import BackboneTraining

# Images of a step whose cost is counted by running it, for models that cannot be built without data.
_FEW = 2
# What CUDA's context, its libraries and workspaces of cuDNN take beside tensors: an estimate.
_CUDA_BYTES = int(1.5e9)


@dataclass(frozen=True)
class TrainedBackbone:
    """Result of a training. broken: unreadable images that this worker met, row -> reason.

    flops: floating-point operations of the whole training over all workers (see ``counted_flops``), including the
    part before a resume and the frozen old model. work: this worker's work in the epochs of this call.
    """

    network: Backbone
    broken: dict[int, str]
    flops: int
    work: Work


@dataclass(frozen=True)
class Epoch:
    """Measurements of one epoch over all workers. waited: share of its time that this worker waited for pixels so far.

    shares: see ``Objective.shares``. images_per_s: of all workers. save: writes a checkpoint from which to resume.
    """

    epoch: int
    loss: float
    accuracy: float
    waited: float
    shares: Mapping[str, float]
    images_per_s: float
    save: Callable[[Path], None]


def images_per_worker(n_rows: int, classes: list[int], settings: BackboneTraining, workers: int) -> int:
    """Number of images per worker in a batch.

    Raises:
        InputError: There are fewer than 2 classes, or too few images for a batch.
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
    shown: Task | None = None,
) -> TrainedBackbone:
    """Train on the given rows of the train split; under DDP every worker calls this with the same arguments.

    resume_from: a folder written by ``Epoch.save``. old: the old model, if the objective needs it. threads: decoders.
    shown: counts the steps of all epochs.

    Raises:
        InputError: See ``images_per_worker``.
    """
    device, (_, size) = device or torch.device("cpu"), rank_and_size()
    batch = images_per_worker(len(rows), info.classes, settings, size)
    feed = PixelFeed(source, rows, threads, batches.CACHE_BYTES // size)
    targets = np.searchsorted(info.classes, source.items("train").labels_N)
    images = PlainImages(feed, rows, targets, device)
    frozen = freeze_old(old, info, images, settings.compatible.pseudo_weights) if old else None
    torch.manual_seed(settings.seed)
    objective = make_objective(info.build().to(device), info, settings, frozen).to(device)
    steps = len(rows) // (batch * size)
    training = _Training(objective, info, settings, steps, resume_from)
    done, started, started_cpu = training.epoch, time.perf_counter(), time.process_time()
    shown = shown or Task(State("task", "train"))
    shown.expect(steps * settings.epochs, steps * done)
    for epoch in range(done + 1, settings.epochs + 1):
        mine, began = training.begin(epoch, rows, batch), time.perf_counter()
        sums = torch.zeros(3, device=device)  # loss, right answers, images
        for step, (step_rows, (pixels, readable)) in enumerate(zip(mine, feed.batches(mine), strict=True)):
            # A broken image has no target and no loss. (It enters the statistics of BatchNorm as a black image, so that
            # all workers keep batches of the same size.)
            target = torch.from_numpy(np.where(readable, targets[step_rows], -1)).to(device)
            sums += training.step(step, pixels_to_float(pixels.to(device)), target)
            shown.advance()
        if on_epoch is not None:
            loss, right, seen = gather(sums[None]).sum(0).tolist()
            now, seen = time.perf_counter(), max(1, seen)
            waited, rate = feed.times.wait_s / max(now - started, 1e-9), seen / max(now - began, 1e-9)
            on_epoch(Epoch(epoch, loss / seen, right / seen, waited, objective.shares(), rate, training.save))
    work = Work(
        images=steps * batch * (settings.epochs - done),
        model_s=time.perf_counter() - started - feed.times.wait_s,
        cpu_s=time.process_time() - started_cpu,
        **asdict(feed.times),
    )
    flops = training.flops_of_step * steps * settings.epochs * size
    return TrainedBackbone(objective.backbone.eval(), feed.broken, flops, work)


class _Training:
    """State that a step changes and a checkpoint contains: the objective, its optimizer and the epoch."""

    def __init__(
        self, objective: Objective, info: BackboneInfo, settings: BackboneTraining, steps: int, resume_from: Path | None
    ) -> None:
        """steps: steps per epoch."""
        self.objective, self.settings, self.steps = objective, settings, steps
        self.epoch, self.flops_of_step = 0, 0
        self.is_pair = objective.n_views > 1
        self.peak = settings.lr * (settings.pair_lr_share if self.is_pair else 1)
        trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(
            trained, self.peak, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov
        )
        if resume_from:
            self._restore(resume_from)
        # Some Hugging Face models have parameters that a plain forward pass does not use (DINOv2's mask token).
        unused = info.backbone.arch.startswith("hf:")
        is_shared = rank_and_size()[1] > 1
        self.model = DistributedDataParallel(objective, find_unused_parameters=unused) if is_shared else objective

    def begin(self, epoch: int, rows: NDArray[np.int64], batch: int) -> NDArray[np.int64]:
        """Returns this worker's batches, (steps, batch) rows, shuffled differently in each epoch."""
        self.epoch, seed, (rank, size) = epoch, self.settings.seed, rank_and_size()
        torch.manual_seed(seed * 1_000_003 + epoch * 1009 + rank)  # augmentation; the same after a resume
        self.model.train()
        order = np.random.default_rng([seed, epoch]).permutation(rows)[: self.steps * batch * size]
        return order.reshape(self.steps, size, batch)[:, rank]

    def step(self, step: int, images_BCSS: Tensor, target_B: Tensor) -> Tensor:
        """Train on one batch; returns the sum of losses, the numbers of right predictions and of readable images."""
        settings, steps = self.settings, self.steps
        done = (self.epoch - 1) * steps + step
        self.objective.progress = done / (settings.epochs * steps)
        factor = warmup_cosine(done, settings.epochs * steps, settings.warmup_epochs * steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * factor
        how = settings.pair_augmentation if self.is_pair else settings.augmentation
        views = [augment(images_BCSS, how) for _ in range(self.objective.n_views)]
        with counted_flops(not self.flops_of_step) as flops:
            losses, right = self.model(views, target_B)
            self.optimizer.zero_grad()
            # Divided by the size of the batch, so that every readable image has the same weight.
            (losses.sum() / len(target_B)).backward()
        self.flops_of_step += flops()
        self.optimizer.step()
        readable = target_B >= 0
        return torch.stack([losses.detach().sum(), (right & readable).sum(), readable.sum()])

    def save(self, folder: Path) -> None:
        """Write a checkpoint for ``_restore``."""
        torch.save(self.objective.state_dict(), folder / "objective.pt")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        facts = {"epoch": self.epoch, "flops_of_step": self.flops_of_step}
        (folder / "epoch.json").write_text(json.dumps(facts))

    def _restore(self, folder: Path) -> None:
        device = next(self.objective.parameters()).device
        for part, file in ((self.objective, "objective.pt"), (self.optimizer, "optimizer.pt")):
            # weights_only: tensors and plain values, nothing that could run code.
            part.load_state_dict(torch.load(folder / file, map_location=device, weights_only=True))
        facts = json.loads((folder / "epoch.json").read_text())
        self.epoch, self.flops_of_step = int(facts["epoch"]), int(facts["flops_of_step"])


def training_rows(labels_N: NDArray[np.int64], classes: list[int]) -> NDArray[np.int64]:
    """Rows of the train split whose label is among ``classes``, ascending."""
    return np.flatnonzero(np.isin(labels_N, classes))


@dataclass(frozen=True)
class StepCost:
    """Cost of a training step.

    flops: of all workers, including gradients, counted as ``TrainedBackbone.flops``.

    image_bytes: memory of an image on its worker: what the forward pass keeps for the backward pass, and twice the
    largest array of these, for gradients on their way. fixed_bytes: weights, their gradients, momentum and DDP's copy.
    """

    flops: float
    image_bytes: int
    fixed_bytes: int

    def gpu_bytes(self, images: int) -> int:
        """Memory that a GPU needs for a batch of its own, with what CUDA and cuDNN take."""
        return images * self.image_bytes + self.fixed_bytes + _CUDA_BYTES

    def images_in(self, gpu_bytes: float) -> int:
        """Largest batch of a GPU with so much memory."""
        return max(0, int((gpu_bytes - self.fixed_bytes - _CUDA_BYTES) // self.image_bytes))


def step_cost(
    info: BackboneInfo,
    training: BackboneTraining,
    batch: int,
    make_objective: MakeObjective = Classification,
    old: BackboneInfo | None = None,
) -> StepCost:
    """The cost of one training step on ``batch`` images (of all workers).

    old: the frozen old model, for objectives that need it.
    """
    with shapes_only(info.backbone) as costs_nothing:
        counted = batch if costs_nothing else min(batch, _FEW)
        frozen = OldModel(old.build().eval(), old) if old else None
        objective = make_objective(info.build(), info, training, frozen)
        view = torch.zeros(counted, info.channels, info.image_size, info.image_size)
        target = torch.zeros(counted, dtype=torch.long)
        kept: dict[int, UntypedStorage] = {}  # by address; those that live keep theirs

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            return tensor

        with counted_flops() as flops, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            losses, _ = objective([view] * objective.n_views, target)
            losses.sum().backward()
    state = [*objective.parameters(), *objective.buffers()]
    of_state = {tensor.untyped_storage()._cdata for tensor in state}
    sizes = [storage.nbytes() for address, storage in kept.items() if address not in of_state]
    trained = sum(parameter.nbytes for parameter in objective.parameters() if parameter.requires_grad)
    fixed = sum(tensor.nbytes for tensor in state) + 3 * trained
    return StepCost(flops() * batch / counted, (sum(sizes) + 2 * max(sizes, default=0)) // counted, fixed)
