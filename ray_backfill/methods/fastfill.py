"""FastFill: FCT's transformation trained to be classified right, too, and to know how uncertain it is.

Source: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023. The plain l2 loss without uncertainty is
FCT's (table 5), so the method ``fct`` stands for it.

Shapes: b items, d dimensions of the new model, C classes of its classifier.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.errors import InputError, require_positive
from ray_backfill.methods import Embeddings, Method, TransformLoss
from ray_backfill.methods._objective import ObjectiveSettings, classification_losses
from ray_backfill.methods.fct import transform_method
from ray_backfill.models.backbones import class_logits
from ray_backfill.models.maps import transform
from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray

# Gallery items whose uncertainty is computed at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class TransformSettings:
    """What is settable in the loss of a transformation."""

    # Weight of the classification loss beside the l2 loss (lambda of FastFill, eq. 5).
    disc_weight: float = 1.0
    # Of the classification loss: softmax, or arcface (for faces: the new model must have been trained so).
    classification: Literal["softmax", "arcface"] = "softmax"
    # Of softmax only.
    label_smoothing: float = 0.1
    # ArcFace: angle, in radians, by which an item must be closer to its own class.
    arcface_margin: float = 0.5
    # ArcFace: what cosines are multiplied by.
    arcface_scale: float = 64.0

    def __post_init__(self) -> None:
        require_positive(self, "disc_weight")


def disc_losses(
    h_bd: Tensor, class_b: Tensor, weight_Cd: Tensor, bias_C: Tensor, settings: TransformSettings
) -> Tensor:
    """(b,) classification loss of the frozen classifier on h, 0 where it does not know the class (-1).

    Source: FastFill, eq. 4.
    """
    objective = ObjectiveSettings(
        settings.classification, settings.label_smoothing, settings.arcface_margin, settings.arcface_scale
    )
    scale = objective.cosine_scale
    logits_bC = class_logits(h_bd, weight_Cd, None if scale else bias_C, scale)
    return classification_losses(logits_bC, class_b, objective, scale)


def transform_loss(
    fit: TransformLoss,
    settings: TransformSettings,
    h_bd: Tensor,
    log_variance_b: Tensor | None,
    target_bd: Tensor,
    disc_b: Tensor | None,
) -> Tensor:
    """Mean over items of l2 + lambda disc; with uncertainty 0.5 exp(-s) (l2 + lambda disc) + 0.5 s, s = log sigma^2.

    Source: FastFill, eq. 3-7. l2: mean squared error over the dimensions. disc_b: see ``disc_losses``.
    """
    losses_b = torch.zeros(len(h_bd), dtype=h_bd.dtype, device=h_bd.device)
    if fit.l2:
        losses_b = losses_b + (h_bd - target_bd).square().mean(1)
    if disc_b is not None:
        losses_b = losses_b + settings.disc_weight * disc_b
    if log_variance_b is not None:
        losses_b = 0.5 * (-log_variance_b).exp() * losses_b + 0.5 * log_variance_b
    return losses_b.mean()


def class_rows(classifier: Classifier, label_N: NDArray[Any]) -> NDArray[np.int64]:
    """The classifier's row of each label, -1 where it has none."""
    by_label = np.argsort(classifier.label, kind="stable")
    at = np.searchsorted(classifier.label, label_N, sorter=by_label).clip(max=len(by_label) - 1)
    rows = by_label[at]
    return np.where(classifier.label[rows] == label_N, rows, -1)


def pseudo_classifier(vectors_Nd: NDArray[np.floating], label_N: NDArray[Any]) -> Classifier:
    """A classifier for embeddings that came without theirs: linear discriminants of the class means.

    Normal distributions around each class mean with one variance for all dimensions and classes, equal priors: weight
    mean / variance, bias -|mean|^2 / (2 variance).

    Raises:
        InputError: no class has two different items, so that there is no variance.
    """
    names, class_N = np.unique(label_N, return_inverse=True)
    wide = np.asarray(vectors_Nd, np.float64)
    means = np.zeros((len(names), wide.shape[1]))
    np.add.at(means, class_N, wide)
    means /= np.bincount(class_N)[:, None]
    variance = float(((wide - means[class_N]) ** 2).sum() / (max(1, len(wide) - len(names)) * wide.shape[1]))
    if variance == 0:
        raise InputError("the classification loss needs classes with more than one item in the train split")
    weight, bias = means / variance, -(means**2).sum(1) / (2 * variance)
    return Classifier(names, weight.astype(np.float32), bias.astype(np.float32))


def log_variances(method: Method, e: Embeddings, network: Any) -> NDArray[np.float64]:
    """(N,) log sigma^2 of each gallery item, from its stored embeddings alone. Source: section 4.2."""
    assert isinstance(method.fit, TransformLoss)
    inputs = [e.gallery[name] for name in method.fit.inputs]
    parts = []
    with torch.inference_mode():
        for first in range(0, len(inputs[0]), _ROWS):  # a gallery may be too large to be transformed at once
            h_Nd = transform(network, *(x[first : first + _ROWS] for x in inputs))
            parts.append(network.log_variance(torch.from_numpy(h_Nd)).double().numpy())
    return np.concatenate(parts)


def item_losses(
    network: Any,
    classifier: Classifier,
    old_Nd: FloatArray,
    new_Nd: FloatArray,
    label_N: NDArray[Any],
    settings: TransformSettings,
) -> NDArray[np.float64]:
    """(N,) l2 + lambda disc of each item: what the uncertainty should foretell. Source: FastFill, appendix E.

    NaN for items of classes that the classifier does not know: their loss is not known either.
    """
    h_Nd = torch.from_numpy(transform(network, old_Nd))
    weight, bias = (torch.from_numpy(v.copy()) for v in (classifier.weight, classifier.bias))
    with torch.inference_mode():
        l2_N = (h_Nd - torch.from_numpy(np.array(new_Nd, np.float32))).square().mean(1)
        rows_N = torch.from_numpy(class_rows(classifier, label_N))
        disc_N = disc_losses(h_Nd, rows_N, weight, bias, settings).masked_fill(rows_N < 0, torch.nan)
        return (l2_N + settings.disc_weight * disc_N).double().numpy()


METHODS = (
    transform_method(
        "fastfill", "FastFill", "eq. 7: l2 + disc with uncertainty", TransformLoss(disc=True, uncertainty=True)
    ),
    transform_method("fastfill_l2_disc", "FastFill l2+disc", "eq. 5", TransformLoss(disc=True)),
    transform_method("fastfill_disc", "FastFill disc", "eq. 4", TransformLoss(l2=False, disc=True)),
    transform_method("fastfill_l2_u", "FastFill l2, uncertain", "eq. 7 without disc", TransformLoss(uncertainty=True)),
    transform_method(
        "fastfill_disc_u",
        "FastFill disc, uncertain",
        "eq. 7 without l2",
        TransformLoss(l2=False, disc=True, uncertainty=True),
    ),
)
