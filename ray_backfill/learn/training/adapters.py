"""Fits adapters, small maps between the embeddings of two models: affine ones by formulas, networks by torch.

How strong a penalty is, or how large a rank, is chosen by the squared error on train items that the fit has not seen.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ray_backfill.learn.models.apply import Affine, Wide, unit
from ray_backfill.learn.training.fit import OF_STEPS, Choice, Device, Fit, Fitted, OnEpoch, TrainSet, share_of_batch
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings

# X and Y -> weight W, (p, q), and bias b, (q,), of the map X W + b.
Formula = Callable[[Wide, Wide, AdapterSettings], tuple[Wide, Wide]]


@dataclass(frozen=True)
class FormulaFit(Fit):
    """An affine map from the embeddings of ``source`` to those of ``target``, recorded by the formula's name.

    space: settings of the formula, if it has any.
    """

    formula: Formula
    source: str
    target: str
    space: tuple[Choice, ...] = ()

    option = "adapters"
    is_trained = False

    @property
    def models(self) -> tuple[str, str]:
        return self.source, self.target

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": self.formula.__name__, "source": self.source, "target": self.target}
        return {"fit": this, "adapters": asdict(settings.adapters), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        """A formula needs all items at once, on one worker."""
        return len(data)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        source, target = (data.vectors[model] for model in self.models)
        # The two products that every formula needs; the cost of the rest does not grow with the items.
        flops = 2 * len(source) * source.shape[1] * (source.shape[1] + target.shape[1])
        return Fitted(self.affine(data, settings.adapters, distance), flops)

    def affine(self, data: TrainSet, settings: AdapterSettings, distance: str) -> Affine:
        """The affine map. Cost: O(N p (p + q)), and O((p + q)^3)."""
        is_cosine = distance == "cosine"
        x, y = (data.vectors[model] for model in self.models)
        wide = (unit(x), unit(y)) if is_cosine else (np.asarray(x, np.float64), np.asarray(y, np.float64))
        weight, bias = self.formula(*wide, settings)
        return Affine(weight.T.astype(np.float32), bias.astype(np.float32), is_cosine)


@dataclass(frozen=True)
class ResidualFit(FormulaFit):
    """A small MLP on top of an affine map, trained on the squared error. formula: the affine map to start from."""

    space: tuple[Choice, ...] = OF_STEPS

    option = "transforms"  # epochs, batches and learning rate; --adapters has the settings of the formula
    is_trained = True

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        of_formula = super().recorded(settings, distance)
        this = of_formula["fit"] | {"kind": "residual_mlp"}
        return of_formula | {"fit": this, "training": asdict(settings.transforms)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.papers.drift_adapter import train_residual

        base = self.affine(data, settings.adapters, distance)
        return train_residual(base, data, self.models, settings.transforms, device, on_epoch)


@dataclass(frozen=True)
class ScaledResidualFit(Fit):
    """Drift-Adapter's MLP from the embeddings of ``source`` to those of ``target``, trained on the squared error."""

    source: str
    target: str

    option = "transforms"
    space = OF_STEPS

    @property
    def models(self) -> tuple[str, str]:
        return self.source, self.target

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "scaled_residual", **asdict(self)}
        return {"fit": this, "training": asdict(settings.transforms), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.papers.drift_adapter import train_scaled_residual

        return train_scaled_residual(data, self.models, distance == "cosine", settings.transforms, device, on_epoch)


Value = TypeVar("Value")

PARTS = 5
# From this many items on, one held-out part tells the strengths apart as well as all five do (each item says something
# in every dimension), at a fifth of the cost.
MANY = 1_000


class Part(NamedTuple):
    """One split of the train items: what is fitted on and what is held out, both centred on the means of the former."""

    x: Wide
    y: Wide
    held_x: Wide
    held_y: Wide


def parts(x_Np: Wide, y_Nq: Wide) -> Iterator[Part]:
    """Fifths of the items in random order, each held out in turn; only the first one where there are many items."""
    fifths = np.array_split(np.random.default_rng(0).permutation(len(x_Np)), PARTS)
    for held in fifths if len(x_Np) < MANY else fifths[:1]:
        seen = np.ones(len(x_Np), bool)
        seen[held] = False
        mean_x, mean_y = x_Np[seen].mean(0), y_Nq[seen].mean(0)
        yield Part(x_Np[seen] - mean_x, y_Nq[seen] - mean_y, x_Np[held] - mean_x, y_Nq[held] - mean_y)


def best_of(values: Sequence[Value], errors: Sequence[Sequence[float]]) -> Value:
    """The value of the least error. errors: for each part, one error per value."""
    return values[int(np.sum(errors, axis=0).argmin())]


def squared_error(predicted: Wide, held_y: Wide) -> float:
    return float(((predicted - held_y) ** 2).sum())
