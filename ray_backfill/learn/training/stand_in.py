"""A classifier for a model that came without one: fitted on its embeddings, calibrated on items held out.

Shapes: N items, d dimensions, C classes.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from ray_backfill.data.folder import Classifier
from ray_backfill.learn.models.backbones import class_logits
from ray_backfill.learn.training.objective import classification_losses
from ray_backfill.learn.training.settings import ClassificationSettings
from ray_backfill.learn.training.transforms import check_classes

# Share of each class that is held out; at least one item of every class that has two.
_HELD_OUT = 0.2
# Steps of Adam, items in each, and the peak learning rate for embeddings of spread 1.
_STEPS, _BATCH, _LR = 500, 512, 0.05
# L2 penalty on the weights: without one, classes that can be separated have weights without bound.
_DECAY = 1e-3
# Most items that the temperature is fitted on, and how many at a time.
_CALIBRATED, _ROWS = 10_000, 512
# Natural logarithms of the lowest and the highest temperature.
_TEMPERATURES = (-5.0, 5.0)


def fit_classifier(
    vectors_Nd: NDArray[np.floating], label_N: NDArray[Any], settings: ClassificationSettings
) -> Classifier:
    """Multinomial logistic regression by the loss of ``settings``, or an ArcFace classifier.

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
        for first in range(0, len(x_Nd), _ROWS):
            logits_BC = class_logits(x_Nd[first : first + _ROWS], weight_Cd, bias_C, None) / np.exp(log_t)
            total += float(
                torch.nn.functional.cross_entropy(
                    logits_BC, target_N[first : first + _ROWS], label_smoothing=smoothing, reduction="sum"
                )
            )
        return total / len(x_Nd)

    return float(np.exp(minimize_scalar(loss, bounds=_TEMPERATURES, method="bounded").x))
