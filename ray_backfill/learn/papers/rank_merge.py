"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025.
Deviates: similarities are exp(-d / tau) with tau as a setting; eq. 10 to 13 have no temperature (tau = 1). In the new
system, an item is no positive of itself (k = i in eq. 11 and 14): its distance is always 0.
Without rho the new system is frozen, so the second term of CL-M (eq. 14) has no gradient, and CL-M trains exactly what
CL-S trains. The two differ only with rho.

The heads are sections 4.1 to 4.3 and appendix B.2. The backbones are frozen and do not run here.

Shapes: N training items, W workers, b anchors of this worker, B = W * b items of all workers, d dimensions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ray_backfill.learn.models.gather import GlobalBatchNorm, gather, rank_and_size
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet, anchors_per_worker
from ray_backfill.learn.training.map_loop import (
    BatchRows,
    all_views,
    draw_views,
    for_all_views,
    train_map,
    warmup_cosine,
)
from ray_backfill.learn.training.settings import HeadTraining, LossSettings


class Heads(nn.Module):
    """psi: new -> old space, and rho: new -> new space. Without rho the new embedding stays unchanged.

    learn_new: with rho. blocks: Linear-BatchNorm-ReLU blocks; the last one is Linear only.
    """

    kind, parts = "heads", {"psi": "psi", "rho": "rho"}

    def __init__(self, old_dim: int, new_dim: int, learn_new: bool = False, blocks: int = 2) -> None:
        super().__init__()
        self.shape: dict[str, Any] = {"old_dim": old_dim, "new_dim": new_dim, "learn_new": learn_new, "blocks": blocks}
        self.psi = _blocks(new_dim, old_dim, blocks)
        self.rho = _blocks(new_dim, new_dim, blocks) if learn_new else nn.Identity()

    def forward(self, new_Bd: Tensor) -> tuple[Tensor, Tensor]:
        """(B, new_dim) -> psi(rho(new)), (B, old_dim), and rho(new), (B, new_dim)."""
        forward_Bd = self.rho(new_Bd)
        return self.psi(forward_Bd), forward_Bd


