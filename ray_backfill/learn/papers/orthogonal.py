"""lambda-Orthogonality: B, which maps new embeddings to old ones, and F, which maps old ones to B's, trained together.

Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", NeurIPS 2025
(arXiv 2509.16664), sections 3.2 to 3.5, eq. 2 and 6 to 10.
Deviates: lambda is in units of sqrt(n), because the norm of eq. 6 grows with the dimension; the paper's 12 for a new
model of 1,024 dimensions is 0.375. Under cosine the maps are trained on embeddings of length 1, as adapters are. Not in
the text that we have: the weights of eq. 10, alpha, the temperature, batches, epochs and initial weights.

Shapes: N training items, b items of this worker, B of all workers, d dimensions of the old model, n of the new one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal
from torch.nn.utils.parametrize import remove_parametrizations

from ray_backfill.learn.models.gather import gather
from ray_backfill.learn.models.operators import Op, apply_map, unit_of
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.map_loop import all_views, for_all_views, train_by_items
from ray_backfill.learn.training.settings import OrthogonalSettings, TransformTraining


class JointMaps(nn.Module):
    """to_old: B, (n, n), whose first d dimensions resemble the old embedding. to_new: F, from d to n dimensions.

    strict: B is a rotation without bias. unit: inputs are scaled to length 1 first.
    """

    kind, parts = "joint", {"B": "to_old", "F": "to_new"}

    def __init__(self, old_dim: int, new_dim: int, strict: bool, unit: bool = True) -> None:
        super().__init__()
        self.shape: dict[str, Any] = {"old_dim": old_dim, "new_dim": new_dim, "strict": strict, "unit": unit}
        self.to_old, self.to_new = _AffineLayer(new_dim, new_dim, unit), _AffineLayer(old_dim, new_dim, unit)
        if strict:
            nn.init.zeros_(self.to_old.linear.bias.requires_grad_(False))

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the same items by both models -> F(old) and B(new), (B, n) each."""
        return self.to_new(old_Bd), self.to_old(new_Bn)


class _AffineLayer(nn.Module):
    """x W + b, with x scaled to length 1 if ``unit`` is set."""

    def __init__(self, inputs: int, outputs: int, unit: bool) -> None:
        super().__init__()
        self.linear, self.unit = nn.Linear(inputs, outputs), unit

    def forward(self, x_Bd: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        return self.linear(F.normalize(x_Bd, dim=1) if self.unit else x_Bd)

    def onnx(self, op: Op, x: str) -> str:
        return apply_map(op, self.linear, unit_of(op, x) if self.unit else x)


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


def joint(batch: JointBatch, settings: OrthogonalSettings) -> Tensor:
    """w1 L_F + w2 L_B + w3 L_C + L_lambda, the last one only if B is no rotation. Source: eq. 10. Cost: O(b B n)."""
    aligned = (batch.forward_bn - batch.backward_bn).square().sum(1).mean()  # eq. 7
    backward_bd, old_bd = _shorter(batch.backward_bn, batch.old_bd)
    total = settings.forward * aligned + settings.backward * (backward_bd - old_bd).square().sum(1).mean()  # eq. 2
    same_bB = batch.label_b[:, None] == batch.label_B[None, :]
    contrasts = [
        contrast(*_shorter(batch.forward_bn, candidates), same_bB, settings.tau)
        for candidates in (batch.backward_Bn, batch.old_Bd)
    ]
    total = total + settings.contrastive * (contrasts[0] + contrasts[1])  # eq. 9
    if batch.weight_nn is None:
        return total
    return total + deviation(batch.weight_nn, settings.threshold, settings.steepness)


def contrast(anchor_bn: Tensor, candidate_Bn: Tensor, same_bB: Tensor, tau: float) -> Tensor:
    """Mean cross-entropy between a uniform distribution over the candidates of an anchor's class and the softmax of its
    cosines / tau to all candidates. Source: eq. 8.
    """
    log_q_bB = (F.normalize(anchor_bn, dim=1) @ F.normalize(candidate_Bn, dim=1).T / tau).log_softmax(1)
    return -((log_q_bB * same_bB).sum(1) / same_bB.sum(1)).mean()


def deviation(weight_nn: Tensor, threshold: float, steepness: float) -> Tensor:
    """sigmoid(alpha (x - lambda)) x with x = ||W W^T - I|| and lambda = threshold sqrt(n). Source: eq. 6."""
    n = len(weight_nn)
    x = (weight_nn @ weight_nn.T - torch.eye(n, dtype=weight_nn.dtype, device=weight_nn.device)).norm()
    return (steepness * (x - threshold * math.sqrt(n))).sigmoid() * x


def _shorter(a_bn: Tensor, b_bd: Tensor) -> tuple[Tensor, Tensor]:
    """Both truncated to the smaller number of dimensions. Source: section 3.2."""
    width = min(a_bn.shape[1], b_bd.shape[1])
    return a_bn[:, :width], b_bd[:, :width]


def train_joint(
    data: TrainSet,
    training: TransformTraining,
    strict: bool,
    unit: bool,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train both maps; under DDP every worker calls this with the same arguments.

    strict: B is a rotation, the matrix exponential of a skew-symmetric matrix, from the identity on; other maps start
    at random. unit: on embeddings of length 1.
    """
    torch.manual_seed(training.seed)
    old, new = (all_views(data, model, device) for model in ("old", "new"))
    if unit:
        old = nn.functional.normalize(old, dim=1)
    # Without labels each item is its own class.
    label_N = np.arange(len(data)) if data.label is None else np.unique(data.label, return_inverse=True)[1]
    label = for_all_views(data, label_N, device)
    network = JointMaps(old.shape[1], new.shape[1], strict, unit).to(device)
    backward = network.to_old.linear
    if strict:
        nn.init.eye_(backward.weight)
        orthogonal(backward, orthogonal_map="matrix_exp")

    def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
        forward_bn, backward_bn = model(old[rows], new[rows])
        batch = JointBatch(
            forward_bn, backward_bn, old[rows], label[rows],
            gather(backward_bn), gather(old[rows]), gather(label[rows]), None if strict else backward.weight,
        )  # fmt: skip
        return joint(batch, training.orthogonal)

    # The paper names Adam and its learning rate, and no weight decay.
    plain = replace(training, lr=training.lr * training.orthogonal.lr_share, weight_decay=0.0)
    flops = train_by_items(network, data, plain, loss_of, device, on_epoch)
    if strict:
        remove_parametrizations(backward, "weight")
        backward.weight.requires_grad_(True)
    return Fitted(network.eval(), flops)
