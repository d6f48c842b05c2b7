"""Adapters that are small networks: an MLP on top of an affine map, and Drift-Adapter's.

Shapes: B items, d_in and d_out dimensions.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.methods.adapters import MLP_HIDDEN
from ray_backfill.learn.models.apply import Affine
from ray_backfill.learn.models.operators import Op, apply_map, unit_of
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.map_loop import all_views, train_by_items
from ray_backfill.learn.training.settings import TransformTraining


class Residual(nn.Module):
    """An affine map plus a small MLP that is zero at first, so that training starts from the affine map.

    unit: inputs are scaled to length 1 first.
    """

    kind = "residual"

    def __init__(self, input_dim: int, output_dim: int, hidden: int = MLP_HIDDEN, unit: bool = True) -> None:
        super().__init__()
        self.shape = {"input_dim": input_dim, "output_dim": output_dim, "hidden": hidden, "unit": unit}
        self.unit, self.base = unit, nn.Linear(input_dim, output_dim)
        self.inner, self.outer = _mlp(input_dim, hidden, output_dim)

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        x_Bd = F.normalize(x_Bd, dim=1) if self.unit else x_Bd
        return self.base(x_Bd) + self.outer(F.gelu(self.inner(x_Bd)))

    def onnx(self, op: Op, x: str) -> str:
        x = unit_of(op, x) if self.unit else x
        more = apply_map(op, self.outer, op("Gelu", apply_map(op, self.inner, x)))
        return op("Add", apply_map(op, self.base, x), more)


class ScaledResidual(nn.Module):
    """S (x + W2 GELU(W1 x + b1) + b2) with a diagonal S. The MLP is zero at first, and S is one.

    Source: Vejendla, "Drift-Adapter", 2025, section 3: residual MLP with 256 hidden units, and the diagonal scaling
    matrix. The paper's models have one size; between two sizes, x is cut or filled with zeros.

    unit: inputs are scaled to length 1 first.
    """

    kind = "scaled_residual"

    def __init__(self, input_dim: int, output_dim: int, hidden: int = MLP_HIDDEN, unit: bool = True) -> None:
        super().__init__()
        self.shape = {"input_dim": input_dim, "output_dim": output_dim, "hidden": hidden, "unit": unit}
        self.unit = unit
        self.inner, self.outer = _mlp(input_dim, hidden, output_dim)
        self.scale_d = nn.Parameter(torch.ones(output_dim))

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)."""
        x_Bd = F.normalize(x_Bd, dim=1) if self.unit else x_Bd
        kept_Bd = F.pad(x_Bd, (0, len(self.scale_d) - x_Bd.shape[1]))  # a negative pad truncates
        return self.scale_d * (kept_Bd + self.outer(F.gelu(self.inner(x_Bd))))

    def onnx(self, op: Op, x: str) -> str:
        x = unit_of(op, x) if self.unit else x
        kept = op("Pad", x, np.array([0, 0, 0, len(self.scale_d) - self.inner.in_features]))
        more = apply_map(op, self.outer, op("Gelu", apply_map(op, self.inner, x)))
        return op("Mul", op("Add", kept, more), self.scale_d.detach().numpy())


def _mlp(inputs: int, hidden: int, outputs: int) -> tuple[nn.Linear, nn.Linear]:
    """Both layers of an MLP that is zero."""
    inner, outer = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    nn.init.zeros_(outer.weight)
    nn.init.zeros_(outer.bias)
    return inner, outer


def train_mlp(
    base: Affine | None,
    data: TrainSet,
    models: tuple[str, str],
    unit: bool,
    training: TransformTraining,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train an MLP on the squared error of its predictions: on top of ``base``, or without one Drift-Adapter's.

    models: the source and the target model of the map. unit: on vectors of length 1.
    """
    source, target = (all_views(data, model, device) for model in models)
    if unit:
        target = F.normalize(target, dim=1)
    torch.manual_seed(training.seed)
    network: nn.Module
    if base is None:
        network = ScaledResidual(source.shape[1], target.shape[1], unit=unit)
    else:
        network = Residual(source.shape[1], target.shape[1], unit=unit)
        weight, bias = torch.from_numpy(base.weight_qp), torch.from_numpy(base.bias_q)
        network.base.load_state_dict({"weight": weight, "bias": bias})
    network.to(device)

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        return (model(source[rows]) - target[rows]).square().sum(1).mean()

    flops = train_by_items(network, data, training, loss_of, device, on_epoch)
    return Fitted(network.eval(), flops)