def _blocks(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    """Hidden width 2 * inputs: psi and rho of 128 dimensions then have 132,864 parameters, the paper's 132.8K."""
    hidden = 2 * inputs
    layers: list[nn.Module] = []
    for i in range(blocks - 1):
        layers += [nn.Linear(hidden if i else inputs, hidden), GlobalBatchNorm(hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden if blocks > 1 else inputs, outputs))


@dataclass(frozen=True)
class LossBatch:
    """Anchors of this worker against the items of all workers.

    reverse_bd: psi(rho(new)) of the anchors. forward_bd: rho(new) of the anchors. old_Bd, forward_Bd, label_B: of all
    workers' items. first: the anchors are items first .. first + b - 1 of the gathered batch.
    """

    reverse_bd: Tensor
    forward_bd: Tensor
    old_Bd: Tensor
    forward_Bd: Tensor
    label_B: Tensor
    first: int

    @property
    def anchors(self) -> slice:
        """Positions of the anchors among all items."""
        return slice(self.first, self.first + len(self.reverse_bd))


# The mean loss over the anchors.
HeadLoss = Callable[[LossBatch, LossSettings], Tensor]


def rqt(batch: LossBatch, settings: LossSettings) -> Tensor:
    """Mean distance of each anchor's psi(rho(new)) to its own old embedding. Source: eq. 9."""
    own_bd = batch.old_Bd[batch.anchors]
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
    same_bB = batch.label_B[batch.anchors, None] == batch.label_B[None, :]
    return _log_sums(_distances(batch.reverse_bd, batch.old_Bd, settings.distance), same_bB, ~same_bB, settings)


def _new_sums(batch: LossBatch, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """``_log_sums`` of the forward system, {rho(new), rho(new)}."""
    same_bB = batch.label_B[batch.anchors, None] == batch.label_B[None, :]
    negative_bB = ~same_bB
    same_bB[:, batch.anchors].fill_diagonal_(False)  # an item's distance to itself is always 0
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


def train_heads(
    loss: HeadLoss,
    data: TrainSet,
    label_N: NDArray[np.int64],
    training: HeadTraining,
    learn_new: bool,
    device: Device = None,
    on_epoch: OnEpoch = None,
) -> Fitted:
    """Train psi, and rho if ``learn_new`` is set; under DDP every worker calls this with the same arguments.

    label_N: the class of each item.
    """
    rank, size = rank_and_size()
    share = anchors_per_worker(label_N, training, size)
    old, new = (all_views(data, model, device) for model in ("old", "new"))
    label, rows_of = for_all_views(data, label_N, device), rows_by_class(label_N)
    torch.manual_seed(training.seed)
    heads = Heads(old.shape[1], new.shape[1], learn_new, training.blocks).to(device)
    model: nn.Module = DistributedDataParallel(heads) if size > 1 else heads
    rng, view_of = np.random.default_rng(training.seed), draw_views(data, training.seed)

    def loss_of(rows: BatchRows) -> Tensor:
        everyone = torch.from_numpy(rows).to(device)
        reverse_bd, forward_bd = model(new[everyone[rank * share : (rank + 1) * share]])
        # Every worker has all stored embeddings and labels, so only the outputs of the heads are gathered.
        batch = LossBatch(
            reverse_bd, forward_bd, old[everyone], gather(forward_bd), label[everyone], first=rank * share
        )
        return loss(batch, training.loss)

    flops = train_map(
        torch.optim.Adam([p for p in heads.parameters() if p.requires_grad], lr=training.lr),
        training.epochs,
        batches_per_epoch(rows_of, training.classes, training.items),
        lambda epoch: map(view_of, balanced_batches(rows_of, training.classes, training.items, rng)),
        loss_of,
        lambda epoch, step: warmup_cosine(epoch - 1, training.epochs, 0),
        on_epoch,
    )
    return Fitted(heads.eval(), flops)


def rows_by_class(label_N: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """The row numbers of each class, ascending. Cost: a sort, which takes seconds for a million rows."""
    _, counts = np.unique(label_N, return_counts=True)
    return np.split(np.argsort(label_N, kind="stable"), np.cumsum(counts)[:-1])


def balanced_batches(
    rows_of: Sequence[NDArray[np.int64]], classes: int, items: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """One epoch of class-balanced batches of row numbers: classes x items each, about N rows in all.

    Every class is drawn once before any is drawn again; a class with fewer rows than ``items`` repeats some.
    rows_of: rows of each class (``rows_by_class``).
    """
    per_batch = min(classes, len(rows_of))
    queue: list[int] = []
    for _ in range(batches_per_epoch(rows_of, classes, items)):
        if len(queue) < per_batch:
            waiting = set(queue)
            queue += [c for c in rng.permutation(len(rows_of)).tolist() if c not in waiting]
        drawn, queue = queue[:per_batch], queue[per_batch:]
        yield np.concatenate([rng.choice(rows_of[c], items, replace=len(rows_of[c]) < items) for c in drawn])


def batches_per_epoch(rows_of: Sequence[NDArray[np.int64]], classes: int, items: int) -> int:
    """Number of ``balanced_batches``."""
    return max(1, sum(map(len, rows_of)) // (min(classes, len(rows_of)) * items))


class RhoAndH(nn.Module):
    """rho: new -> new space. h: old -> rho's space. blocks: of rho. hidden, uncertainty: of h."""

    kind, parts = "towards_rho", {"rho": "rho", "h": "h"}

    def __init__(self, old_dim: int, new_dim: int, blocks: int, hidden: int, uncertainty: bool) -> None:
        super().__init__()
        self.shape: dict[str, Any] = {
            "old_dim": old_dim, "new_dim": new_dim, "blocks": blocks, "hidden": hidden, "uncertainty": uncertainty
        }  # fmt: skip
        self.rho = Heads(old_dim, new_dim, True, blocks).rho
        self.h = Transform((old_dim,), new_dim, hidden, uncertainty)

    def forward(self, old_Bd: Tensor, new_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of the same items by both models -> h(old) and rho(new)."""
        return self.h(old_Bd), self.rho(new_Bn)


def rho_and_h(heads: Heads, h: Transform) -> RhoAndH:
    """Both trained maps as one network, in eval mode."""
    old_dim, new_dim, blocks = (heads.shape[name] for name in ("old_dim", "new_dim", "blocks"))
    both = RhoAndH(old_dim, new_dim, blocks, h.hidden, h.uncertainty is not None)
    both.rho, both.h = heads.rho, h
    return both.eval()
