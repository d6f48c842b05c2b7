"""Adapters that are trained: Drift-Adapter's MLP (the input itself plus a small MLP, scaled in each dimension), and a
small MLP on top of an affine map.

Shapes: N train items or B of a batch; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.models.apply import Affine
from ray_backfill.learn.papers.fct import Residual, ResidualShape
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.map_loop import all_views, train_by_items
from ray_backfill.learn.training.settings import TransformTraining


@dataclass(frozen=True)
class ScaledResidualShape:
    """Shape of the map. unit: inputs are scaled to length 1 first."""

    input_dim: int
    output_dim: int
    hidden: int = 256
    unit: bool = True


class ScaledResidual(nn.Module):
    """S (x + W2 GELU(W1 x + b1) + b2) with a diagonal S. The MLP is zero at first, and S is one.

    Source: Vejendla, "Drift-Adapter", 2025, section 3: residual MLP with 256 hidden units, and the diagonal scaling
    matrix. The paper's models have one size; between two sizes, x is cut or filled with zeros.
    """

    kind, Shape = "scaled_residual", ScaledResidualShape

    def __init__(self, shape: ScaledResidualShape) -> None:
        super().__init__()
        self.shape = shape
        self.inner = nn.Linear(shape.input_dim, shape.hidden)
        self.outer = nn.Linear(shape.hidden, shape.output_dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        self.scale_d = nn.Parameter(torch.ones(shape.output_dim))

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        x_Bd = F.normalize(x_Bd, dim=1) if self.shape.unit else x_Bd
        kept_Bd = F.pad(x_Bd, (0, self.shape.output_dim - x_Bd.shape[1]))  # a negative pad truncates
        return self.scale_d * (kept_Bd + self.outer(F.gelu(self.inner(x_Bd))))


def train_residual(
    base: Affine,
    data: TrainSet,
    models: tuple[str, str],
    training: TransformTraining,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train a small MLP on top of ``base``. models: the source and the target model of the map."""
    torch.manual_seed(training.seed)
    network = Residual(ResidualShape(base.shape["input_dim"], base.shape["output_dim"], unit=base.unit))
    network.base.load_state_dict({"weight": torch.from_numpy(base.weight_qp), "bias": torch.from_numpy(base.bias_q)})
    return train_adapter(network, base.unit, data, models, training, device, on_epoch)


def train_scaled_residual(
    data: TrainSet,
    models: tuple[str, str],
    unit: bool,
    training: TransformTraining,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train Drift-Adapter's MLP. models: the source and the target model of the map. unit: on vectors of length 1."""
    torch.manual_seed(training.seed)
    source, target = (data.vectors[model].shape[1] for model in models)
    network = ScaledResidual(ScaledResidualShape(source, target, unit=unit))
    return train_adapter(network, unit, data, models, training, device, on_epoch)


def train_adapter(
    network: nn.Module,
    unit: bool,
    data: TrainSet,
    models: tuple[str, str],
    training: TransformTraining,
    device: Device,
    on_epoch: OnEpoch,
) -> Fitted:
    """Train a network on the squared error of its predictions. unit: the targets are scaled to length 1."""
    device = device or torch.device("cpu")
    network.to(device)
    source, target = (all_views(data, model, device) for model in models)
    if unit:
        target = nn.functional.normalize(target, dim=1)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        return (model(source[rows]) - target[rows]).square().sum(1).mean()

    flops = train_by_items(network, data, training, loss_of, device, on_epoch)
    return Fitted(network.eval(), flops)
