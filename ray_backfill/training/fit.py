"""What a method learns from stored embeddings: a fit trains itself, checks what it is given and says what it costs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray
from ray_backfill.training.settings import FitSettings

# Called with an epoch (from 1) and its mean loss over all workers.
OnEpoch = Callable[[int, float], None]


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
    parameters: int


class Fit(ABC):
    """One way to learn from stored embeddings. Each kind of fit is a frozen dataclass.

    option: the command-line options that set how it learns: --heads..., --transforms... or --adapters...
    """

    option: str

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The models whose stored embeddings it learns from."""

    @property
    def needs_labels(self) -> bool:
        return False

    @property
    def is_trained(self) -> bool:
        """False for a formula, which has no steps and needs no workers."""
        return True

    @property
    def has_sigma(self) -> bool:
        """Whether its network tells how uncertain it is about an item (``log_variances``)."""
        return False

    @abstractmethod
    def epochs(self, settings: FitSettings) -> int:
        """How many epochs its training takes; 1 for a formula."""

    @abstractmethod
    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        """Everything that decides the result beside the data, as plain data for a manifest."""

    @abstractmethod
    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        """Raises InputError if so many workers cannot fit on these data."""

    @abstractmethod
    def fit(
        self,
        data: TrainSet,
        settings: FitSettings,
        distance: str,
        device: torch.device | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Fitted:
        """Learn; under DDP every worker calls this with the same arguments.

        W workers draw the same batches and take their share of each, so they train what one worker trains.
        distance: what embeddings are compared by; under cosine adapters are fitted on vectors of length 1.

        Raises:
            InputError: see ``check``.
        """

    @abstractmethod
    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        """What ``fit`` will compute. dims: of each model's embeddings. n_items, n_classes: of the train split.

        Raises:
            InputError: too few items for so many workers.
        """

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        """Why what it learns cannot be compared by this distance; "" if it can."""
        return ""

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        """Why it cannot use the classifier of a new model that was trained by softmax or arcface; "" if it can."""
        return ""

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        """(N,) log sigma^2 of each gallery item, from its stored embeddings alone; only where ``has_sigma``."""
        raise NotImplementedError


def cost_of_steps(fit_on: Callable[[int], Fitted], unit: int, batch: int, n_items: int, epochs: int) -> FitCost:
    """What a training will compute, counted on two tiny batches by the fit itself.

    A step's arithmetic is a n + c n^2 for a batch of n items (c: pairs of items, for heads): two batches tell both.
    fit_on: fits on so many items in one step. unit: the size of the smaller batch. batch: of the real training.
    """
    one, two = fit_on(unit), fit_on(2 * unit)
    c = (two.flops - 2 * one.flops) / (2 * unit**2)
    a = one.flops / unit - c * unit
    steps = max(1, n_items // batch) * epochs
    parameters = sum(parameter.numel() for parameter in one.network.parameters())
    return FitCost(epochs, steps, steps * batch, (a * batch + c * batch**2) * steps, parameters)


def invented(dims: Mapping[str, int], n: int, n_classes: int, per_class: int = 1) -> TrainSet:
    """n random items to count the arithmetic of a step on; so many in a row are of one class."""
    rng = np.random.default_rng(0)
    vectors = {model: rng.normal(size=(n, dim)).astype(np.float32) for model, dim in dims.items()}
    weight, bias = np.zeros((n_classes, dims["new"]), np.float32), np.zeros(n_classes, np.float32)
    label = np.arange(n) // per_class % n_classes
    return TrainSet(vectors, label, Classifier(np.arange(n_classes), weight, bias))
