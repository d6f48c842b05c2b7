"""lambda-Orthogonality: the joint loss of B, which maps new embeddings to old ones, and F, which maps old ones to B's.

Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", NeurIPS 2025
(arXiv 2509.16664), eq. 2 and 6 to 10.

Shapes: b items of this worker, B of all workers, d dimensions of the old model, n of the new one.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.learn.training.joint_loop import JointBatch
from ray_backfill.learn.training.settings import OrthogonalSettings


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
