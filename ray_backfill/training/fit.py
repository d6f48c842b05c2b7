"""Fits: what methods learn from stored embeddings. A fit checks its data, trains itself and estimates its cost.

Fits are declared here and in ``heads``, ``transforms`` and ``adapters`` without torch, so that listing the methods is
fast. The loops that train them load torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray
from ray_backfill.training.settings import FitSettings, TransformTraining

if TYPE_CHECKING:
    import torch

# Where to train; None: on the CPU.
Device: TypeAlias = "torch.device | None"
# Called with an epoch (from 1) and its mean loss over all workers.
OnEpoch = Callable[[int, float], None] | None


@dataclass(frozen=True)
class TrainSet:
    """Stored embeddings to fit on; N items.

    vectors: (N, d) float by the model's name. label: (N,) integers or strings, None where nobody labelled them.
    classifier: of the new model, None where it is not known.
    """

    vectors: Mapping[str, NDArray[np.floating]]
    label: NDArray[Any] | None
    classifier: Classifier | None = None

    def __len__(self) -> int:
        return len(next(iter(self.vectors.values())))


@dataclass(frozen=True)
class Fitted:
    """What a fit gives: the network in eval mode, and the floating-point operations of all workers that it took."""

    network: torch.nn.Module
    flops: int


@dataclass(frozen=True)
class FitCost:
    """What a fit will compute. items: of all steps together. flops: of all workers, gradients included."""

    epochs: int
    steps: int
    items: int
    flops: float


class Fit(ABC):
    """One way to learn from stored embeddings. Each kind of fit is a frozen dataclass.

    option: the command-line options that set how it learns: --heads..., --transforms... or --adapters...
    is_trained: False for a formula, which has no steps and needs no workers.
    """

    option: str
    is_trained = True

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The models whose stored embeddings it learns from."""

    @property
    def needs_labels(self) -> bool:
        return False

    @property
    def has_sigma(self) -> bool:
        """Whether its network tells how uncertain it is about an item (``log_variances``)."""
        return False

    def epochs(self, settings: FitSettings) -> int:
        """How many epochs its training takes; 1 for a formula."""
        return getattr(settings, self.option).epochs if self.is_trained else 1

    @abstractmethod
    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        """Everything that decides the result beside the data, as plain data for a manifest."""

    @abstractmethod
    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        """Each worker's share of a batch. Raises InputError if the data or the batch cannot be shared by so many."""

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        """Raises InputError if so many workers cannot fit on these data."""
        self.share(data, settings, workers)

    @abstractmethod
    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        """Learn; under DDP every worker calls this with the same arguments.

        W workers draw the same batches and take their share of each, so they train what one worker trains.
        distance: what embeddings are compared by; under cosine adapters are fitted on vectors of length 1.

        Raises:
            InputError: see ``check``.
        """

    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        """What ``fit`` will compute. dims: of each model's embeddings. n_items, n_classes: of the train split.

        A step's arithmetic is a n + c n^2 for a batch of n items (c: pairs of items, for heads). The fit itself counts
        it on two tiny batches, which tell both. A formula has no steps, and costs next to nothing.

        Raises:
            InputError: too few items for so many workers.
        """
        if not self.is_trained:
            return FitCost(1, 0, n_items, 0.0)
        batch = workers * self.share(_invented(dict.fromkeys(dims, 0), n_items, n_classes), settings, workers)
        heads, transforms, n = settings.heads, settings.transforms, 2 * settings.heads.items
        one, two = (
            self.fit(
                _invented(dims, size, n_classes, heads.items),
                replace(
                    settings,
                    heads=replace(heads, epochs=1, classes=size // heads.items),
                    transforms=replace(transforms, epochs=1, batch=size),
                ),
                distance,
            )
            for size in (n, 2 * n)
        )
        c = (two.flops - 2 * one.flops) / (2 * n**2)
        a = one.flops / n - c * n
        steps = max(1, n_items // batch) * self.epochs(settings)
        return FitCost(self.epochs(settings), steps, steps * batch, (a * batch + c * batch**2) * steps)

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        """Why what it learns cannot be compared by this distance; "" if it can."""
        return ""

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        """Why it cannot use the classifier of a new model that was trained by softmax or arcface; "" if it can."""
        return ""

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        """(N,) log sigma^2 of each gallery item, from its stored embeddings alone; only where ``has_sigma``."""
        raise NotImplementedError


def _invented(dims: Mapping[str, int], n: int, n_classes: int, per_class: int = 1) -> TrainSet:
    """n random items; so many in a row are of one class."""
    rng = np.random.default_rng(0)
    vectors = {model: rng.normal(size=(n, dim)).astype(np.float32) for model, dim in dims.items()}
    weight, bias = np.zeros((n_classes, dims["new"]), np.float32), np.zeros(n_classes, np.float32)
    label = np.arange(n) // per_class % n_classes
    return TrainSet(vectors, label, Classifier(np.arange(n_classes), weight, bias))


def share_of_batch(n_items: int, settings: TransformTraining, workers: int) -> int:
    """Each worker's share of a batch. Raises InputError where it is less than 2."""
    share = min(settings.batch, n_items) // workers
    if share < 2:
        raise InputError(f"{n_items} train items (batch {settings.batch}) are too few for {workers} workers")
    return share
