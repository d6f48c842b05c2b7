"""What fitting a method on stored embeddings will compute: counted on two tiny batches, by the fit itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ray_backfill.methods import Adapter, Method, TrainSet
from ray_backfill.store import Classifier
from ray_backfill.training.fits import FitSettings, epochs_of, fit, is_closed_form
from ray_backfill.training.head_loop import anchors_per_worker
from ray_backfill.training.transform_loop import share_of_batch


@dataclass(frozen=True)
class FitCost:
    """items: of all steps together. flops: floating-point operations of all workers, gradients included."""

    epochs: int
    steps: int
    items: int
    flops: float
    parameters: int


def fit_cost(
    method: Method,
    dims: Mapping[str, int],
    n_items: int,
    n_classes: int,
    settings: FitSettings,
    distance: str,
    workers: int,
) -> FitCost:
    """dims: of each model's embeddings. n_items, n_classes: of the train split.

    A step's arithmetic is a n + c n^2 for a batch of n items (c: pairs of items, for heads): two small batches tell
    both. A formula (closed-form adapters) has no steps, and costs next to nothing.

    Raises:
        InputError: too few items for so many workers.
    """
    epochs = epochs_of(method, settings)
    if is_closed_form(method):
        pairs = sum(dims.values())
        return FitCost(1, 0, n_items, 0.0, max(dims.values()) * pairs)
    if method.kind == "heads":
        batch = workers * anchors_per_worker(np.arange(n_classes), settings.heads, workers)
        steps = max(1, n_items // batch)
    else:
        batch = workers * share_of_batch(n_items, settings.transforms, workers)
        steps = n_items // batch
    # A multiple of --heads.items, and enough of them for the least squares that the residual MLP starts from.
    unit = settings.heads.items if method.kind == "heads" else 8
    unit *= 2 if not isinstance(method.fit, Adapter) else -(-max(dims.values()) // unit) * 2
    (one, parameters), (two, _) = (
        _flops_of_step(method, dims, n, n_classes, settings, distance) for n in (unit, 2 * unit)
    )
    c = (two - 2 * one) / (2 * unit**2)
    a = one / unit - c * unit
    steps *= epochs
    return FitCost(epochs, steps, steps * batch, (a * batch + c * batch**2) * steps, parameters)


def _flops_of_step(
    method: Method, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str
) -> tuple[int, int]:
    """One step on n invented items, and the parameters of the network."""
    rng = np.random.default_rng(0)
    per_class = settings.heads.items if method.kind == "heads" else 1
    data = TrainSet(
        {model: rng.normal(size=(n, dim)).astype(np.float32) for model, dim in dims.items()},
        np.arange(n) // per_class % n_classes,
        Classifier(
            np.arange(n_classes), np.zeros((n_classes, dims["new"]), np.float32), np.zeros(n_classes, np.float32)
        ),
    )
    tiny = replace(
        settings,
        heads=replace(settings.heads, epochs=1, classes=n // per_class) if method.kind == "heads" else settings.heads,
        transforms=replace(settings.transforms, epochs=1, batch=n),
    )
    fitted = fit(method, data, tiny, distance)
    return fitted.flops, sum(parameter.numel() for parameter in fitted.network.parameters())
