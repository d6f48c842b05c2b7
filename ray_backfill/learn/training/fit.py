"""Fits: what methods learn from stored embeddings, and the settings that --tune tries. Imports no torch.

A fit checks its data, runs the training and estimates its cost.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.errors import InputError
from ray_backfill.core.job import TrainedEpoch, report
from ray_backfill.core.plugins import Deferred
from ray_backfill.core.progress import step
from ray_backfill.core.stages import finish_stage
from ray_backfill.data.columns import kind_of
from ray_backfill.data.folder import Classifier, EmbeddingFolder, TrainSplit, read_train
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining

if TYPE_CHECKING:
    import torch


# Device to train on; None: the CPU.
Device: TypeAlias = "torch.device | None"
# Fewer items than this say nothing about a map between two spaces.
FEWEST_ITEMS = 10
# Called with an epoch (from 1) and its mean loss over all workers.
OnEpoch = Callable[[int, float], None] | None


@dataclass(frozen=True)
class TrainSet:
    """Stored embeddings of N items to fit on.

    vectors: model name -> (N, d) float. label: (N,) integers or strings; None if the items have no labels.
    classifier: the new model's classifier; None if it is unknown. views: model name -> (V, N, d) embeddings of V
    further views of each item, for all models or none. Only trained fits use them: each time that an item is in a
    batch, they draw one of its 1 + V views. Formulas, classifiers and means are of ``vectors`` alone. shared: what
    formulas compute of them once.
    """

    vectors: Mapping[str, NDArray[np.floating]]
    label: NDArray[Any] | None
    classifier: Classifier | None = None
    views: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(next(iter(self.vectors.values())))

    @property
    def n_views(self) -> int:
        """Number of views of each item, the plain one included."""
        return 1 + max(map(len, self.views.values()), default=0)


def train_set(split: TrainSplit | EmbeddingFolder) -> TrainSet:
    """What fits learn from, of a folder with a train split."""
    assert split.train is not None
    return TrainSet(split.train.vectors, split.train.label, split.classifier, split.train_views)


def read_train_set(folder: Path, models: Sequence[str]) -> TrainSet:
    """Read the train split alone. folder: has been validated. models: whose embeddings are read."""
    return train_set(read_train(folder, models))


@dataclass(frozen=True)
class Fitted:
    """Result of a fit. network: a ``FormulaMap``, or a torch module in eval mode. flops: on all workers together."""

    network: Any
    flops: int


@dataclass(frozen=True)
class FitCost:
    """Predicted cost of a fit. items: over all steps. flops: over all workers, including gradients."""

    epochs: int
    steps: int
    items: int
    flops: float


class Choice(NamedTuple):
    """A setting and the values that --tune may give it. name: in ``FitSettings``, as in heads.loss.tau."""

    name: str
    values: tuple[Any, ...]


class Fit(ABC):
    """One way to learn from stored embeddings. Each kind of fit is a frozen dataclass.

    option: the group of command-line options with its settings: heads, transforms or adapters.
    is_trained: False for a formula, which has no steps and needs no workers.
    learn_new: whether it trains rho, a head on top of the new model.
    """

    option: str
    is_trained = True
    learn_new = False

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The models whose stored embeddings it is fitted on."""

    @property
    def needs_labels(self) -> bool:
        return False

    @property
    def has_sigma(self) -> bool:
        """Whether its network estimates its uncertainty about an item, sigma."""
        return False

    @property
    def space(self) -> tuple[Choice, ...]:
        """The settings that --tune tries all combinations of, the published values among them; (): none."""
        return ()

    def epochs(self, settings: FitSettings) -> int:
        """Number of training epochs; 1 for a formula."""
        return getattr(settings, self.option).epochs if self.is_trained else 1

    @abstractmethod
    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        """Everything except the data that determines the result, as plain data for a manifest."""

    @abstractmethod
    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        """Number of items per worker in a batch. Raises InputError if the workers cannot divide the data or a batch."""

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        """Raises InputError if these data are too few to be fitted on, or for this number of workers."""
        if len(data) < FEWEST_ITEMS:
            raise InputError(f"needs at least {FEWEST_ITEMS} items in the train split to be fitted on, not {len(data)}")
        self.share(data, settings, workers)

    @abstractmethod
    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        """Fit; under DDP every worker calls this with the same arguments.

        W workers draw the same batches and process a share of each, so the result is that of a single worker.
        distance: the distance of the comparison; for cosine, adapters are fitted on vectors of length 1.

        Raises:
            InputError: See ``check``.
        """

    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        """Predict the cost of ``fit``. dims: embedding size of each model. n_items, n_classes: size of the train split.

        A formula has no steps and costs almost nothing.

        Raises:
            InputError: There are too few items for the number of workers.
        """
        if not self.is_trained:
            return FitCost(1, 0, n_items, 0.0)
        items = TrainSet({"new": np.empty((n_items, 0), np.float32)}, np.arange(n_items) % n_classes)
        batch = workers * self.share(items, settings, workers)
        steps = max(1, n_items // batch) * self.epochs(settings)
        flops = self.step_flops(dims, batch, n_classes, settings, distance)
        return FitCost(self.epochs(settings), steps, steps * batch, float(flops) * steps)

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        """Floating-point operations of a training step on n items: of matrix products, with their gradients."""
        raise NotImplementedError

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        """Why its result cannot be compared by this distance; "" if it can."""
        return ""

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        """Why it cannot use the classifier of a new model that was trained by softmax or arcface; "" if it can."""
        return ""


class FitByItems(Fit):
    """A training by --transforms, whose loss is a mean over items."""

    option = "transforms"

    @property
    def space(self) -> tuple[Choice, ...]:
        return (
            Choice("transforms.lr", (1.5e-4, 5e-4, 1.5e-3, 5e-3)),
            Choice("transforms.weight_decay", (0.0, 2.0**-15, 1e-3)),
        )

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)


