"""Declares the fit of psi and rho: its data requirements and batch sizes. The training loop is in ``head_loop``.

Shapes: N training items.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.learn.training.fit import Choice, Device, Fit, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import HEAD_DISTANCES, FitSettings, HeadTraining

if TYPE_CHECKING:
    from ray_backfill.learn.training.head_loop import HeadLoss


@dataclass(frozen=True)
class HeadFit(Fit):
    """Trains psi, and rho if learn_new is set. The loss is recorded by the name of its function."""

    loss: HeadLoss
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
        from ray_backfill.learn.training.head_loop import train_heads

        return train_heads(self, data, settings.heads, device, on_epoch)


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
