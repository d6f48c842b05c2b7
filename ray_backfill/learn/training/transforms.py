"""Declares the fits of transformations (h of FCT and FastFill): maps from stored embeddings to another model's space.

The loss and the training loop are in ``transform_loop``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.columns import kind_of
from ray_backfill.data.folder import Classifier
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.training.fit import OF_STEPS, Choice, Device, Fit, Fitted, OnEpoch, TrainSet, share_of_batch
from ray_backfill.learn.training.settings import FitSettings


@dataclass(frozen=True)
class TransformFit(Fit):
    """Trains h from the embeddings of ``inputs`` to those of ``target`` with the loss ``transform_loss``."""

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

    @property
    def space(self) -> tuple[Choice, ...]:
        weights = Choice("transforms.loss.disc_weight", (0.1, 0.3, 0.5, 1.0, 3.0))
        return (*OF_STEPS, weights) if self.l2 and self.disc else OF_STEPS

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        return {"fit": {"kind": "transforms", **asdict(self)}, "training": asdict(settings.transforms)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        super().check(data, settings, workers)
        if self.disc and self.target in data.vectors:
            known_classifier(data, self.target)

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        assumed = settings.transforms.loss.classification
        if not self.disc or assumed == classification:
            return ""
        return (
            f"FastFill assumes that the new model's classifier was trained by {assumed}, but it is trained by "
            f"{classification}; give --transforms.loss.classification {classification}"
        )

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.training.transform_loop import train_transform

        return train_transform(self, data, settings.transforms, device, on_epoch)

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        """Source: FastFill, section 4.2."""
        from ray_backfill.learn.training.transform_loop import log_variances

        return log_variances([gallery[name] for name in self.inputs], network)


def class_rows(classifier: Classifier, label_N: NDArray[Any]) -> NDArray[np.int64]:
    """The classifier's row of each label, -1 for labels that it does not know."""
    by_label = np.argsort(classifier.label, kind="stable")
    at = np.searchsorted(classifier.label, label_N, sorter=by_label).clip(max=len(by_label) - 1)
    rows = by_label[at]
    return np.where(classifier.label[rows] == label_N, rows, -1)


def known_classifier(data: TrainSet, target: str) -> Classifier | None:
    """The target model's own classifier; None if it is not known, or does not know all classes of the train split.

    (Items of classes that it does not know would have no classification loss, and seem certain.)

    Raises:
        InputError: There are no labels, or the classifier has another dimension or knows none of the classes, or there
            is none and no class has two items to fit one on.
    """
    if data.label is None:
        raise InputError("the classification loss needs labels of the train split")
    label_N = np.asarray(data.label)
    if data.classifier is not None and target == "new":
        theirs, ours = data.classifier.weight.shape[1], data.vectors["new"].shape[1]
        if theirs != ours:
            raise InputError(f"the weights of classifier.parquet have {theirs} dimensions, the new embeddings {ours}")
        kinds = kind_of(data.classifier.label), kind_of(label_N)
        if kinds[0] != kinds[1]:
            raise InputError(
                f"the labels are {kinds[0]} in classifier.parquet but {kinds[1]} in train.parquet; use one type"
            )
        known_N = class_rows(data.classifier, label_N) >= 0
        if not known_N.any():
            raise InputError("classifier.parquet knows none of the labels of train.parquet")
        if known_N.all():
            return data.classifier
    check_classes(label_N)
    return None


def check_classes(label_N: NDArray[Any]) -> None:
    """Raises InputError if no classifier can be fitted on items of these classes."""
    if not 1 < len(np.unique(label_N)) < len(label_N):
        raise InputError("the classification loss needs several classes with more than one item in the train split")
