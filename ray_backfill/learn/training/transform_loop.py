"""Trains transformations on stored embeddings: loss and training loop of h (FCT and FastFill).

Source: Ramanujan et al., "Forward Compatible Training", 2022, eq. 3; Jaeckle et al., "FastFill", 2023, eq. 3 to 5,
and the authors' public code.
Shapes: N training items, b items per worker, d dimensions of the target model, C classes of its classifier.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.models.backbones import class_logits
from ray_backfill.learn.models.maps import Transform, TransformShape
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.map_loop import all_views, as_tensor, for_all_views, train_by_items
from ray_backfill.learn.training.objective import classification_losses
from ray_backfill.learn.training.settings import TransformSettings, TransformTraining
from ray_backfill.learn.training.stand_in import fit_classifier, spread
from ray_backfill.learn.training.transforms import TransformFit, class_rows, known_classifier

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
    fit: TransformFit,
    data: TrainSet,
    training: TransformTraining,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train the transformation that ``fit`` declares; under DDP every worker calls this with the same arguments.

    If the losses are ``relative``, it is trained on embeddings divided by their spread, and the factors are then moved
    into its first and last layers: the same map results, whatever the scale of the embeddings.
    """
    device, settings = device or torch.device("cpu"), training.loss
    scale = {name: spread(data.vectors[name]) if settings.relative else 1.0 for name in fit.models}
    inputs = [all_views(data, name, device) / scale[name] for name in fit.inputs]
    target = all_views(data, fit.target, device) / scale[fit.target]
    class_KN = torch.full((len(target),), -1, device=device)
    classifier = None
    if fit.disc:
        label_N = np.asarray(data.label)
        known = known_classifier(data, fit.target) or fit_classifier(data.vectors[fit.target], label_N, settings)
        class_KN = for_all_views(data, class_rows(known, label_N), device)
        classifier = as_tensor(known.weight, device) * scale[fit.target], as_tensor(known.bias, device)
    torch.manual_seed(training.seed)
    dims = tuple(x.shape[1] for x in inputs)
    network = Transform(TransformShape(dims, target.shape[1], training.hidden, fit.uncertainty)).to(device)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        h_bd, log_variance_b = model(*(x[rows] for x in inputs))
        disc_b = disc_losses(h_bd, class_KN[rows], *classifier, settings) if classifier else None
        return transform_loss(fit, settings, h_bd, log_variance_b, target[rows], disc_b)

    flops = train_by_items(_WithUncertainty(network), data, training, loss_of, device, on_epoch)
    network.rescale([scale[name] for name in fit.inputs], scale[fit.target])
    return Fitted(network.eval(), flops)


def log_variances(inputs: list[FloatArray], network: Any) -> NDArray[np.float64]:
    """(N,) log sigma^2 of stored embeddings, (N, d) for each input. Source: FastFill, section 4.2."""
    parts = []
    with torch.inference_mode():
        for first in range(0, len(inputs[0]), _ROWS):  # a gallery may be too large to transform at once
            h_Nd = transform(network, *(x[first : first + _ROWS] for x in inputs))
            parts.append(network.log_variance(torch.from_numpy(h_Nd)).double().numpy())
    return np.concatenate(parts)
