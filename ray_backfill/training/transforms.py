"""Trains transformations: maps from the stored embeddings of some models to those of another, FCT's and FastFill's h.

Source: Ramanujan et al., "Forward Compatible Training", 2022, eq. 3; Jaeckle et al., "FastFill", 2023, eq. 3-7.
Shapes: N training items, b items of a worker, d dimensions of the target model, C classes of its classifier.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_backfill.errors import InputError
from ray_backfill.models.backbones import class_logits
from ray_backfill.models.maps import Transform, TransformShape, transform
from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray
from ray_backfill.training.fit import Device, Fit, Fitted, OnEpoch, TrainSet
from ray_backfill.training.map_loop import as_tensor, share_of_batch, train_by_items
from ray_backfill.training.objective import classification_losses
from ray_backfill.training.settings import FitSettings, TransformSettings

# Gallery items whose uncertainty is computed at a time.
_ROWS = 65_536


@dataclass(frozen=True)
class TransformFit(Fit):
    """Trains h from the embeddings of ``inputs`` to those of ``target``; the loss: see ``transform_loss``."""

    inputs: tuple[str, ...] = ("old",)
    target: str = "new"
    l2: bool = True
    disc: bool = False
    uncertainty: bool = False

    option = "transforms"

    @property
    def models(self) -> tuple[str, ...]:
        return (*self.inputs, self.target)

    @property
    def needs_labels(self) -> bool:
        return self.disc

    @property
    def has_sigma(self) -> bool:
        return self.uncertainty

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        return {"fit": {"kind": "transforms", **asdict(self)}, "training": asdict(settings.transforms)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        super().check(data, settings, workers)
        if self.disc and self.target in data.vectors:
            classifier_of(data, self.target)

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        assumed = settings.transforms.loss.classification
        if not self.disc or assumed == classification:
            return ""
        return (
            f"FastFill would take the new model's classifier for {assumed}, but it is trained by {classification}; "
            f"give --transforms.loss.classification {classification}"
        )

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        device, training = device or torch.device("cpu"), settings.transforms
        torch.manual_seed(training.seed)
        inputs = [as_tensor(data.vectors[name], device) for name in self.inputs]
        target = as_tensor(data.vectors[self.target], device)
        dims = tuple(x.shape[1] for x in inputs)
        network = Transform(TransformShape(dims, target.shape[1], training.hidden, self.uncertainty)).to(device)
        class_N = torch.full((len(target),), -1, device=device)
        classifier = None
        if self.disc:
            known = classifier_of(data, self.target)
            class_N = torch.from_numpy(class_rows(known, np.asarray(data.label))).to(device)
            classifier = as_tensor(known.weight, device), as_tensor(known.bias, device)

        def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
            h_bd, log_variance_b = model(*(x[rows] for x in inputs))
            disc_b = disc_losses(h_bd, class_N[rows], *classifier, training.loss) if classifier else None
            return transform_loss(self, training.loss, h_bd, log_variance_b, target[rows], disc_b)

        flops = train_by_items(_WithUncertainty(network), len(target), training, loss_of, device, on_epoch)
        return Fitted(network.eval(), flops)

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        """Source: FastFill, section 4.2."""
        inputs = [gallery[name] for name in self.inputs]
        parts = []
        with torch.inference_mode():
            for first in range(0, len(inputs[0]), _ROWS):  # a gallery may be too large to be transformed at once
                h_Nd = transform(network, *(x[first : first + _ROWS] for x in inputs))
                parts.append(network.log_variance(torch.from_numpy(h_Nd)).double().numpy())
        return np.concatenate(parts)


class _WithUncertainty(nn.Module):
    """h and its log variance in one forward pass, as DDP wants it."""

    def __init__(self, network: Transform) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs_bd: Tensor) -> tuple[Tensor, Tensor | None]:
        h_bd = self.network(*inputs_bd)
        return h_bd, None if self.network.uncertainty is None else self.network.log_variance(h_bd)


def disc_losses(
    h_bd: Tensor, class_b: Tensor, weight_Cd: Tensor, bias_C: Tensor, settings: TransformSettings
) -> Tensor:
    """(b,) classification loss of the frozen classifier on h, 0 where it does not know the class (-1).

    Source: FastFill, eq. 4.
    """
    scale = settings.cosine_scale
    logits_bC = class_logits(h_bd, weight_Cd, None if scale else bias_C, scale)
    return classification_losses(logits_bC, class_b, settings, scale)


def transform_loss(
    fit: TransformFit,
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


def classifier_of(data: TrainSet, target: str) -> Classifier:
    """The target model's own classifier, or one made of its class means.

    Raises:
        InputError: no labels; a classifier of another dimension or of none of these classes.
    """
    if data.label is None:
        raise InputError("the classification loss needs labels of the train split")
    if data.classifier is not None and target == "new":
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
    return pseudo_classifier(data.vectors[target], data.label)