def trained_flops(layers: Iterable[tuple[int, int]], first: Iterable[tuple[int, int]] = ()) -> int:
    """Floating-point operations of linear layers for an item, with gradients of weights and inputs.

    layers: numbers of inputs and outputs. first: of further layers, whose inputs need no gradient.
    """
    return 6 * sum(p * q for p, q in layers) + 4 * sum(p * q for p, q in first)


def share_of_batch(n_items: int, settings: TransformTraining, workers: int) -> int:
    """Number of items per worker in a batch. Raises InputError if it is less than 2."""
    share = min(settings.batch, n_items) // workers
    if share < 2:
        raise InputError(f"{n_items} train items (batch {settings.batch}) are too few for {workers} workers")
    return share


def anchors_per_worker(label_N: NDArray[np.integer], settings: HeadTraining, workers: int) -> int:
    """Number of items per worker in a batch of the heads.

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


@contextmanager
def one_thread(by_torch: bool = True) -> Iterator[None]:
    """Within the block, BLAS computes in one thread, and so does torch. by_torch: False leaves torch alone.

    Sums in several threads round differently, so a map would depend on the number of cores. Threads do not pay either:
    a step of a small map takes a millisecond, and on a busy machine threads wait for each other much longer.
    """
    with ExitStack() as stack:
        if by_torch:
            set_threads, threads = Deferred("torch", "set_num_threads").load(), Deferred("torch", "get_num_threads")()
            stack.callback(set_threads, threads)
            set_threads(1)
        stack.enter_context(threadpool_limits(1, user_api="blas"))
        yield


# Group of settings -> most epochs of a training whose length is left to its size (docs/results/methods.md).
_MOST_EPOCHS = {"heads": 50, "transforms": 40}
# Operations that such a training may take at most, if one epoch takes no more.
MOST_FLOPS = 9.6e12


def sized(fit: Fit, settings: FitSettings, data: TrainSet, distance: str) -> FitSettings:
    """``by_size`` for these data."""
    dims = {model: vectors.shape[1] for model, vectors in data.vectors.items()}
    n_classes = 2 if data.label is None else max(2, len(np.unique(data.label)))
    return by_size(fit, settings, dims, len(data), n_classes, distance)


def by_size(
    fit: Fit, settings: FitSettings, dims: Mapping[str, int], n_items: int, n_classes: int, distance: str
) -> FitSettings:
    """The settings with a number of epochs where these are 0, by the counted operations of one epoch.

    It depends on dimensions and numbers of items only, so a map does not depend on the machine. dims, n_items,
    n_classes: as in ``Fit.cost``.
    """
    unknown = [name for name in _MOST_EPOCHS if getattr(settings, name).epochs == 0]
    if not fit.is_trained or not unknown:
        return settings
    most = _with_epochs(settings, {name: _MOST_EPOCHS[name] for name in unknown})
    share = min(1.0, MOST_FLOPS / fit.cost(dims, n_items, n_classes, most, distance, 1).flops)
    return _with_epochs(settings, {name: max(1, int(_MOST_EPOCHS[name] * share)) for name in unknown})


def _with_epochs(settings: FitSettings, epochs: Mapping[str, int]) -> FitSettings:
    """epochs: group of settings -> number. A warm-up takes at most a quarter of them."""
    for name, number in epochs.items():
        group = replace(getattr(settings, name), epochs=number)
        if isinstance(group, TransformTraining):
            group = replace(group, warmup_epochs=min(group.warmup_epochs, number // 4))
        settings = replace(settings, **{name: group})
    return settings


def fit_into(
    folder: Path,
    title: str,
    fit: Fit,
    data: TrainSet,
    settings: FitSettings,
    distance: str,
    device: Device | str = None,
) -> None:
    """Fit a map and finish its stage in ``folder``, unless its training diverged; under DDP rank 0 writes it.

    title: of the method, for the terminal.
    """
    place: Device = Deferred("torch", "device")(device) if isinstance(device, str) else device
    last_loss, epochs, since = math.nan, fit.epochs(settings), time.monotonic()
    rank, size = Deferred("ray_backfill.learn.models.gather", "rank_and_size")() if fit.is_trained else (0, 1)
    with step(title) as shown:

        def on_epoch(epoch: int, loss: float) -> None:
            nonlocal last_loss, since
            last_loss, before, since = loss, since, time.monotonic()
            rate = len(data) / max(since - before, 1e-9)
            report(TrainedEpoch(folder, epoch, {"loss": loss, "items_per_s": rate}))
            shown.note(f"epoch {epoch} of {epochs}, loss {loss:.3f}")

        fitted = fit.fit(data, settings, distance, place, on_epoch)
    if rank == 0 and (math.isfinite(last_loss) or not fit.is_trained):
        save_network(folder, fitted.network)
        of_training = {"loss": last_loss, "workers": size} if fit.is_trained else {}
        finish_stage(folder, of_training | {"training_flops": fitted.flops})


# Dotted name in ``FitSettings`` -> value.
Values = Mapping[str, Any]


def trials_of(space: Sequence[Choice], settings: FitSettings, number: int) -> list[Values]:
    """The values to try: first the given ones, then others drawn from the space, ``number`` in all or fewer if it ends.

    More trials begin with the same ones. A fit without a space has one trial.
    """
    names = [choice.name for choice in space]
    given = tuple(attrgetter(name)(settings) for name in names)
    others = [values for values in product(*(choice.values for choice in space)) if values != given]
    drawn = np.random.default_rng(0).permutation(len(others))[: number - 1]
    return [dict(zip(names, values, strict=True)) for values in (given, *(others[i] for i in drawn))]


def with_values(settings: FitSettings, values: Values) -> FitSettings:
    """The settings with these values."""
    for name, value in values.items():
        settings = _with_value(settings, name.split("."), value)
    return settings


def _with_value(settings: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    return replace(settings, **{first: _with_value(getattr(settings, first), rest, value) if rest else value})


@dataclass(frozen=True)
class Tuned:
    """The settings that --tune chose for a method, by its AUC on the validation split."""

    method: str
    metric: str
    trials: int
    """Number of settings that were tried."""
    values: Mapping[str, Any]
    """Dotted name of a setting, as in heads.loss.tau -> the value that was chosen."""
    score: float | None
    """AUC of the chosen settings, a share; None if every training diverged."""
    given: float | None
    """AUC of the settings that were given; None if their training diverged."""
