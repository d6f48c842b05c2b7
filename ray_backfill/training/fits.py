"""Fits whatever a method needs on stored embeddings: heads, transformations, adapters."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ray_backfill.errors import InputError
from ray_backfill.methods import Adapter, HeadLoss, Method, TrainSet, TransformLoss
from ray_backfill.methods.adapters import AdapterSettings, fit_affine
from ray_backfill.training.head_loop import HeadTraining, anchors_per_worker, classes_of, train_heads
from ray_backfill.training.transform_loop import (
    TransformTraining,
    classifier_of,
    share_of_batch,
    train_residual,
    train_transform,
)


@dataclass(frozen=True)
class FitSettings:
    """How everything that works on stored embeddings is fitted."""

    heads: HeadTraining = field(default_factory=HeadTraining)
    transforms: TransformTraining = field(default_factory=TransformTraining)
    adapters: AdapterSettings = field(default_factory=AdapterSettings)


@dataclass(frozen=True)
class Fitted:
    """What a fit gives: the network in eval mode, and the floating-point operations of all workers that it took."""

    network: torch.nn.Module
    flops: int


def is_closed_form(method: Method) -> bool:
    """Whether its fit is a formula: no steps, no workers."""
    return isinstance(method.fit, Adapter) and method.fit.kind != "residual_mlp"


def epochs_of(method: Method, settings: FitSettings) -> int:
    """Epochs that its training takes; 1 for a formula."""
    if is_closed_form(method):
        return 1
    return settings.heads.epochs if method.kind == "heads" else settings.transforms.epochs


def settings_of(method: Method, settings: FitSettings, distance: str) -> dict[str, Any]:
    """All that decides the result beside the data, as plain data for a manifest."""
    used: dict[str, Any] = {"fit": {"kind": method.kind, **asdict(method.fit)}} if method.fit else {}
    if method.kind == "heads":
        return used | {"training": asdict(settings.heads)}
    if method.kind == "transforms":
        return used | {"training": asdict(settings.transforms)}
    training = {} if is_closed_form(method) else {"training": asdict(settings.transforms)}
    return used | training | {"adapters": asdict(settings.adapters), "unit": distance == "cosine"}


def check_fit(method: Method, data: TrainSet, settings: FitSettings, workers: int) -> None:
    """Raises InputError where the train split cannot be fitted on by so many workers."""
    if isinstance(method.fit, HeadLoss):
        anchors_per_worker(*classes_of(data, settings.heads, method.fit.needs_labels), workers)
    elif not is_closed_form(method):
        share_of_batch(len(next(iter(data.vectors.values()))), settings.transforms, workers)
    if isinstance(method.fit, TransformLoss) and method.fit.disc and method.fit.target in data.vectors:
        classifier_of(data, method.fit)


def fit(
    method: Method,
    data: TrainSet,
    settings: FitSettings,
    distance: str,
    device: torch.device | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Fitted:
    """What a method fits; under DDP every worker calls this with the same arguments.

    distance: what embeddings are compared by: under cosine adapters are fitted on vectors of length 1.

    Raises:
        InputError: see ``check_fit``.
    """
    unit = distance == "cosine"
    if isinstance(method.fit, HeadLoss):
        return Fitted(*train_heads(data, method.fit, settings.heads, device, on_epoch))
    if isinstance(method.fit, TransformLoss):
        return Fitted(*train_transform(data, method.fit, settings.transforms, device, on_epoch))
    if not isinstance(method.fit, Adapter):
        raise InputError(f"method {method.name!r} has nothing to fit")
    if not is_closed_form(method):
        return Fitted(*train_residual(data, method.fit, settings.adapters, settings.transforms, unit, device, on_epoch))
    source, target = data.vectors[method.fit.source], data.vectors[method.fit.target]
    # The two products that every formula needs; what follows does not grow with the items.
    flops = 2 * len(source) * source.shape[1] * (source.shape[1] + target.shape[1])
    return Fitted(fit_affine(method.fit.kind, source, target, settings.adapters, unit), flops)
