"""Trains adapters: small networks, alone or on top of an affine map.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

import torch
from torch import Tensor, nn

from ray_backfill.learn.models.apply import Affine
from ray_backfill.learn.models.drift import ScaledResidual, ScaledResidualShape
from ray_backfill.learn.models.maps import Residual, ResidualShape
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.map_loop import all_views, train_by_items
from ray_backfill.learn.training.settings import TransformTraining


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
