"""Trains maps from stored embeddings to stored embeddings, item by item: FCT's and FastFill's h, and residual MLPs.

Source: FCT, the authors' code (Adam, warm-up, cosine, BatchNorm fixed in the second half).
Shapes: N training items, W workers, b items of a worker, B = W * b.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.errors import InputError, require_positive
from ray_backfill.methods import Adapter, TrainSet, TransformLoss
from ray_backfill.methods.adapters import AdapterSettings, fit_affine
from ray_backfill.methods.fastfill import TransformSettings, class_rows, disc_losses, pseudo_classifier, transform_loss
from ray_backfill.models.gather import gather, rank_and_size
from ray_backfill.models.maps import Residual, ResidualShape, Transform, TransformShape
from ray_backfill.store import Classifier
from ray_backfill.training.arithmetic import counted_flops
from ray_backfill.training.schedule import warmup_cosine


@dataclass(frozen=True)
class TransformTraining:
    """How FCT's and FastFill's transformations are trained, and the MLPs of adapters."""

    epochs: int = 80
    # Items a step, over all workers together.
    batch: int = 1024
    lr: float = 5e-4
    weight_decay: float = 2.0**-15
    warmup_epochs: int = 5
    # After this share of the epochs BatchNorm keeps the statistics it has.
    fixed_norm_from: float = 0.5
    # Width of the two hidden layers of the mixer.
    hidden: int = 2048
    seed: int = 0
    loss: TransformSettings = field(default_factory=TransformSettings)

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch", "lr", "hidden")


def train_transform(
    data: TrainSet,
    fit: TransformLoss,
    settings: TransformTraining,
    device: torch.device | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[Transform, int]:
    """Train one h; under DDP every worker calls this with the same arguments.

    Returns: h, and the floating-point operations of all workers that it took.

    on_epoch: called with the epoch (from 1) and its mean loss over all workers.

    Raises:
        InputError: see ``share_of_batch``; a classification loss without labels.
    """
    device = device or torch.device("cpu")
    torch.manual_seed(settings.seed)
    inputs = [_tensor(data.vectors[name], device) for name in fit.inputs]
    target = _tensor(data.vectors[fit.target], device)
    shape = TransformShape(tuple(x.shape[1] for x in inputs), target.shape[1], settings.hidden, fit.uncertainty)
    network = Transform(shape).to(device)
    class_N = torch.full((len(target),), -1, device=device)
    classifier = None
    if fit.disc:
        known = classifier_of(data, fit)
        class_N = torch.from_numpy(class_rows(known, np.asarray(data.label))).to(device)
        classifier = _tensor(known.weight, device), _tensor(known.bias, device)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        h_bd, log_variance_b = model(*(x[rows] for x in inputs))
        disc_b = disc_losses(h_bd, class_N[rows], *classifier, settings.loss) if classifier else None
        return transform_loss(fit, settings.loss, h_bd, log_variance_b, target[rows], disc_b)

    flops = _train(_WithUncertainty(network), len(target), settings, loss_of, device, on_epoch)
    return network.eval(), flops


def train_residual(
    data: TrainSet,
    fit: Adapter,
    adapters: AdapterSettings,
    settings: TransformTraining,
    unit: bool,
    device: torch.device | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> tuple[Residual, int]:
    """Train one residual MLP on the squared error, from least squares on. Arguments and returns as above."""
    device = device or torch.device("cpu")
    torch.manual_seed(settings.seed)
    base = fit_affine(fit.kind, data.vectors[fit.source], data.vectors[fit.target], adapters, unit)
    shape = ResidualShape(base.shape.input_dim, base.shape.output_dim, unit=unit)
    network = Residual(shape)
    network.base.load_state_dict(base.linear.state_dict())
    network.to(device)
    source, target = (_tensor(data.vectors[name], device) for name in (fit.source, fit.target))
    if unit:
        target = nn.functional.normalize(target, dim=1)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        return (model(source[rows]) - target[rows]).square().sum(1).mean()

    flops = _train(network, len(target), settings, loss_of, device, on_epoch)
    return network.eval(), flops


def share_of_batch(n_items: int, settings: TransformTraining, workers: int) -> int:
    """Each worker's share of a batch. Raises InputError where it is less than 2."""
    share = min(settings.batch, n_items) // workers
    if share < 2:
        raise InputError(f"{n_items} train items (batch {settings.batch}) are too few for {workers} workers")
    return share


class _WithUncertainty(nn.Module):
    """h and its log variance in one forward pass, as DDP wants it."""

    def __init__(self, network: Transform) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs_bd: Tensor) -> tuple[Tensor, Tensor | None]:
        h_bd = self.network(*inputs_bd)
        return h_bd, None if self.network.uncertainty is None else self.network.log_variance(h_bd)


def _train(
    network: nn.Module,
    n_items: int,
    settings: TransformTraining,
    loss_of: Callable[[nn.Module, Tensor], Tensor],
    device: torch.device,
    on_epoch: Callable[[int, float], None] | None,
) -> int:
    """Every worker draws the same batches and takes its share, so W workers train what one worker trains.

    Returns: the floating-point operations of all workers, counted in the first step.
    """
    rank, size = rank_and_size()
    share = share_of_batch(n_items, settings, size)
    model: nn.Module = DistributedDataParallel(network) if size > 1 else network
    optimizer = torch.optim.Adam(network.parameters(), settings.lr, weight_decay=settings.weight_decay)
    steps = n_items // (share * size)
    rng = np.random.default_rng(settings.seed)
    flops_of_step = 0
    for epoch in range(1, settings.epochs + 1):
        network.train()
        if epoch > settings.fixed_norm_from * settings.epochs:
            for module in network.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
        batches = rng.permutation(n_items)[: steps * share * size].reshape(steps, size, share)
        losses = []
        for step, batch in enumerate(batches):
            factor = warmup_cosine((epoch - 1) * steps + step, settings.epochs * steps, settings.warmup_epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * factor
            optimizer.zero_grad()
            with counted_flops(not flops_of_step) as flops:
                loss = loss_of(model, torch.from_numpy(batch[rank]).to(device))
                loss.backward()
            flops_of_step += flops()
            optimizer.step()
            losses.append(loss.detach())
        if on_epoch is not None:
            on_epoch(epoch, float(gather(torch.stack(losses)[None]).mean()))
    return flops_of_step * steps * settings.epochs * size


def classifier_of(data: TrainSet, fit: TransformLoss) -> Classifier:
    """The target model's own classifier, or one made of its class means.

    Raises:
        InputError: no labels; a classifier of another dimension or of none of these classes.
    """
    if data.label is None:
        raise InputError("the classification loss needs labels of the train split")
    if data.classifier is not None and fit.target == "new":
        theirs, ours = data.classifier.weight.shape[1], data.vectors["new"].shape[1]
        if theirs != ours:
            raise InputError(f"classifier.parquet has weights of {theirs} dimensions, the new embeddings have {ours}")
        if data.classifier.label.dtype.kind != np.asarray(data.label).dtype.kind:
            raise InputError("labels of classifier.parquet and of train.parquet are of different types")
        known_N = class_rows(data.classifier, np.asarray(data.label)) >= 0
        if not known_N.any():
            raise InputError("classifier.parquet knows none of the labels of train.parquet")
        if known_N.all():
            return data.classifier
        # Items without this loss would seem certain: a stand-in that knows all classes is fairer.
    return pseudo_classifier(data.vectors[fit.target], data.label)


def _tensor(vectors: NDArray[np.floating], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(vectors, np.float32)).to(device)  # a copy: what Parquet gives is read-only
