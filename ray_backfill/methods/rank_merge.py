"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025.
Deviates: similarities are exp(-d / tau) with tau a setting, where the paper has tau = 1.
Without rho the new system is frozen, so the second term of CL-M (eq. 14) has no gradient: CL-M then trains exactly what
CL-S trains. The two differ only with rho.

Shapes: b anchors of this worker, B items of all workers, d dimensions.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.errors import InputError, require_positive
from ray_backfill.methods import Embeddings, HeadLoss, Method
from ray_backfill.methods.baselines import new_system, old_system
from ray_backfill.models.maps import transform
from ray_backfill.systems import RetrievalSystem, UpgradePair

DISTANCES = ("cosine", "l2")
LOSSES = ("rqt", "cl_s", "cl_m", "mcl")


@dataclass(frozen=True)
class LossSettings:
    """What is settable in the losses."""

    # cosine or l2.
    distance: str = "cosine"
    # Temperature of exp(-distance / tau).
    tau: float = 0.1
    # Keep the harder half of each anchor's positives and negatives.
    hard_mining: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "tau")
        if self.distance not in DISTANCES:
            raise InputError(f"heads train under the cosine or the l2 distance, not {self.distance!r}")


@dataclass(frozen=True)
class LossBatch:
    """Anchors of this worker against the items of all workers.

    reverse_bd: psi(rho(new)) of the anchors. forward_bd: rho(new) of the anchors. old_Bd, forward_Bd: gathered.
    label_B: gathered labels. first: the anchors are items first .. first + b - 1 of the gathered batch.
    """

    reverse_bd: Tensor
    forward_bd: Tensor
    old_Bd: Tensor
    forward_Bd: Tensor
    label_B: Tensor
    first: int


def head_loss(name: str, batch: LossBatch, settings: LossSettings) -> Tensor:
    """Mean loss over the anchors. Source: eq. 9 (rqt), 10 (cl_s), 14 (cl_m), 11 (mcl).

    Raises:
        InputError: unknown loss.
    Cost: O(b B d).
    """
    own = slice(batch.first, batch.first + len(batch.reverse_bd))
    if name == "rqt":
        return _paired_distances(batch.reverse_bd, batch.old_Bd[own], settings.distance).mean()
    if name not in LOSSES:
        raise InputError(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
    same_bB = batch.label_B[own, None] == batch.label_B[None, :]
    self_bB = torch.zeros_like(same_bB)
    self_bB[:, own].fill_diagonal_(True)
    d_old_bB = _distances(batch.reverse_bd, batch.old_Bd, settings.distance)
    log_p_old, log_n_old = _log_sums(d_old_bB, same_bB, ~same_bB, settings)
    if name == "cl_s":
        return _pull(log_p_old, [log_n_old])
    d_new_bB = _distances(batch.forward_bd, batch.forward_Bd, settings.distance)
    # An item's distance to itself in the new system is 0 and teaches nothing.
    log_p_new, log_n_new = _log_sums(d_new_bB, same_bB & ~self_bB, ~same_bB, settings)
    if name == "cl_m":
        return _pull(log_p_old, [log_n_old]) + _pull(log_p_new, [log_n_new])
    return _pull(log_p_old, [log_n_old, log_n_new]) + _pull(log_p_new, [log_n_new, log_n_old])


def _distances(a_bd: Tensor, b_Bd: Tensor, distance: str) -> Tensor:
    if distance == "cosine":
        return 1 - F.normalize(a_bd, dim=1) @ F.normalize(b_Bd, dim=1).T
    return torch.cdist(a_bd, b_Bd)


def _paired_distances(a_bd: Tensor, b_bd: Tensor, distance: str) -> Tensor:
    if distance == "cosine":
        return 1 - F.cosine_similarity(a_bd, b_bd)
    return (a_bd - b_bd).norm(dim=1)


def _log_sums(d_bB: Tensor, positive_bB: Tensor, negative_bB: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """log of the sums of exp(-d / tau) over each anchor's positives and negatives; -inf where it has none."""
    if settings.hard_mining:
        positive_bB = _harder_half(d_bB, positive_bB, farthest=True)
        negative_bB = _harder_half(d_bB, negative_bB, farthest=False)
    logits = -d_bB / settings.tau
    return (
        logits.masked_fill(~positive_bB, -torch.inf).logsumexp(1),
        logits.masked_fill(~negative_bB, -torch.inf).logsumexp(1),
    )


def _harder_half(d_bB: Tensor, mask_bB: Tensor, *, farthest: bool) -> Tensor:
    """Of each anchor's masked items keep the half (rounded up) that is farthest or closest. Source: footnote 2."""
    hardness = (d_bB if farthest else -d_bB).detach().masked_fill(~mask_bB, -torch.inf)
    kept_b1 = (mask_bB.sum(1, keepdim=True) + 1) // 2
    most = int(kept_b1.max())
    hardest = hardness.topk(most, dim=1).indices
    in_order = torch.arange(most, device=d_bB.device) < kept_b1
    return torch.zeros_like(mask_bB).scatter(1, hardest, in_order)


def _pull(log_positive: Tensor, log_negatives: list[Tensor]) -> Tensor:
    """Mean of -log(P / (P + N + ...)); an anchor without positives has nothing to pull and adds 0."""
    has_positive = log_positive > -torch.inf
    log_positive = log_positive[has_positive]
    everything = torch.stack([log_positive, *(n[has_positive] for n in log_negatives)]).logsumexp(0)
    return (everything - log_positive).sum() / len(has_positive)


def _naive(e: Embeddings, heads: Any) -> UpgradePair:
    """{old, old} and {new, new}: a query is embedded by both models. Source: section 3.2."""
    return UpgradePair(old_system(e), new_system(e))


def _with_heads(e: Embeddings, heads: Any) -> UpgradePair:
    """{psi(rho(new)), old} and {rho(new), rho(new)}; without rho, rho(new) is new. Source: section 4."""
    forward_query = transform(heads.rho, e.query["new"])
    return UpgradePair(
        backward=RetrievalSystem(transform(heads.psi, forward_query), e.gallery["old"]),
        forward=RetrievalSystem(forward_query, transform(heads.rho, e.gallery["new"])),
    )


METHODS = (
    Method("rm_naive", "RM naive", "rank merge, section 3.2", _naive),
    Method("rqt", "RM RQT", "eq. 9", _with_heads, HeadLoss("rqt", needs_labels=False)),
    Method("cl_s", "RM CL-S", "eq. 10", _with_heads, HeadLoss("cl_s")),
    Method("cl_m", "RM CL-M", "eq. 14", _with_heads, HeadLoss("cl_m")),
    Method("mcl", "RM MCL", "eq. 11", _with_heads, HeadLoss("mcl")),
    Method(
        "rqt_rho", "RM RQT + rho", "eq. 9 with rho", _with_heads, HeadLoss("rqt", learn_new=True, needs_labels=False)
    ),
    Method("cl_s_rho", "RM CL-S + rho", "eq. 10 with rho", _with_heads, HeadLoss("cl_s", learn_new=True)),
    Method("cl_m_rho", "RM CL-M + rho", "eq. 14 with rho", _with_heads, HeadLoss("cl_m", learn_new=True)),
    Method("rm", "full RM", "eq. 11-13: MCL with rho", _with_heads, HeadLoss("mcl", learn_new=True)),
)
