"""FastFill: FCT's transformation with an additional classification loss and an estimate of its uncertainty.

Source: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023, eq. 3 to 5, and the authors' public code;
Ramanujan et al., "Forward Compatible Training", 2022, eq. 3. The plain l2 loss without uncertainty is FCT's (table 5),
the method ``fct``. A model that came without a classifier gets one here, fitted on its embeddings and calibrated on
items held out.

Shapes: N training items, b items per worker, d dimensions of the target model, C classes of its classifier.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from ray_backfill.data.folder import Classifier
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.models.backbones import class_logits
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.training.fit import (
    Device,
    Fitted,
    OnEpoch,
    TrainSet,
    check_classes,
    class_rows,
    known_classifier,
)  # fmt: skip
from ray_backfill.learn.training.map_loop import all_views, for_all_views, train_by_items
from ray_backfill.learn.training.objective import classification_losses
from ray_backfill.learn.training.settings import ClassificationSettings, TransformSettings, TransformTraining

# Gallery items per batch when the uncertainty is computed.
_ROWS = 65_536


class _WithUncertainty(nn.Module):
    """h and its log variance in one forward pass, as DDP requires."""

    def __init__(self, network: Transform) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs_bd: Tensor) -> tuple[Tensor, Tensor | None]:
        h_bd = self.network(*inputs_bd)
        return h_bd, None if self.network.uncertainty is None else self.network.log_variance(h_bd)


def disc_losses(
    h_bd: Tensor, class_b: Tensor, weight_Cd: Tensor, bias_C: Tensor, settings: TransformSettings
) -> Tensor:
    """(b,) classification loss of the frozen classifier on h, 0 for unknown classes (-1).

    Source: FastFill, section 4.2 (L_disc). Deviates if ``relative`` is set: in units of log C, the loss at chance.
    """
    scale = settings.cosine_scale
    logits_bC = class_logits(h_bd, weight_Cd, None if scale else bias_C, scale)
    losses_b = classification_losses(logits_bC, class_b, settings, scale)
    return losses_b / math.log(len(weight_Cd)) if settings.relative else losses_b


def transform_loss(
    fit: TransformFit,
    settings: TransformSettings,
    h_bd: Tensor,
    log_variance_b: Tensor | None,
    target_bd: Tensor,
    disc_b: Tensor | None,
) -> Tensor:
    """Mean over items of l2 + disc; with uncertainty 0.5 exp(-s) (l2 + disc) + lambda s, s = log sigma^2.

    Source: FastFill, eq. 3 (l2 + disc, here with a weight of disc), eq. 5 (with uncertainty; the factor 0.5 is that of
    the authors' code), section 4.2 (l2, here the mean over the dimensions, as in the code). disc_b: ``disc_losses``.
    """
    losses_b = torch.zeros(len(h_bd), dtype=h_bd.dtype, device=h_bd.device)
    if fit.l2:
        losses_b = losses_b + (h_bd - target_bd).square().mean(1)
    if disc_b is not None:
        losses_b = losses_b + settings.disc_weight * disc_b
    if log_variance_b is not None:
        losses_b = 0.5 * (-log_variance_b).exp() * losses_b + settings.uncertainty_weight * log_variance_b
    return losses_b.mean()


def train_transform(
    fit: TransformFit, data: TrainSet, training: TransformTraining, device: Device = None, on_epoch: OnEpoch = None
) -> Fitted:
    """Train the transformation that ``fit`` declares; under DDP every worker calls this with the same arguments.

    If the losses are ``relative``, it is trained on embeddings divided by their spread, and the factors are then moved
    into its first and last layers: the same map results, whatever the scale of the embeddings.
    """
    settings = training.loss
    scale = {name: spread(data.vectors[name]) if settings.relative else 1.0 for name in fit.models}
    inputs = [all_views(data, name, device).div_(scale[name]) for name in fit.inputs]
    target = all_views(data, fit.target, device).div_(scale[fit.target])
    class_KN = torch.full((len(target),), -1, device=device)
    classifier = None
    if fit.disc:
        label_N = np.asarray(data.label)
        known = known_classifier(data, fit.target) or fit_classifier(data.vectors[fit.target], label_N, settings)
        class_KN = for_all_views(data, class_rows(known, label_N), device)
        weight, bias = (torch.from_numpy(np.array(v, np.float32)).to(device) for v in (known.weight, known.bias))
        classifier = weight * scale[fit.target], bias
    torch.manual_seed(training.seed)
    dims = [x.shape[1] for x in inputs]
    network = Transform(dims, target.shape[1], training.hidden, fit.uncertainty).to(device)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        h_bd, log_variance_b = model(*(x[rows] for x in inputs))
        disc_b = disc_losses(h_bd, class_KN[rows], *classifier, settings) if classifier else None
        return transform_loss(fit, settings, h_bd, log_variance_b, target[rows], disc_b)

    flops = train_by_items(_WithUncertainty(network), data, training, loss_of, device, on_epoch)
    network.rescale([scale[name] for name in fit.inputs], scale[fit.target])
    return Fitted(network.eval(), flops)


def log_variances(h_Nd: FloatArray, network: Transform) -> NDArray[np.float64]:
    """(N,) log sigma^2 of items, from h of their stored embeddings. Source: FastFill, section 4.2."""
    parts = []
    with torch.inference_mode():
        for first in range(0, len(h_Nd), _ROWS):
            parts.append(network.log_variance(torch.from_numpy(h_Nd[first : first + _ROWS])).double().numpy())
    return np.concatenate(parts)


# Share of each class that is held out; at least one item of every class that has two.
_HELD_OUT = 0.2
# Steps of Adam, items in each, and the peak learning rate for embeddings of spread 1.
_STEPS, _BATCH, _LR = 500, 512, 0.05
# L2 penalty on the weights: without one, classes that can be separated have weights without bound.
_DECAY = 1e-3
# Most items that the temperature is fitted on, and how many at a time.
_CALIBRATED, _PART = 10_000, 512
# Natural logarithms of the lowest and the highest temperature.
_TEMPERATURES = (-5.0, 5.0)


def fit_classifier(
    vectors_Nd: NDArray[np.floating], label_N: NDArray[Any], settings: ClassificationSettings
) -> Classifier:
    """Multinomial logistic regression by the loss of ``settings``, or an ArcFace classifier.

    It stands in for the new model's own classifier, which FastFill's loss needs and a folder may lack. It is fitted
    afterwards on the stored train embeddings, so it is not the one for which the new model was trained.

    It is fitted on four fifths of each class. Logits are divided by the temperature that fits the others best. So
    neither many dimensions nor a model that knows its train split by heart makes it more certain than it is right.
    ArcFace has no temperature: ``settings`` fixes the scale of its logits.

    The scale of the embeddings does not matter: the classifier of c times the vectors has 1 / c times the weights.

    Raises:
        InputError: There are fewer than two classes, or none has two items.
    """
    check_classes(label_N)
    names, class_N = np.unique(label_N, return_inverse=True)
    held_N = held_out(class_N)
    wide = np.asarray(vectors_Nd, np.float64)
    # ArcFace compares directions from the origin, which must not be moved.
    centre = wide.mean(0) if settings.cosine_scale is None else np.zeros(wide.shape[1])
    scale = spread(wide)
    x_Nd = torch.from_numpy(((wide - centre) / scale).astype(np.float32))
    target_N = torch.from_numpy(class_N)
    kept = np.flatnonzero(~held_N)
    weight_Cd, bias_C = _regression(x_Nd[kept], target_N[kept], len(names), settings)
    if settings.cosine_scale is None:
        held = np.random.default_rng(0).permutation(np.flatnonzero(held_N))[:_CALIBRATED]
        t = _temperature(x_Nd[held], target_N[held], weight_Cd, bias_C, settings)
        weight_Cd, bias_C = weight_Cd / t, bias_C / t
    weight = weight_Cd.double().numpy() / scale
    bias = bias_C.double().numpy() - weight @ centre
    return Classifier(names, weight.astype(np.float32), bias.astype(np.float32))


def spread(vectors_Nd: NDArray[np.floating]) -> float:
    """The root mean square deviation of a dimension from its mean; 1 if all vectors are equal."""
    return float(np.sqrt(np.asarray(vectors_Nd, np.float64).var(0).mean())) or 1.0


def held_out(class_N: NDArray[np.integer]) -> NDArray[np.bool_]:
    """(N,) whether an item is held out: a random fifth of each class, but at least one item and never its only one."""
    shuffled = np.random.default_rng(0).permutation(len(class_N))
    in_classes = shuffled[np.argsort(class_N[shuffled], kind="stable")]
    counts = np.bincount(class_N)
    place = np.arange(len(class_N)) - np.repeat(np.cumsum(counts) - counts, counts)
    number = np.where(counts > 1, np.maximum(1, (_HELD_OUT * counts).astype(np.int64)), 0)
    held = np.zeros(len(class_N), np.bool_)
    held[in_classes] = place < np.repeat(number, counts)
    return held


def _regression(
    x_Nd: Tensor, target_N: Tensor, n_classes: int, settings: ClassificationSettings
) -> tuple[Tensor, Tensor]:
    """Weights (C, d) and bias (C,) that minimise the mean loss, from 0 on, or from the class means for ArcFace."""
    scale, dim = settings.cosine_scale, x_Nd.shape[1]
    weight_Cd = torch.zeros(n_classes, dim)
    if scale is not None:  # cosines to 0 have no direction
        weight_Cd.index_add_(0, target_N, torch.nn.functional.normalize(x_Nd, dim=1))
    weight_Cd.requires_grad_(True)
    bias_C = torch.zeros(n_classes, requires_grad=scale is None)
    optimizer = torch.optim.Adam([weight_Cd, bias_C] if scale is None else [weight_Cd], _LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    rng = np.random.default_rng(0)
    for _ in range(_STEPS):
        rows = torch.from_numpy(rng.integers(len(x_Nd), size=_BATCH))
        logits_BC = class_logits(x_Nd[rows], weight_Cd, bias_C, scale)
        loss = classification_losses(logits_BC, target_N[rows], settings, scale).mean()
        if scale is None:
            loss = loss + 0.5 * _DECAY * weight_Cd.square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return weight_Cd.detach(), bias_C.detach()


def _temperature(
    x_Nd: Tensor, target_N: Tensor, weight_Cd: Tensor, bias_C: Tensor, settings: ClassificationSettings
) -> float:
    """The divisor of the logits with the least mean cross-entropy on these items.

    Targets are smoothed by at least 1 / (N + 2), as Platt's are: if all predictions are right, their number still
    limits how certain they may be.
    """
    smoothing = max(settings.label_smoothing, 1 / (len(x_Nd) + 2))

    def loss(log_t: float) -> float:
        total = 0.0
        for first in range(0, len(x_Nd), _PART):
            logits_BC = class_logits(x_Nd[first : first + _PART], weight_Cd, bias_C, None) / np.exp(log_t)
            total += float(
                torch.nn.functional.cross_entropy(
                    logits_BC, target_N[first : first + _PART], label_smoothing=smoothing, reduction="sum"
                )
            )
        return total / len(x_Nd)

    return float(np.exp(minimize_scalar(loss, bounds=_TEMPERATURES, method="bounded").x))
