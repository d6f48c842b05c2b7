"""Fits adapters: small maps between the embeddings of two models, by a formula or, from a formula on, by training.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_backfill.models.maps import Affine, AffineShape, Residual, ResidualShape
from ray_backfill.training.fit import Device, Fit, Fitted, OnEpoch, TrainSet
from ray_backfill.training.map_loop import as_tensor, share_of_batch, train_by_items
from ray_backfill.training.settings import AdapterSettings, FitSettings

Wide = NDArray[np.float64]
# X and Y -> weight W, (p, q), and bias b, (q,), of the map X W + b.
Formula = Callable[[Wide, Wide, AdapterSettings], tuple[Wide, Wide]]


@dataclass(frozen=True)
class FormulaFit(Fit):
    """An affine map from the embeddings of ``source`` to those of ``target``. It is recorded by the formula's name."""

    formula: Formula
    source: str
    target: str

    option = "adapters"
    is_trained = False

    @property
    def models(self) -> tuple[str, ...]:
        return self.source, self.target

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": self.formula.__name__, "source": self.source, "target": self.target}
        return {"fit": this, "adapters": asdict(settings.adapters), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        """A formula takes everything at once, on one worker."""
        return len(data)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        source, target = (data.vectors[model] for model in self.models)
        # The two products that every formula needs; what follows does not grow with the items.
        flops = 2 * len(source) * source.shape[1] * (source.shape[1] + target.shape[1])
        return Fitted(self._affine(data, settings, distance), flops)

    def _affine(self, data: TrainSet, settings: FitSettings, distance: str) -> Affine:
        """The map itself. Cost: O(N p (p + q)), and O((p + q)^3)."""
        unit = distance == "cosine"
        x, y = (_unit(data.vectors[m]) if unit else np.asarray(data.vectors[m], np.float64) for m in self.models)
        weight, bias = self.formula(x, y, settings.adapters)
        network = Affine(AffineShape(x.shape[1], y.shape[1], unit))
        with torch.no_grad():
            network.linear.weight.copy_(torch.from_numpy(weight.T.copy()))
            network.linear.bias.copy_(torch.from_numpy(bias))
        return network.eval()


@dataclass(frozen=True)
class ResidualFit(FormulaFit):
    """A small MLP on top of an affine map, trained on the squared error. formula: of the map that it starts from."""

    option = "transforms"  # epochs, batches and learning rate; the formula is set by those of adapters
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
        device, training, unit = device or torch.device("cpu"), settings.transforms, distance == "cosine"
        torch.manual_seed(training.seed)
        base = self._affine(data, settings, distance)
        network = Residual(ResidualShape(base.shape.input_dim, base.shape.output_dim, unit=unit))
        network.base.load_state_dict(base.linear.state_dict())
        network.to(device)
        source, target = (as_tensor(data.vectors[model], device) for model in self.models)
        if unit:
            target = nn.functional.normalize(target, dim=1)

        def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
            return (model(source[rows]) - target[rows]).square().sum(1).mean()

        flops = train_by_items(network, len(target), training, loss_of, device, on_epoch)
        return Fitted(network.eval(), flops)


def _unit(vectors: NDArray[np.floating]) -> Wide:
    wide = np.asarray(vectors, np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length == 0, 1, length)
