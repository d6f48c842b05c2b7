"""Trains joint maps between both spaces on stored embeddings.

Shapes: N training items, b items of this worker, B of all workers, d dimensions of the old model, n of the new one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal
from torch.nn.utils.parametrize import remove_parametrizations

from ray_backfill.learn.models.gather import gather
from ray_backfill.learn.models.joint import JointMaps, JointShape
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.joint import JointFit
from ray_backfill.learn.training.map_loop import all_views, for_all_views, train_by_items
from ray_backfill.learn.training.settings import OrthogonalSettings, TransformTraining


@dataclass(frozen=True)
class JointBatch:
    """Items of this worker against the items of all workers.

    forward_bn: F(old). backward_bn: B(new). old_bd: old embeddings. weight_nn: of B; None if it is a rotation.
    """

    forward_bn: Tensor
    backward_bn: Tensor
    old_bd: Tensor
    label_b: Tensor
    backward_Bn: Tensor
    old_Bd: Tensor
    label_B: Tensor
    weight_nn: Tensor | None


# The mean loss over the items of this worker.
JointLoss = Callable[[JointBatch, OrthogonalSettings], Tensor]


def train_joint(
    fit: JointFit,
    data: TrainSet,
    training: TransformTraining,
    unit: bool,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train the maps that ``fit`` declares; under DDP every worker calls this with the same arguments.

    unit: on embeddings of length 1. A rotation is the matrix exponential of a skew-symmetric matrix, from the identity
    on; other maps start at random.
    """
    device = device or torch.device("cpu")
    torch.manual_seed(training.seed)
    old, new = (all_views(data, model, device) for model in fit.models)
    if unit:
        old = nn.functional.normalize(old, dim=1)
    # Without labels each item is its own class.
    label_N = np.arange(len(data)) if data.label is None else np.unique(data.label, return_inverse=True)[1]
    label = for_all_views(data, label_N, device)
    network = JointMaps(JointShape(old.shape[1], new.shape[1], fit.strict, unit)).to(device)
    backward = network.to_old.linear
    if fit.strict:
        nn.init.eye_(backward.weight)
        orthogonal(backward, orthogonal_map="matrix_exp")

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        forward_bn, backward_bn = model(old[rows], new[rows])
        batch = JointBatch(
            forward_bn, backward_bn, old[rows], label[rows],
            gather(backward_bn), gather(old[rows]), gather(label[rows]), None if fit.strict else backward.weight,
        )  # fmt: skip
        return fit.loss(batch, training.orthogonal)

    # The paper names Adam and its learning rate, and no weight decay.
    plain = replace(training, lr=training.lr * training.orthogonal.lr_share, weight_decay=0.0)
    flops = train_by_items(network, data, plain, loss_of, device, on_epoch)
    if fit.strict:
        remove_parametrizations(backward, "weight")
        backward.weight.requires_grad_(True)
    return Fitted(network.eval(), flops)
