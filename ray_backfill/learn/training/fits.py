"""Declares the fits that are trained: heads (psi, rho), h of FCT and FastFill, h towards rho, joint maps.

A declaration checks data, says what is recorded, and names the training loop of its paper. It needs no torch.

Shapes: N training items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import Deferred
from ray_backfill.data.columns import kind_of
from ray_backfill.data.folder import Classifier
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.training.fit import (
    OF_STEPS,
    Choice,
    Device,
    Fit,
    FitCost,
    Fitted,
    OnEpoch,
    TrainSet,
    share_of_batch,
)
from ray_backfill.learn.training.settings import HEAD_DISTANCES, FitSettings, HeadTraining

# Networks, losses and training loops need torch, which is loaded when a fit starts.
_PAPERS = "ray_backfill.learn.papers"
_train_heads = Deferred(f"{_PAPERS}.rank_merge", "train_heads")
_train_transform = Deferred(f"{_PAPERS}.fastfill", "train_transform")
_log_variances = Deferred(f"{_PAPERS}.fastfill", "log_variances")
_rho_and_h = Deferred(f"{_PAPERS}.fct", "rho_and_h")
_train_joint = Deferred(f"{_PAPERS}.orthogonal", "train_joint")


@dataclass(frozen=True)
class HeadFit(Fit):
    """Trains psi, and rho if learn_new is set. The loss is recorded by the name of its function."""

    loss: Callable[..., Any]
    learn_new: bool = False
    needs_labels: bool = True

    option = "heads"
    models = ("old", "new")

    @property
    def space(self) -> tuple[Choice, ...]:
        rate = Choice("heads.lr", (1e-4, 3e-4, 1e-3, 3e-3))
        if not self.needs_labels:  # RQT has neither a temperature nor mining
            return rate, Choice("heads.blocks", (1, 2, 3))
        return rate, Choice("heads.loss.tau", (0.03, 0.1, 0.3, 1.0)), Choice("heads.loss.hard_mining", (True, False))

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "heads", **asdict(self), "loss": self.loss.__name__}
        return {"fit": this, "training": asdict(settings.heads)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return anchors_per_worker(*classes_of(data, settings.heads, self.needs_labels), workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        super().check(data, settings, workers)
        if self.needs_labels and data.label is not None and len(np.unique(data.label)) == len(data):
            raise InputError(
                f"needs classes of two or more items in the train split; each of its {len(data):,} items is alone in "
                "its class"
            )

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        trained = settings.heads.loss.distance
        if distance == trained:
            return ""
        if distance not in HEAD_DISTANCES:
            return f"heads can only be trained for the cosine or the l2 distance, not for {distance}"
        return f"heads would be trained for the {trained} distance; give --heads.loss.distance {distance}"

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        return _train_heads(self, data, settings.heads, device, on_epoch)


def classes_of(
    data: TrainSet, settings: HeadTraining, needs_labels: bool = True
) -> tuple[NDArray[np.int64], HeadTraining]:
    """The class of each item as a number. Without labels each item is its own class, in batches of the same size.

    The same holds if all labels are equal and the loss does not need them.
    """
    if data.label is None or (not needs_labels and len(np.unique(data.label)) < 2):
        whole = replace(settings, classes=settings.classes * settings.items, items=1)
        return np.arange(len(data)), whole
    return np.unique(data.label, return_inverse=True)[1], settings


def anchors_per_worker(label_N: NDArray[np.integer], settings: HeadTraining, workers: int) -> int:
    """Number of items per worker in a batch.

    Raises:
        InputError: There are fewer than 2 classes, or the batch cannot be divided among the workers.
    """
    classes = min(settings.classes, len(np.unique(label_N)))
    if classes < 2:
        raise InputError("training heads needs items of at least 2 classes in the train split")
    share, rest = divmod(classes * settings.items, workers)
    if rest or share < 2:
        raise InputError(
            f"a batch of {classes} classes x {settings.items} items cannot be divided among {workers} workers; "
            "change --heads.items or --workers.number"
        )
    return share


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
        return _train_transform(self, data, settings.transforms, device, on_epoch)

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        """Source: FastFill, section 4.2."""
        return _log_variances([gallery[name] for name in self.inputs], network)


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


# The name of rho(new) among the vectors that h is trained on. It is not "new", whose classifier does not fit it.
RHO = "rho"


@dataclass(frozen=True)
class TowardsRhoFit(Fit):
    """Trains rho with the heads' settings, then h, whose target is ``RHO``. Epochs and batches are those of h."""

    rho: HeadFit
    h: TransformFit

    option = "transforms"
    needs_labels = True
    learn_new = True
    models = ("old", "new")

    @property
    def has_sigma(self) -> bool:
        return self.h.has_sigma

    @property
    def space(self) -> tuple[Choice, ...]:
        return (*self.rho.space, *self.h.space)

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        rho, h = self.rho.recorded(settings, distance), self.h.recorded(settings, distance)
        return {"fit": {"kind": "towards_rho", "rho": rho["fit"], "h": h["fit"]}} | {
            "training": {"rho": rho["training"], "h": h["training"]}
        }

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return self.h.share(data, settings, workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        self.rho.check(data, settings, workers)
        self.h.check(data, settings, workers)

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        return self.rho.distance_problem(settings, distance)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.models.apply import transform

        first = self.rho.fit(data, settings, distance, device)
        heads = first.network.cpu()
        vectors = {"old": data.vectors["old"], RHO: transform(heads.rho, data.vectors["new"])}
        views: dict[str, NDArray[np.floating]] = {}
        if data.views:
            of_views = [transform(heads.rho, view_Nd) for view_Nd in data.views["new"]]
            views = {"old": data.views["old"], RHO: np.stack(of_views)}
        second = self.h.fit(replace(data, vectors=vectors, views=views), settings, distance, device, on_epoch)
        return Fitted(_rho_and_h(heads, second.network.cpu()), first.flops + second.flops)

    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        rho, h = (
            fit.cost({**dims, RHO: dims["new"]}, n_items, n_classes, settings, distance, workers)
            for fit in (self.rho, self.h)
        )
        return FitCost(h.epochs, rho.steps + h.steps, rho.items + h.items, rho.flops + h.flops)

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        return self.h.log_variances(gallery, network.h)


@dataclass(frozen=True)
class JointFit(Fit):
    """Trains B (new to old) and F (old to B's space) with a loss, with or without labels. strict: B is a rotation."""

    loss: Callable[..., Any]
    strict: bool = False

    option = "transforms"
    costs_of_weights = True
    models = ("old", "new")

    @property
    def space(self) -> tuple[Choice, ...]:
        both = (
            Choice("transforms.orthogonal.lr_share", (0.5, 1.0, 2.0, 5.0)),
            Choice("transforms.orthogonal.tau", (0.03, 0.1, 0.3, 1.0)),
            Choice("transforms.orthogonal.contrastive", (0.3, 1.0, 3.0)),
        )
        return both if self.strict else (*both, Choice("transforms.orthogonal.threshold", (0.1, 0.375, 1.0)))

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "joint", "loss": self.loss.__name__, "strict": self.strict}
        return {"fit": this, "training": asdict(settings.transforms), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        return _train_joint(self, data, settings.transforms, distance == "cosine", device, on_epoch)
