"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025.
Deviates: similarities are exp(-d / tau) with tau as a setting; eq. 10 to 13 have no temperature (tau = 1). In the new
system, an item is no positive of itself (k = i in eq. 11 and 14): its distance is always 0.
Without rho the new system is frozen, so the second term of CL-M (eq. 14) has no gradient, and CL-M trains exactly what
CL-S trains. The two differ only with rho.

Shapes: b anchors of this worker, B items of all workers, d dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.learn.training.head_loop import LossBatch
from ray_backfill.learn.training.settings import LossSettings


def rqt(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Mean distance of each anchor's psi(rho(new)) to its own old embedding. Source: eq. 9."""
    own_bd = batch.old_Bd[batch.own]
    if settings.distance == "cosine":
        return (1 - F.cosine_similarity(batch.reverse_bd, own_bd)).mean()
    return (batch.reverse_bd - own_bd).norm(dim=1).mean()


def cl_s(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Contrast each anchor's positives with its negatives in the old system. Source: eq. 10. Cost: O(b B d)."""
    positive, negative = _old_sums(batch, settings)
    return _pull(positive, [negative])


def cl_m(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Contrast positives with negatives, in each system separately. Source: eq. 14. Cost: O(b B d)."""
    (p_old, n_old), (p_new, n_new) = _old_sums(batch, settings), _new_sums(batch, settings)
    return _pull(p_old, [n_old]) + _pull(p_new, [n_new])


def within_new(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Contrast positives with negatives in the new system alone. Source: second term of eq. 14. Cost: O(b B d).

    psi does not occur. It gets a gradient of 0, because DDP waits for the gradients of all parameters.
    """
    positive, negative = _new_sums(batch, settings)
    return _pull(positive, [negative]) + 0.0 * batch.reverse_bd.sum()


def mcl(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Contrast the positives of each system with the negatives of both. Source: eq. 11. Cost: O(b B d)."""
    (p_old, n_old), (p_new, n_new) = _old_sums(batch, settings), _new_sums(batch, settings)
    return _pull(p_old, [n_old, n_new]) + _pull(p_new, [n_new, n_old])


def _old_sums(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """``_log_sums`` of the backward system, {psi(rho(new)), old}."""
    same_bB = batch.label_B[batch.own, None] == batch.label_B[None, :]
    return _log_sums(_distances(batch.reverse_bd, batch.old_Bd, settings.distance), same_bB, ~same_bB, settings)


def _new_sums(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """``_log_sums`` of the forward system, {rho(new), rho(new)}."""
    same_bB = batch.label_B[batch.own, None] == batch.label_B[None, :]
    negative_bB = ~same_bB
    same_bB[:, batch.own].fill_diagonal_(False)  # an item's distance to itself is always 0
    return _log_sums(_distances(batch.forward_bd, batch.forward_Bd, settings.distance), same_bB, negative_bB, settings)


def _distances(a_bd: Tensor, b_Bd: Tensor, distance: str) -> Tensor:
    if distance == "cosine":
        return 1 - F.normalize(a_bd, dim=1) @ F.normalize(b_Bd, dim=1).T
    return torch.cdist(a_bd, b_Bd)


def _log_sums(d_bB: Tensor, positive_bB: Tensor, negative_bB: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Logarithms of the sums of exp(-d / tau) over each anchor's positives and negatives; -inf if it has none."""
    if settings.hard_mining:
        positive_bB = _harder_half(d_bB, positive_bB, farthest=True)
        negative_bB = _harder_half(d_bB, negative_bB, farthest=False)
    logits = -d_bB / settings.tau
    return (
        logits.masked_fill(~positive_bB, -torch.inf).logsumexp(1),
        logits.masked_fill(~negative_bB, -torch.inf).logsumexp(1),
    )


def _harder_half(d_bB: Tensor, mask_bB: Tensor, *, farthest: bool) -> Tensor:
    """Keep the farthest or closest half (rounded up) of each anchor's masked items. Source: footnote 2."""
    hardness = (d_bB if farthest else -d_bB).detach().masked_fill(~mask_bB, -torch.inf)
    kept_b1 = (mask_bB.sum(1, keepdim=True) + 1) // 2
    most = int(kept_b1.max())
    hardest = hardness.topk(most, dim=1).indices
    in_order = torch.arange(most, device=d_bB.device) < kept_b1
    return torch.zeros_like(mask_bB).scatter(1, hardest, in_order)


def _pull(log_positive: Tensor, log_negatives: list[Tensor]) -> Tensor:
    """Mean of -log(P / (P + N + ...)); an anchor without positives adds 0."""
    has_positive = log_positive > -torch.inf
    log_positive = log_positive[has_positive]
    everything = torch.stack([log_positive, *(n[has_positive] for n in log_negatives)]).logsumexp(0)
    return (everything - log_positive).sum() / len(has_positive)
